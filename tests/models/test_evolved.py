"""The Evolved Transformer: published sizes, decoding as any encoder-decoder, and many devices as one."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoding import neither_future_nor_padding_is_seen, steps_equal_the_whole
from fake_devices import on_eight
from flax import nnx

from flax_transformer.decode import Beam, Greedy, PowerPenalty
from flax_transformer.models.preset import abstract
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.evolved import (
    evolved_transformer,
    evolved_transformer_base,
    evolved_transformer_big,
    evolved_transformer_small,
)
from flax_transformer.models.text.transformer import transformer_base, transformer_big
from flax_transformer.nn import with_fields
from flax_transformer.parallel import path_name, tree_axes
from flax_transformer.task.translator import decode_batch
from flax_transformer.train.state import parameter_count

pytestmark = pytest.mark.proves("evolved", "decode", "cache = all at once; a beam as wide as the tree finds the best")


def small(vocab=40, **options):
    return evolved_transformer(vocab, embed=16, heads=2, depths=(2, 2), **options)


@pytest.fixture(scope="module")
def model():
    made = jax.jit(lambda: Seq2Seq(small(), rngs=nnx.Rngs(0)))()
    return jax.tree.map(lambda leaf: 2 * leaf, made)  # so that outputs differ by more than rounding


SIZES = {
    evolved_transformer_small: 7.2, evolved_transformer_base: 64.1, evolved_transformer_big: 221.7,
}  # fmt: skip


@pytest.mark.rotates
@pytest.mark.parametrize("preset", SIZES)
def test_presets_have_the_published_sizes(preset):
    """All weights of the paper's figure, written out: attention without biases, all else with them."""
    cfg = preset()
    D = cfg.embedding.embed
    linear = lambda inputs, outputs: inputs * outputs + outputs  # noqa: E731
    separable = lambda inputs, outputs, window: inputs * window + linear(inputs, outputs)  # noqa: E731
    norm, attention, feed = 2 * D, 4 * D * D, linear(D, 4 * D) + linear(4 * D, D)
    branches = linear(D, 4 * D) + (3 * D + 1) * D // 2 + 2 * 4 * D + separable(4 * D, D // 2, 9)
    encoder = 2 * linear(D, D) + branches + attention + feed + 4 * norm
    branches = separable(D, 2 * D, 11) + separable(D, D // 2, 7) + 2 * 2 * D + separable(2 * D, D, 7)
    decoder = 4 * attention + branches + feed + 2 * 4 * D + 5 * norm
    count = parameter_count(abstract(cfg))
    assert count == 33_288 * D + 3 * encoder + 4 * decoder + 2 * norm
    assert round(count / 1e6, 1) == SIZES[preset]


@pytest.mark.rotates
def test_a_smaller_one_is_as_good_as_the_big_transformer():
    """With 37.6 % less parameters (the paper's abstract): D = 768 beside the Transformer's 1024."""
    less = 1 - parameter_count(abstract(evolved_transformer(33_288, embed=768, heads=8))) / 1e6 / 210.4
    assert round(100 * less, 1) == pytest.approx(37.6, abs=0.1)
    plain = with_fields(transformer_big(33_288), norm_position="pre", bias=False, out_bias=False)
    sides = {side: with_fields(getattr(plain, side), bias=False) for side in ("encoder", "decoder")}
    biases = 2 * 6 * (4 * 1024 + 1024)  # of the feed-forward layers, which Tensor2Tensor's Transformer has
    assert round((parameter_count(abstract(with_fields(plain, **sides))) + biases) / 1e6, 1) == 210.4


def test_it_costs_about_as_much_as_the_transformer_it_replaces():
    """Per layer of two blocks; the paper's table sets them side by side at D = 512."""
    counts = [parameter_count(abstract(preset(33_288))) for preset in (evolved_transformer_base, transformer_base)]
    assert 1.03 < counts[0] / counts[1] < 1.06


@pytest.mark.rotates
@pytest.mark.parametrize("beams", [1, 3])
def test_step_by_step_is_all_at_once(model, beams):
    steps_equal_the_whole(model, beams)


@pytest.mark.rotates
def test_neither_future_nor_padding_is_seen(model):
    neither_future_nor_padding_is_seen(model)


@pytest.mark.rotates
def test_what_all_hypotheses_begin_with_is_read_at_once(model):
    """By a cache that is forked when it is full, and grows."""
    source, lengths, begun = jnp.arange(14).reshape(2, 7) + 4, jnp.array([7, 3]), jnp.arange(10).reshape(2, 5) + 9
    rows, step, whole = np.repeat(np.arange(2), 3), jax.jit(Seq2Seq.step), jax.jit(Seq2Seq.__call__)
    begin = lambda model: model.init_cache(model.encode(source, lengths), lengths, 2, beams=3, begun=begun)  # noqa: E731
    cache = jax.jit(begin)(model)
    read, tokens = begun[rows], (jnp.arange(24).reshape(4, 6) * 5) % 36 + 4
    for t, token in enumerate(tokens):
        cache = cache.grow(9) if t == 2 else cache
        read = jnp.concatenate([read, token[:, None]], axis=1)
        logits, cache = step(model, cache, token)
        expected = whole(model, source[rows], jnp.pad(read, ((0, 0), (0, 9 - read.shape[1]))), lengths[rows])
        expected = expected[:, read.shape[1] - 1]
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5 * float(jnp.abs(expected).max()))
        order = jnp.array([1, 1, 0, 5, 3, 4])
        cache, read = cache.reorder(order), read[order]


@pytest.mark.rotates
def test_a_beam_as_wide_as_the_tree_is_exhaustive_search():
    V, end, longest = 6, 2, 3
    one = jax.tree.map(lambda leaf: 2 * leaf, Seq2Seq(small(V), rngs=nnx.Rngs(0)))
    source, lengths = jnp.array([[3, 4, 5, 1]]), jnp.array([4])
    texts = dict.fromkeys(
        words[: words.index(end) + 1] if end in words else words
        for words in itertools.product(range(V), repeat=longest)
    )
    rows = np.array([[*words, *[0] * (longest - len(words))] for words in texts])
    fed = jnp.asarray(np.concatenate([np.ones((len(rows), 1), int), rows[:, :-1]], axis=1))
    logits = one(jnp.repeat(source, len(rows), axis=0), fed, jnp.repeat(lengths, len(rows)))
    each = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), rows[..., None], axis=-1)[..., 0]
    total = [each[number, : len(words)].sum() for number, words in enumerate(texts)]
    best = list(texts)[int(np.argmax(total))]
    search = Beam(
        beams=V**2, max_length=longest, eos=end, length_penalty=PowerPenalty(alpha=0.0), early_stopping="never"
    )
    found = decode_batch(one, source, lengths, config=search, bos=1)
    assert tuple(np.asarray(found.tokens[0, 0])[: len(best)].tolist()) == best
    np.testing.assert_allclose(found.scores[0, 0], max(total), rtol=1e-4)


@pytest.mark.slow
def test_a_model_laid_out_for_decoding_is_the_model(model):
    source, lengths = jnp.arange(21).reshape(3, 7) + 4, jnp.array([7, 5, 1])
    for config in (Greedy(max_length=40, eos=()), Beam(max_length=40, eos=2, beams=3, n_best=2)):
        expected = decode_batch(model, source, lengths, config=config, bos=1)
        found = decode_batch(model.for_decoding(), source, lengths, config=config, bos=1)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)


def test_every_parameter_has_a_place_on_a_mesh():
    axes = tree_axes(abstract(evolved_transformer_base()))
    whole = [name for name, parts in axes.items() if name.endswith("kernel") and not set(parts) - {"layers", None}]
    assert whole == []
    assert len(axes) == len(jax.tree.leaves(abstract(evolved_transformer_base())))


@pytest.mark.rotates
def test_golden_loss():
    """A change of initialisation, masking or arithmetic shows here."""
    model = Seq2Seq(small(), rngs=nnx.Rngs(0))
    source, target = (jnp.arange(24).reshape(2, 12) * k % 36 + 4 for k in (5, 7))
    logprobs = jax.nn.log_softmax(model(source, target[:, :-1], jnp.array([12, 9])))
    loss = -jnp.take_along_axis(logprobs, target[:, 1:, None], -1).mean()
    np.testing.assert_allclose(loss, 3.999702, rtol=1e-4)


def distances(found, expected):
    """Say how far apart gradients are, in units of the largest number of each."""
    leaves = jax.tree_util.tree_leaves_with_path(expected)
    pairs = zip(jax.tree.leaves(found), leaves, strict=True)
    return {path_name(path): float(np.abs(mine - its).max() / np.abs(its).max()) for mine, (path, its) in pairs}


EIGHT = """
import json, jax, jax.numpy as jnp
from flax import nnx
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.objective import TokenLoss
from flax_transformer.parallel import MeshConfig, make_mesh, tree_shardings
from tests.models.test_evolved import distances, small

one = jax.tree.map(lambda leaf: 2 * leaf, Seq2Seq(small(), rngs=nnx.Rngs(0)))
source, target = ((jnp.arange(8 * length).reshape(8, length) * 7) % 36 + 4 for length in (12, 9))
batch = {"inputs": {"source": source, "target": target[:, :-1], "lengths": jnp.arange(8) % 6 + 5},
         "labels": target[:, 1:], "weights": jnp.ones((8, 8))}
loss = jax.jit(jax.grad(lambda one: TokenLoss()(one, batch, key=None)[0]))
expected, found = jax.device_get(loss(one)), {}
for name, sizes in {"all": {"fsdp": 2, "tensor": 2}, "sequence": {"sequence": 4}, "pipeline": {"pipeline": 2}}.items():
    mesh = make_mesh(MeshConfig(data=2 if name != "pipeline" else 4, **sizes))
    with jax.set_mesh(mesh):
        got = jax.device_get(loss(jax.device_put(one, tree_shardings(one, mesh))))
    found[name] = distances(got, expected)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.proves("evolved", "shard", "data × fsdp × tensor, sequence, pipeline, gradients too")
def test_eight_devices_are_one():
    found, _ = on_eight("-c", EIGHT)
    assert set(found) == {"all", "sequence", "pipeline"}
    for name, each in found.items():
        assert max(each.values()) < 1e-3, (name, max(each, key=each.get))
