"""The 2017 model: published sizes, incremental decoding, masking, gradients and a golden loss."""

from dataclasses import replace
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.decode import Beam, Greedy
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.transformer import transformer_base, transformer_big, transformer_tiny
from flax_transformer.nn import EmbeddingConfig, TrunkConfig, transformer_block, with_fields
from flax_transformer.task.translator import decode_batch
from flax_transformer.train.state import parameter_count
from tests.shares import only, share


def small(**changes):
    return replace(with_fields(transformer_tiny(40), depth=2), **changes)


def narrow(cfg, **changes):
    return with_fields(cfg, embed=16, inner=32, **changes)


@pytest.fixture(scope="module")
def model():
    return Seq2Seq(narrow(small()), rngs=nnx.Rngs(0))


@pytest.fixture(scope="module")
def batch():
    keys = jax.random.split(jax.random.key(1))
    return (
        jax.random.randint(keys[0], (3, 7), 4, 40),
        jax.random.randint(keys[1], (3, 6), 4, 40),
        jnp.array([7, 5, 1]),
    )


@pytest.mark.parametrize(
    ("preset", "millions"),
    [(transformer_base, 63_082_496), (transformer_big, 214_245_376), (transformer_tiny, 2_568_192)],
)
def test_presets_have_the_published_sizes(preset, millions):
    """The paper rounds to 65 and 213 million, Wu et al. to 2.6; these are the exact counts of their shapes."""
    cfg = preset()
    assert parameter_count(jax.eval_shape(lambda: Seq2Seq(cfg, rngs=nnx.Rngs(0)))) == millions
    d, f = cfg.embedding.embed, cfg.encoder.block.feedforward.inner
    attention, feedforward, norm = 4 * (d * d + d), 2 * d * f + d + f, 2 * d
    encoder = cfg.encoder.depth * (attention + feedforward + 2 * norm)
    decoder = cfg.decoder.depth * (2 * attention + feedforward + 3 * norm)
    assert millions == cfg.embedding.vocab * d + encoder + decoder


@pytest.mark.rotates
@pytest.mark.parametrize("norm_position", only(["pre", "post"], "post"))
def test_incremental_logits_equal_parallel_ones(norm_position, batch):
    model = Seq2Seq(narrow(small(), norm_position=norm_position), rngs=nnx.Rngs(0))
    source, target, lengths = batch
    full = model(source, target, lengths)
    cache = model.init_cache(model.encode(source, lengths), lengths, 8)
    for t in range(target.shape[1]):
        logits, cache = model.step(cache, target[:, t])
        np.testing.assert_allclose(logits, full[:, t], rtol=1e-4, atol=1e-5)


@pytest.mark.rotates
def test_padding_changes_nothing(model, batch):
    source, target, lengths = batch
    padded = jnp.concatenate([source, jnp.full((3, 4), 9)], axis=1)
    np.testing.assert_allclose(model(padded, target, lengths), model(source, target, lengths), rtol=1e-4, atol=1e-5)
    alone = model(source[1:2, :5], target[1:2])
    np.testing.assert_allclose(alone, model(source, target, lengths)[1:2], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_an_empty_source_gives_finite_logits_and_gradients(model, batch):
    source, target, _ = batch
    lengths = jnp.array([7, 0, 0])
    loss = lambda m: (m(source, target, lengths) ** 2).sum()  # noqa: E731
    value, grads = jax.value_and_grad(loss)(model)
    assert jnp.isfinite(value)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.rotates
def test_the_future_is_invisible(model, batch):
    source, target, lengths = batch
    changed = target.at[:, 4:].set(5)
    np.testing.assert_array_equal(model(source, target, lengths)[:, :4], model(source, changed, lengths)[:, :4])


@pytest.mark.rotates
def test_every_parameter_gets_a_gradient(model, batch):
    source, target, lengths = batch
    grads = jax.grad(lambda m: jax.nn.log_softmax(m(source, target, lengths))[..., 5].sum())(model)
    silent = [
        jax.tree_util.keystr(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(grads)
        if not jnp.any(jnp.abs(leaf) > 0)
    ]
    # A key's bias adds the same to every product of a query, which softmax ignores.
    assert [name for name in silent if "key.bias" not in name.replace("'].", ".")] == []


@pytest.mark.rotates
def test_dropout_needs_a_key(model, batch):
    plain, dropped = model(*batch), model(*batch, key=jax.random.key(0))
    assert jnp.array_equal(plain, model(*batch))
    assert not jnp.allclose(plain, dropped)


@pytest.mark.rotates
def test_reorder_moves_hypotheses_and_leaves_memory(model, batch):
    source, _, lengths = batch
    memory = model.encode(source, lengths)
    cache = model.init_cache(memory, lengths, 4, beams=2)
    rows = jnp.array([1, 0, 2, 3, 5, 4])
    tokens = jnp.arange(6) + 4
    _, cache = model.step(cache, tokens)
    moved = cache.reorder(rows)
    direct = model.init_cache(memory, lengths, 4, beams=2)
    _, direct = model.step(direct, tokens[rows])
    np.testing.assert_allclose(model.step(moved, tokens)[0], model.step(direct, tokens)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_decoding_a_batch_is_decoding_each_alone_and_traces_once(model, batch):
    source, _, lengths = batch
    for config in (Greedy(max_length=9, eos=2), Beam(max_length=9, eos=2, beams=3, n_best=3)):
        decode_batch.clear_cache()
        together = decode_batch(model, source, lengths, config=config, bos=1)
        again = decode_batch(model, source[::-1], lengths[::-1], config=config, bos=1)
        assert decode_batch._cache_size() == 1
        np.testing.assert_array_equal(again.tokens[::-1], together.tokens)
        alone = decode_batch(model, source[1:2, :5], lengths[1:2], config=config, bos=1)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[1])
        np.testing.assert_allclose(alone.scores[0], together.scores[1], rtol=1e-4)


@pytest.mark.slow
def test_training_memorises_a_batch():
    import optax

    model = Seq2Seq(narrow(small(), dropout=0.0), rngs=nnx.Rngs(0))
    source = jax.random.randint(jax.random.key(3), (4, 6), 4, 40)
    target = jnp.concatenate([jnp.ones((4, 1), int), source[:, ::-1]], axis=1)
    optimizer = optax.adam(3e-3)

    def loss(m):
        return optax.softmax_cross_entropy_with_integer_labels(m(source, target[:, :-1]), target[:, 1:]).mean()

    @jax.jit
    def step(m, state):
        value, grads = jax.value_and_grad(loss)(m)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(m, updates), state, value

    state = optimizer.init(model)
    for _ in range(150):
        model, state, value = step(model, state)
    assert value < 0.1


@pytest.mark.rotates
def test_golden_loss():
    """A change of initialisation, masking or arithmetic shows here."""
    model = Seq2Seq(small(), rngs=nnx.Rngs(0))
    source, target = (jnp.arange(24).reshape(2, 12) * k % 36 + 4 for k in (5, 7))
    logprobs = jax.nn.log_softmax(model(source, target[:, :-1], jnp.array([12, 9])))
    loss = -jnp.take_along_axis(logprobs, target[:, 1:, None], -1).mean()
    np.testing.assert_allclose(loss, 5.086131, rtol=1e-4)


def test_configs_that_cannot_work_say_why():
    with pytest.raises(ValueError, match="all parts must have one model width"):
        small(encoder=TrunkConfig(block=transformer_block(embed=64, heads=4, inner=8)))
    with pytest.raises(ValueError, match="the decoder must attend to the encoder"):
        small(decoder=transformer_tiny().encoder)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        with_fields(small(), depth=0)
    with pytest.raises(ValueError, match="sinusoidal positions need an even width, got D=5"):
        EmbeddingConfig(vocab=4, embed=5)


def test_learned_positions_have_an_end():
    cfg = narrow(small())
    cfg = replace(cfg, embedding=replace(cfg.embedding, position="learned", max_length=5))
    with pytest.raises(ValueError, match="the input is longer than the positions: 7 tokens, 5 positions"):
        Seq2Seq(cfg, rngs=nnx.Rngs(0))(jnp.ones((1, 7), int), jnp.ones((1, 2), int))


@pytest.mark.slow
@pytest.mark.parametrize(("tied", "norm_position"), share(product([True, False], ["pre", "post"]), 0, of=4))
def test_a_model_laid_out_for_decoding_is_the_model(norm_position, tied, batch):
    model = Seq2Seq(replace(narrow(small(), norm_position=norm_position), tied_output=tied), rngs=nnx.Rngs(0))
    source, _, lengths = batch
    for config in (Greedy(max_length=40, eos=()), Beam(max_length=40, eos=2, beams=3, n_best=2)):
        expected = decode_batch(model, source, lengths, config=config, bos=1)
        found = decode_batch(model.for_decoding(), source, lengths, config=config, bos=1)
        np.testing.assert_array_equal(found.tokens, expected.tokens)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


@pytest.mark.slow
def test_a_single_sentence_decodes_as_in_a_batch(model, batch):
    source, _, lengths = batch
    for config in (Greedy(max_length=6, eos=()), Beam(max_length=6, eos=2, beams=3, n_best=3)):
        together = decode_batch(model, source, lengths, config=config, bos=1)
        alone = decode_batch(model, source[:1], lengths[:1], config=config, bos=1)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[0])


@pytest.mark.rotates
@pytest.mark.parametrize(("rows", "beams"), share(product([1, 3], [1, 4]), 0, of=3))
def test_no_step_copies_the_cache(rows, beams):
    """A loop that copies its cache costs what the cache has room for; 48 positions are like no other axis here."""
    model = nnx.eval_shape(lambda: Seq2Seq(small(), rngs=nnx.Rngs(0)).for_decoding())
    limits = {"max_length": 30, "eos": 2}
    config = Beam(**limits, beams=beams) if beams > 1 else Greedy(**limits)
    source = jax.ShapeDtypeStruct((rows, 7), "int32")
    lowered = decode_batch.lower(model, source, jax.ShapeDtypeStruct((rows,), "int32"), config=config, bos=1)
    hlo = lowered.compile().as_text()
    width = small().decoder.block.attention.width
    entries = 30 * beams
    shapes = (f"{width},{entries}]", f"{entries},{width}]")
    body = hlo[: hlo.index("\nENTRY ")]
    copies = [
        line for line in body.splitlines() if " copy(" in line and any(s in line.split(" copy(")[0] for s in shapes)
    ]
    assert copies == []
