"""The training step: accumulation, moving average, rematerialisation, keys."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import BlockConfig, EmbeddingConfig
from flax_transformer.task.translation import translation_loss
from flax_transformer.train.state import init_state, parameter_count
from flax_transformer.train.step import jit_train_step, make_train_step


def config(dropout=0.0, **options):
    block = {"embed": 16, "heads": 2, "hidden": 32, "dropout": dropout}
    return Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=40, embed=16, dropout=dropout),
        encoder=BlockConfig(**block),
        decoder=BlockConfig(**block, cross=True),
        encoder_depth=2,
        decoder_depth=2,
        **options,
    )


def batch():
    random = np.random.default_rng(0)
    length = random.integers(2, 9, 8).astype(np.int32)
    tokens = lambda width: random.integers(3, 40, (8, width), np.int32)  # noqa: E731
    return {"source": tokens(8), "source_length": length, "target": tokens(9), "target_length": length[::-1].copy()}


def state_of(cfg, optimizer=None, **options):
    init = lambda key: Seq2Seq(cfg, rngs=nnx.Rngs(key))  # noqa: E731
    return init_state(init, optimizer or optax.sgd(0.1), jax.random.key(0), **options)


def close(found, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


@pytest.mark.parametrize("parts", [2, 4])
def test_accumulation_equals_the_whole_batch(parts):
    state = state_of(config())
    whole, metrics = jax.jit(make_train_step(translation_loss, optax.sgd(0.1)))(state, batch())
    split, others = jax.jit(make_train_step(translation_loss, optax.sgd(0.1), accumulate=parts))(state, batch())
    close(split.model, whole.model, rtol=0, atol=1e-6)
    close(others, metrics, rtol=1e-6)


def test_accumulation_that_does_not_divide_names_both_numbers():
    step = make_train_step(translation_loss, optax.sgd(0.1), accumulate=3)
    with pytest.raises(ValueError, match="got 8 rows in 3 parts"):
        jax.eval_shape(step, state_of(config()), batch())


def test_loss_is_the_mean_over_tokens():
    state = state_of(config())
    _, metrics = jax.jit(make_train_step(translation_loss, optax.sgd(0.1)))(state, batch())
    total, sums = jax.jit(translation_loss)(state.model, batch())
    assert float(sums["count"]) == batch()["target_length"].sum()
    assert float(metrics["loss"]) == pytest.approx(float(total) / float(sums["count"]), rel=1e-6)


def test_moving_average_follows_its_formula():
    state = state_of(config(), ema=True)
    step = jax.jit(make_train_step(translation_loss, optax.sgd(0.1), ema=0.75))
    average = jax.tree.map(np.asarray, state.model)
    for _ in range(3):
        state, _ = step(state, batch())
        average = jax.tree.map(lambda old, new: 0.75 * old + 0.25 * np.asarray(new), average, state.model)
    close(state.ema, average, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("remat", ["full", "dots"])
def test_rematerialisation_changes_no_gradient(remat):
    state = state_of(config(dropout=0.2))

    def gradient(cfg):
        model = nnx.merge(nnx.graphdef(Seq2Seq(cfg, rngs=nnx.Rngs(0))), nnx.state(state.model))
        loss = lambda m, rows: translation_loss(m, rows, key=jax.random.key(1))[0]  # noqa: E731
        return jax.jit(jax.grad(loss))(model, batch())

    expected, found = (jax.tree.leaves(gradient(config(dropout=0.2, remat=name))) for name in ("none", remat))
    close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_step_draws_its_key_from_the_step_number():
    """So that a resumed run draws the numbers it would have drawn."""
    state = state_of(config(dropout=0.3), optax.sgd(0.0))
    step = jax.jit(make_train_step(translation_loss, optax.sgd(0.0)))
    once, first = step(state, batch())
    twice, second = step(once, batch())
    _, again = step(once, batch())
    assert float(first["loss"]) != float(second["loss"])
    assert float(second["loss"]) == float(again["loss"])
    assert int(twice.step) == 2
    assert (jax.random.key_data(twice.key) == jax.random.key_data(state.key)).all()


def test_the_step_compiles_once_and_reuses_the_old_state():
    state = state_of(config())
    step = jit_train_step(make_train_step(translation_loss, optax.sgd(0.1)), state)
    old = jax.tree.leaves(state.model)[0]
    for _ in range(3):
        state, _ = step(state, batch())
    assert step._cache_size() == 1
    assert old.is_deleted()


def test_parameter_count_of_an_abstract_model():
    model = nnx.eval_shape(lambda: Seq2Seq(config(), rngs=nnx.Rngs(0)))
    assert parameter_count(model) == parameter_count(state_of(config()).model)
    assert parameter_count({"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)}) == 10
