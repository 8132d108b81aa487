"""What is used wrongly is answered in a sentence, also where nobody checks types: nothing is silently another model."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.models.encoder import Encoder, EncoderConfig
from flax_transformer.models.head import Head, HeadConfig
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import (
    Attention,
    Block,
    Embedding,
    EmbeddingConfig,
    PerLayer,
    Precision,
    RelativeConfig,
    Rotary,
    TrunkConfig,
    apply_stack,
    extend_stack,
    init_stack,
    layer,
    map_stack,
    stack_depth,
    transformer_block,
    unstack,
    with_fields,
)
from flax_transformer.ops import Mask

pytestmark = pytest.mark.proves("misuse", "shapes, types, names and states that would be misread are refused")

D, N, L = 16, 4, 3
CONFIG = transformer_block(embed=D, heads=N, inner=24)
CROSS = replace(CONFIG, cross=CONFIG.attention)
TABLE = EmbeddingConfig(vocab=9, embed=D, position="learned", max_length=5, types=2, offset=2)


@pytest.fixture(autouse=True)
def _as_users_call(monkeypatch):
    """Leave out the tests' own checks of types, which users do not have."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def bools(*shape):
    return jnp.ones(shape, bool)


def make(cfg=CONFIG):
    return Block(cfg, rngs=nnx.Rngs(0))


def stack(cfg=CONFIG):
    return init_stack(lambda rngs: Block(cfg, rngs=rngs), L, key=jax.random.key(0))


@pytest.fixture(scope="module")
def cross():
    return Attention(CROSS.cross, rngs=nnx.Rngs(0))


def by_hand(cross, x, memory, owner, **options):
    """Let each row of x look at the one row of a memory that is its own, each in a call of its own."""
    return jnp.stack([cross(x[i], memory[owner(i)], **options) for i in range(len(x))])


@pytest.mark.parametrize(
    ("x", "memory"), [((4, 6), (3, 5)), ((4, 6), (2, 5)), ((1, 6), (3, 5)), ((6,), (2, 5)), ((2, 2, 6), (2, 5))]
)
@pytest.mark.parametrize("projected", [False, True])
def test_rows_do_not_look_at_the_memories_of_others(cross, x, memory, projected):
    memory = normal(*memory, D)
    with pytest.raises(ValueError, match="a memory must have the rows of x"):
        cross(normal(*x, D), cross.project(memory) if projected else memory)


@pytest.mark.parametrize("given", [(5,), (1, 5), (4, 5)])
@pytest.mark.parametrize("projected", [False, True])
def test_one_memory_is_for_all_rows(cross, given, projected):
    x, memory = normal(4, 6, D), normal(*given, D, seed=1)
    mask = Mask(causal=True, lengths=jnp.array([5, 2, 3, 1]))
    every = jnp.broadcast_to(memory, (4, 5, D))
    found = cross(x, cross.project(memory) if projected else memory, mask=mask)
    np.testing.assert_allclose(found, cross(x, every, mask=mask), rtol=1e-5, atol=1e-6)
    alone = [cross(x[i], every[i], mask=Mask(causal=True, lengths=mask.lengths[i])) for i in range(4)]
    np.testing.assert_allclose(found, jnp.stack(alone), rtol=1e-5, atol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("sentences", [None, 1, 2])
def test_beams_share_the_row_of_their_sentence(cross, T, sentences):
    given = () if sentences is None else (sentences,)
    x, memory = normal(2 * (sentences or 1), T, D), normal(*given, 5, D, seed=1)
    lengths = jnp.arange(2, 2 + (sentences or 1)).reshape(given)
    found = cross(x, cross.project(memory, beams=2), mask=Mask(lengths=lengths))
    copies = jnp.repeat(memory.reshape(-1, 5, D), 2, axis=0)
    expected = cross(x, copies, mask=Mask(lengths=jnp.repeat(lengths.reshape(-1), 2)))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "mask", "message"),
    [
        (5, None, r"rows \(2,\) shared by 3 beams each takes as many, got \(5,\)"),
        (2, None, r"takes as many, got \(2,\)"),
        (6, Mask(causal=True), "beams that share a memory have no place in it"),
        (6, Mask(window=1), "beams that share a memory have no place in it"),
        (6, Mask(lengths=jnp.ones(6, int)), "mask lengths must broadcast"),
        (6, Mask(dense=bools(6, 1, 4, 5)), "mask dense must broadcast"),
        (6, Mask(dense=bools(2, 1, 4, 5)), "mask dense must broadcast"),
        (6, Mask(lengths=jnp.ones(3, int)), "mask lengths must broadcast"),
    ],
)
def test_beams_must_be_as_many_as_asked_for(cross, rows, mask, message):
    with pytest.raises(ValueError, match=message):
        cross(normal(rows, 4, D), cross.project(normal(2, 5, D), beams=3), mask=mask)


@pytest.mark.rotates
def test_the_memory_of_all_layers_is_not_that_of_one():
    blocks = stack(CROSS)
    memory = map_stack(lambda block: block.cross.project(normal(2, 5, D)), blocks)
    assert apply_stack(blocks, normal(2, 4, D), PerLayer(memory)).shape == (2, 4, D)
    with pytest.raises(ValueError, match=r"a memory must have the rows of x, \(3,\)"):
        apply_stack(blocks, normal(3, 4, D), memory)


@pytest.mark.rotates
def test_a_source_and_a_target_of_other_rows_are_no_pair():
    embedding = EmbeddingConfig(vocab=9, embed=D)
    sides = {"encoder": TrunkConfig(block=CONFIG, depth=1), "decoder": TrunkConfig(block=CROSS, depth=1)}
    config = Seq2SeqConfig(embedding=embedding, **sides)
    model = Seq2Seq(config, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="a memory must have the rows of x"):
        model(jnp.ones((4, 6), int), jnp.ones((6, 4), int))
    cache = model.init_cache(normal(2, 5, D), None, 4, beams=3)
    for tokens, message in ((jnp.ones(2, int), "sentences times beams"), (jnp.ones((6, 1), int), "one token a row")):
        with pytest.raises(ValueError, match=message):
            model.step(cache, tokens)


def test_a_cache_takes_the_rows_it_was_made_for():
    block = make(CROSS)
    cache = block.attention.init_cache(2, 4)
    x = normal(2, 1, D)
    for wrong, message in (
        (lambda: block.attention.extend(normal(3, 1, D), cache), r"2 × 1 rows .* got \(3,\)"),
        (lambda: block.attention.extend(normal(2, 5, D), cache), "room for 4 positions, got 5 at once"),
        (lambda: block.attention.extend(x, cache, mask=Mask(dense=bools(2, 1, 1, 5))), r"broadcast to \(2, 4, 1, 4\)"),
        (lambda: block.attention.extend(x, cache, mask=Mask(lengths=jnp.ones(3, int))), "mask lengths must broadcast"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()


def test_a_mask_of_sentences_is_not_one_of_hypotheses():
    """With as many sentences as hypotheses, rows of the one could pass for rows of the other."""
    attention = make().attention
    cache = attention.init_cache(3, 4, beams=3)
    with pytest.raises(ValueError, match=r"must broadcast to \(9,\), got \(3,\)"):
        attention.extend(normal(9, 1, D), cache, mask=Mask(lengths=jnp.ones(3, int)))


@pytest.mark.parametrize(("batch", "beams"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_full_cache_gives_nan_and_not_what_it_forgot(batch, beams):
    attention = make().attention
    x = normal(batch * beams, 1, D)
    cache = attention.init_cache(batch, 3, beams=beams)
    step = jax.jit(lambda cache: attention.extend(x, cache))
    for _ in range(3):
        y, cache = step(cache)
        assert jnp.isfinite(y).all()
    for _ in range(2):
        y, cache = step(cache)
        assert jnp.isnan(y).all()


@pytest.mark.parametrize("what", ["tokens", "positions", "types"])
@pytest.mark.parametrize("wrong", [-1 - TABLE.offset, -100, 99])
def test_an_id_without_a_row_gives_nan_there_and_nowhere_else(what, wrong):
    embedding = Embedding(TABLE, rngs=nnx.Rngs(0))
    ids = {"tokens": jnp.array([3, 4, 5]), "positions": jnp.array([0, 1, 2]), "types": jnp.array([0, 1, 0])}
    right = embedding(**ids)
    found = embedding(**{**ids, what: ids[what].at[1].set(wrong)})
    assert jnp.isnan(found[1]).all()
    np.testing.assert_array_equal(found[::2], right[::2])


def test_rows_before_position_0_are_positions_and_sinusoids_have_no_first():
    tokens, positions = jnp.array([3, 4]), jnp.array([-2, -1])
    embedding = Embedding(TABLE, rngs=nnx.Rngs(0))
    before = embedding.position.embedding[:2] - embedding.position.embedding[2:4]
    moved = embedding(tokens, positions=positions) - embedding(tokens)
    np.testing.assert_allclose(moved, before, atol=1e-5)
    endless = Embedding(replace(TABLE, position="sinusoidal"), rngs=nnx.Rngs(0))
    assert jnp.isfinite(endless(tokens, positions=positions)).all()


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint32])
def test_ids_of_any_width_are_looked_up_alike(kind):
    embedding, tokens = Embedding(TABLE, rngs=nnx.Rngs(0)), jnp.array([3, 8, 0])
    np.testing.assert_array_equal(embedding(tokens.astype(kind)), embedding(tokens))


def embed(config=TABLE, **given):
    return lambda: Embedding(config, rngs=nnx.Rngs(0))(**{"tokens": jnp.ones((2, 3), int), **given})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            embed(tokens=jnp.ones((2, 3))),
            r"tokens must be whole numbers, or embeddings .* floats \[\*B, T, \d+\], .*, got float32 of \(2, 3\)",
        ),
        (embed(tokens=bools(2, 3)), "tokens must be .* whole numbers, got bool"),
        (embed(tokens=jnp.int32(3)), r"tokens must be an array \[\*B, T\]"),
        (embed(tokens=jnp.ones(3, int), positions=jnp.ones((2, 3), int)), r"positions must broadcast to \(3,\)"),
        (embed(positions=jnp.ones((2, 4), int)), r"positions must broadcast to \(2, 3\)"),
        (embed(positions=jnp.ones(2, int)), r"positions must broadcast to \(2, 3\)"),
        (embed(positions=jnp.ones((2, 3))), "positions must be .* whole numbers, got float32"),
        (embed(types=jnp.ones((3, 3), int)), r"types must broadcast to \(2, 3\)"),
        (embed(replace(TABLE, types=0), types=jnp.ones((2, 3), int)), "without types must not be given any"),
        (embed(replace(TABLE, own_table=False)), "needs the `table` of another"),
    ],
)
def test_ids_that_do_not_fit_an_embedding_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@pytest.mark.parametrize("config", [CONFIG, CONFIG.attention, CONFIG.feedforward], ids=["block", "att", "ffn"])
def test_layers_say_which_hidden_states_they_take(config):
    made = config.build(nnx.Rngs(0))
    for x, message in (
        (normal(2, 3, D - 1), rf"D must be {D}, got {D - 1}: x has shape \(2, 3, {D - 1}\)"),
        (normal(D), r"x must be hidden states \[\*B, T, D\]"),
        (jnp.ones((2, 3, D), int), "floating point, got int32"),
    ):
        with pytest.raises(ValueError, match=message):
            made(x)


@pytest.mark.parametrize("part", ["", "attention", "feedforward"])
@pytest.mark.parametrize("cfg", [CONFIG, with_fields(CONFIG, norm_position="pre")])
def test_a_stack_is_not_a_block(part, cfg):
    """As many layers as channels, and as many positions: every product could be done."""
    blocks = init_stack(lambda rngs: Block(cfg, rngs=rngs), D, key=jax.random.key(0))
    with pytest.raises(ValueError, match="a stack is run by `apply_stack`"):
        (getattr(blocks, part) if part else blocks)(normal(2, D, D))


def test_a_block_is_not_a_stack():
    for wrong in (stack_depth, lambda b: layer(b, 0), lambda b: apply_stack(b, normal(2, 3, D))):
        with pytest.raises(ValueError, match="the leaves of a stack have one leading axis in common"):
            wrong(make())


@pytest.mark.rotates
@pytest.mark.parametrize("apart", [False, True])
def test_layers_are_counted_from_either_end_and_not_beyond(apart):
    blocks = unstack(stack()) if apart else stack()
    for index in range(-L, L):
        found, expected = layer(blocks, index), layer(stack(), index % L)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
    for index in (L, -L - 1, 7):
        with pytest.raises(IndexError, match=f"must be in -{L} … {L - 1}, got {index}"):
            layer(blocks, index)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("entries", [L - 1, L + 1])
def test_layers_have_an_entry_each(apart, entries):
    blocks = unstack(stack()) if apart else stack()
    with pytest.raises(ValueError, match=f"PerLayer must have an entry for each layer, .* {L}, got {entries}"):
        apply_stack(blocks, normal(2, 4, D), bias=PerLayer(normal(entries, N, 4, 4)))
    cache = make().attention.init_cache(2, 4)
    caches = (cache,) * entries if apart else jax.tree.map(lambda leaf: jnp.stack([leaf] * entries), cache)
    with pytest.raises(ValueError, match=f"a stack's cache must have an entry for each layer, .* got {entries}"):
        extend_stack(blocks, normal(2, 1, D), caches)


class Kept(nnx.Module):
    """A block as one writes it in plain Flax."""

    def __init__(self, kind, *, rngs):
        self.linear, self.part = nnx.Linear(D, D, rngs=rngs), kind(rngs)

    def __call__(self, x, *, key=None):
        return self.part(self.linear(x))


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (lambda rngs: nnx.Dropout(0.5, rngs=rngs), "ops.dropout.*part.rngs"),
        (lambda rngs: nnx.BatchNorm(D, rngs=rngs), "running statistics.*part.mean"),
    ],
)
def test_what_would_change_from_call_to_call_is_not_kept(kind, advice):
    with pytest.raises(ValueError, match=f"keeps parameters and nothing else.*{advice}"):
        init_stack(lambda rngs: Kept(kind, rngs=rngs), L, key=jax.random.key(0))
    by_hand = jax.vmap(lambda key: Kept(kind, rngs=nnx.Rngs(key)))(jax.random.split(jax.random.key(0), L))
    with pytest.raises(ValueError, match=f"keeps parameters and nothing else.*{advice}"):
        apply_stack(by_hand, normal(2, 3, D))


def test_a_block_in_plain_flax_that_keeps_parameters_alone_is_run():
    blocks = init_stack(lambda rngs: Kept(lambda _: jnp.tanh, rngs=rngs), L, key=jax.random.key(0))
    assert apply_stack(blocks, normal(2, D)).shape == (2, D)


def heads_first(q, k, v, mask=None, bias=None, **options):
    return jnp.swapaxes(q, -3, -2)


@pytest.mark.parametrize(
    ("cfg", "wrong", "message"),
    [
        (CONFIG, dict(mask=bools(3, 3)), r"a mask must be a Mask.*got bool\[3, 3\]"),
        (CROSS, dict(memory=normal(2, 5, D), memory_mask=Mask(lengths=jnp.ones(3, int))), "mask lengths"),
        (CROSS, dict(memory=normal(2, 5, D), memory_mask=Mask(dense=bools(2, 1, 1, 4))), "mask dense"),
        (CROSS, dict(memory=normal(2, 5, D), memory_mask=bools(2, 5)), "a mask must be a Mask"),
        (CROSS, dict(memory=normal(2, 5, D - 1)), f"D must be {D}, got {D - 1}: memory"),
        (CROSS, dict(memory=Mask(causal=True)), "memory must be hidden states in floating point, got Mask"),
        (CONFIG, dict(bias=normal(2, 1, N, 3, 3)), "bias must broadcast"),
        (CONFIG, dict(bias=normal(2, 3, 3)), "bias must broadcast"),
        (CONFIG, dict(bias=bools(3, 3)), "a bias must be floating point"),
        (with_fields(CONFIG, rotary=Rotary()), dict(positions=jnp.ones((3, 3), int)), "positions must broadcast"),
        (with_fields(CONFIG, attend=heads_first), {}, r"attend must return .*\(2, 3, 4, 4\), got \(2, 4, 3, 4\)"),
    ],
)
def test_arguments_of_a_block_that_do_not_fit_are_refused(cfg, wrong, message):
    with pytest.raises(ValueError, match=message):
        make(cfg)(normal(2, 3, D), **wrong)


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        (CONFIG, dict(norm_position="Pre"), "norm_position must be one of pre, post, output, both, none, got 'Pre'"),
        (CONFIG, dict(layer_scale="yes"), "layer_scale must be a number or None, got 'yes'"),
        (CONFIG, dict(drop_path=1), r"drop_path must be in \[0, 1\), got 1"),
        (CONFIG, dict(qk_norm=True), "qk_norm must be a number or None, got True"),
        (CONFIG, dict(cross=True), "cross must be an AttentionConfig or None, got True"),
        (
            TrunkConfig(block=CONFIG),
            dict(remat="some"),
            "remat must be one of none, full, attention, dots, offload, got 'some'",
        ),
        (TrunkConfig(block=CONFIG), dict(drop_path=-0.5), r"drop_path must be in \[0, 1\), got -0.5"),
        (
            CONFIG,
            dict(norm="batch"),
            "norm must be one of layer, layer_without_bias, rms, zero_centered_rms or a function, got 'batch'",
        ),
        (CONFIG, dict(kv_heads=0), "kv_heads must be at least 1, got 0"),
        (CONFIG, dict(head_width=-4), "head_width must be at least 1, got -4"),
        (CONFIG, dict(embed=32.0), "embed must be a whole number, got 32.0"),
        (CONFIG, dict(heads=True), "heads must be a whole number, got True"),
        (CONFIG, dict(gated="no"), "gated must be True or False, got 'no'"),
        (CONFIG, dict(bias=None), "bias must be True or False or a tuple of a name, got None"),
        (CONFIG, dict(dropout=float("nan")), r"dropout must be in \[0, 1\), got nan"),
        (CONFIG, dict(dropout="0.1"), "dropout must be a number, got '0.1'"),
        (CONFIG, dict(norm_eps=-1e-5), "norm_eps must be at least 0"),
        (CONFIG, dict(init_std=-0.1), "init_std must be at least 0"),
        (CONFIG, dict(scale=0.0), "scale must be above 0, got 0.0"),
        (CONFIG, dict(rotary=True), "rotary must be a Rotary or None, got True"),
        (CONFIG, dict(precision="bfloat16"), "precision must be a Precision, got 'bfloat16'"),
        (CONFIG, dict(attend="xla"), "attend must be a function, got 'xla'"),
        (CONFIG, dict(activation=3), "activation must be a name or a function, got 3"),
        (Precision(), dict(compute="bf16"), "compute must be one of float32, bfloat16, float16, float64, got 'bf16'"),
        (Rotary(), dict(base=0), "base of rotary frequencies must be above 0"),
        (TABLE, dict(position="rope"), "position must be one of sinusoidal, .*, got 'rope'"),
        (TABLE, dict(vocab=9.0), "vocab must be a whole number"),
        (RelativeConfig(), dict(buckets=32.0), "buckets must be a whole number"),
        (
            HeadConfig(embed=D, outputs=2),
            dict(pool="most"),
            "pool must be one of every, first, .*, got 'most'",
        ),
        (CausalConfig(embedding=TABLE, block=CONFIG), dict(depth=2.5), "depth must be a whole number"),
        (
            CausalConfig(embedding=TABLE, block=CONFIG),
            dict(block=TABLE),
            "block must be a config of a block, as BlockConfig is, got Embedding",
        ),
        (
            EncoderConfig(embedding=TABLE, block=CONFIG),
            dict(relative=True),
            "relative must be a RelativeConfig or an AlibiConfig or None",
        ),
    ],
)
def test_every_field_of_a_config_is_what_it_is_declared_to_be(config, change, message):
    with pytest.raises(ValueError, match=message):
        with_fields(config, **change)


def test_an_activation_may_be_a_function():
    named, given = (make(with_fields(CONFIG, activation=activation)) for activation in ("gelu_tanh", jax.nn.gelu))
    np.testing.assert_allclose(given(normal(2, 3, D)), named(normal(2, 3, D)), rtol=1e-6, atol=1e-6)
    assert hash(given.cfg) != hash(named.cfg)


def test_a_head_and_a_prompt_say_what_they_take():
    with pytest.raises(ValueError, match=f"D must be {D}, got {D + 1}: hidden"):
        Head(HeadConfig(embed=D, outputs=2), rngs=nnx.Rngs(0))(normal(2, 3, D + 1))
    model = Causal(CausalConfig(embedding=TABLE, block=CONFIG, depth=1), rngs=nnx.Rngs(0))
    for padding in (jnp.zeros((2, 3), int), jnp.zeros((1, 3), bool), jnp.zeros(3, bool)):
        with pytest.raises(ValueError, match=r"padding must be booleans of the tokens' shape \(2, 3\)"):
            model.prefill(jnp.ones((2, 3), int), padding)
    plain = replace(TABLE, types=0, position="none")
    for model in (
        Encoder(EncoderConfig(embedding=plain, block=CONFIG, depth=1, relative=RelativeConfig()), rngs=nnx.Rngs(0)),
        Causal(CausalConfig(embedding=plain, block=CONFIG, depth=1), rngs=nnx.Rngs(0)),
    ):
        with pytest.raises(ValueError, match="positions serve embeddings or rotary attention, and the model has neith"):
            model(jnp.ones((2, 3), int), positions=jnp.arange(3))


def test_there_is_at_least_one_beam(cross):
    cache = cross.init_cache(2, 3)
    for wrong in (
        lambda: cross.project(normal(2, 3, D), beams=0),
        lambda: cross.init_cache(2, 3, beams=0),
        lambda: cache.fork(0, 5),
    ):
        with pytest.raises(ValueError, match="beams must be at least 1, got 0"):
            wrong()
