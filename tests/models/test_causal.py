"""A decoder-only model sees the past alone, says the same step by step, padded, windowed, looped or taken apart."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import EmbeddingConfig, Rotary, transformer_block, with_fields
from flax_transformer.ops import Llama3Scaling, Mask

pytestmark = pytest.mark.slow

V, T = 31, 8
GPT2 = replace(
    gpt2_tiny(V),
    embedding=replace(gpt2_tiny(V).embedding, embed=16, max_length=12),
    block=with_fields(gpt2_tiny(V).block, embed=16, heads=2, inner=24),
    depth=2,
)
LLAMA = CausalConfig(
    embedding=EmbeddingConfig(vocab=V, embed=12, position="none", scaled=False, init_std=0.5),
    block=transformer_block(
        embed=12, heads=4, kv_heads=2, head_width=6, inner=20, norm="rms", norm_position="pre", activation="silu",
        gated=True, bias=False, qk_norm=1e-5, rotary=Rotary(base=50.0, frequencies=Llama3Scaling(original_length=6)),
    ),
    depth=2,
    tied_output=False,
)  # fmt: skip
CONFIGS = {"gpt2": GPT2, "llama": LLAMA, "window": replace(LLAMA, window=3), "in turns": replace(LLAMA, window=(2, 4))}
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, V, (4, T)))

# Compiled once for all tests: every batch has the shape of TOKENS where it can.
forward = jax.jit(lambda model, tokens, mask=None, positions=None: model(tokens, mask=mask, positions=positions))
prefill = jax.jit(lambda model, tokens, padding=None: model.prefill(tokens, padding))
step = jax.jit(lambda model, cache, token: model.step(cache, token))


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    shapes = nnx.eval_shape(lambda: Causal(CONFIGS[request.param], rngs=nnx.Rngs(0)))
    random = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.3, leaf.shape), leaf.dtype), shapes)


def close(a, b):
    np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()), rtol=0)


def test_every_position_sees_its_window_of_the_past_and_nothing_else(model):
    """What changes when token s changes: exactly the positions from s on, as far as windows reach through layers."""
    same = forward(model, jnp.broadcast_to(TOKENS[0], TOKENS.shape))[0]
    changed = (TOKENS[0] + jnp.eye(T, dtype=jnp.int32)) % V
    logits = jnp.concatenate([forward(model, rows) for rows in jnp.split(changed, 2)])
    moved = np.asarray(jnp.any(logits != same, axis=-1)).T
    t, s = np.mgrid[:T, :T]
    cfg = model.cfg
    reach = sum(T if window is None else window - 1 for window in cfg.windows) * cfg.depth // len(cfg.windows)
    np.testing.assert_array_equal(moved, (s <= t) & (t - s <= reach))


def test_vmap_is_the_batch(model):
    close(jax.jit(jax.vmap(lambda model, row: model(row), in_axes=(None, 0)))(model, TOKENS), forward(model, TOKENS))


def test_unrolled_equals_scanned(model):
    flat = jax.tree.map(lambda leaf: leaf, model)
    flat.cfg = replace(model.cfg, unroll=True)
    close(forward(flat, TOKENS), forward(model, TOKENS))


@pytest.mark.parametrize("made", ["as it is", "for decoding"])
def test_steps_after_a_prompt_equal_one_pass(model, made):
    decoder = model if made == "as it is" else jax.jit(Causal.for_decoding)(model)
    logits, cache = prefill(decoder, TOKENS[:, :3])
    cache, found = cache.grow(T), [logits]
    for t in range(3, T):
        logits, cache = step(decoder, cache, TOKENS[:, t])
        found.append(logits)
    close(jnp.stack(found, 1), forward(model, TOKENS)[:, 2:])


def test_a_prefix_sees_all_of_itself_and_is_gone_on_from(model):
    """A prefix language model: rows of other prefixes, read at once and step by step, with padding before them, too."""
    if model.cfg.window is not None:
        with pytest.raises(ValueError, match="a prefix is seen by all that comes after it, got a window, "):
            model(TOKENS, prefix_lengths=jnp.array([2, 3, 1, 4]))
        return
    lengths = jnp.array([2, 3, 0, 4])
    read = jax.jit(lambda model, tokens: model(tokens, prefix_lengths=lengths))
    whole, past = read(model, TOKENS), forward(model, TOKENS)
    changed = read(model, TOKENS.at[:, 2].set(TOKENS[:, 2] + 1))
    moved = np.asarray(jnp.any(changed != whole, -1))
    np.testing.assert_array_equal(moved, (np.arange(T) >= 2) | (np.asarray(lengths) > 2)[:, None])
    close(whole[2], past[2])
    start = jax.jit(lambda model, tokens, padding: model.prefill(tokens, padding, prefix_lengths=lengths))
    padded = jnp.pad(TOKENS[:, :5], ((0, 0), (2, 0)), constant_values=7)
    for tokens, padding in ((TOKENS[:, :5], None), (padded, jnp.arange(7)[None].repeat(4, 0) < 2)):
        logits, cache = start(model, tokens, padding)
        found, cache = [logits], cache.fork(1, 10)
        for t in range(5, T):
            logits, cache = step(model, cache, TOKENS[:, t])
            found.append(logits)
        close(jnp.stack(found, 1), whole[:, 4:])


def test_padding_on_the_left_changes_nothing(model):
    lengths, width, all_of_it = (7, 5, 2, 1), T - 1, forward(model, TOKENS)
    rows = [jnp.concatenate([jnp.full(width - n, 7), TOKENS[i, :n]]) for i, n in enumerate(lengths)]
    padding = jnp.arange(width) < width - jnp.asarray(lengths)[:, None]
    logits, cache = prefill(model, jnp.stack(rows), padding)
    following, _ = step(model, cache.grow(T), jnp.stack([TOKENS[i, n] for i, n in enumerate(lengths)]))
    close(logits, jnp.stack([all_of_it[i, n - 1] for i, n in enumerate(lengths)]))
    close(following, jnp.stack([all_of_it[i, n] for i, n in enumerate(lengths)]))


def test_hypotheses_share_a_prompt_and_may_be_selected(model):
    _, cache = prefill(model, TOKENS[:2, :4])
    cache = cache.fork(2, T)
    continued = jnp.asarray([[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]])
    for t in range(2):
        _, cache = step(model, cache, continued[:, t])
    rows = jnp.asarray([1, 1, 2, 3])
    cache, continued = cache.reorder(rows), continued.at[:, :2].set(continued[rows, :2])
    for t in range(2, 4):
        logits, cache = step(model, cache, continued[:, t])
    whole = jnp.concatenate([jnp.repeat(TOKENS[:2, :4], 2, axis=0), continued], axis=1)
    close(logits, forward(model, whole)[:, -1])


def test_packed_documents_do_not_see_each_other(model):
    segments, ends = jnp.asarray([[0, 0, 0, 1, 1, 1, 1, 1]] * 4), jnp.asarray([[0, 1, 2, 0, 1, 2, 3, 4]] * 4)
    packed = forward(model, TOKENS, Mask(segments=(segments, segments)), ends)
    second = jnp.roll(TOKENS, -3, axis=1)
    close(packed[:, :3], forward(model, TOKENS)[:, :3])
    close(packed[:, 3:], forward(model, second)[:, :5])


def test_rotary_models_depend_on_distances_only(model):
    shifted = forward(model, TOKENS, None, jnp.broadcast_to(jnp.arange(T) + 4, TOKENS.shape))
    if model.cfg.block.attention.rotary is None:
        assert float(jnp.abs(shifted - forward(model, TOKENS)).max()) > 1e-2
    else:
        close(shifted, forward(model, TOKENS))


def test_a_learned_table_ends_and_says_so():
    model = nnx.eval_shape(lambda: Causal(GPT2, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="longer than the positions: 13 tokens, 12 positions"):
        jax.eval_shape(model, jnp.zeros((1, 13), jnp.int32))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"block": replace(GPT2.block, cross=GPT2.block.attention)}, "attends to no memory"),
        ({"block": with_fields(GPT2.block, embed=32)}, "one model width, got embedding=16, block=32"),
    ],
)
def test_configs_are_checked(changes, match):
    with pytest.raises(ValueError, match=match):
        replace(GPT2, **changes)
