"""The training step: accumulation, moving average, keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, TrunkConfig, transformer_block
from flax_transformer.objective import TokenLoss
from flax_transformer.train.checkpoint import Checkpoints
from flax_transformer.train.state import init_state, parameter_count
from flax_transformer.train.step import jit_train_step, make_train_step
from tests.batch import taught

pytestmark = pytest.mark.proves("training", "accumulation, averages, NaN guard")


def translator():
    block = {"embed": 16, "heads": 2, "inner": 32}
    config = Seq2SeqConfig(
        embedding=EmbeddingConfig(vocab=40, embed=16),
        encoder=TrunkConfig(block=transformer_block(**block), depth=2),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=2),
    )
    return Seq2Seq(config, rngs=nnx.Rngs(0))


def sentences():
    random = np.random.default_rng(0)
    length = random.integers(2, 9, 8).astype(np.int32)
    tokens = lambda width: random.integers(3, 40, (8, width), np.int32)  # noqa: E731
    return taught(tokens(8), length, tokens(9), length[::-1])


def objective(model, batch, *, key, noise=0.0):
    """A small nonlinear regression whose rows count differently, with noise on its inputs."""
    x, y, weight = batch["x"], batch["y"], batch["weight"]
    x = x + noise * jax.random.normal(key, x.shape)
    error = jnp.sum((jnp.tanh(x @ model["kernel"]) - y) ** 2, axis=-1)
    return jnp.sum(error * weight), {"count": jnp.sum(weight), "error": jnp.sum(error * weight)}


def rows():
    random = np.random.default_rng(0)
    draw = lambda *shape: random.normal(size=shape).astype(np.float32)  # noqa: E731
    return {"x": draw(8, 5), "y": draw(8, 3), "weight": np.arange(8, dtype=np.float32)}


def state_of(**options):
    init = lambda key: {"kernel": jax.random.normal(key, (5, 3))}  # noqa: E731
    return init_state(init, optax.sgd(0.1), jax.random.key(0), **options)


def step_of(noise=0.0, rate=0.1, **options):
    return jax.jit(make_train_step(functools.partial(objective, noise=noise), optax.sgd(rate), **options))


def close(found, expected, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), found, expected)


@pytest.mark.rotates
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_accumulation_equals_the_whole_batch(parts):
    whole, metrics = step_of()(state_of(), rows())
    split, others = step_of(accumulate=parts)(state_of(), rows())
    close(split.model, whole.model, rtol=0, atol=1e-6)
    close(others, metrics, rtol=1e-6)


@pytest.mark.slow
def test_accumulation_equals_the_whole_batch_for_a_translator():
    model = translator()

    @functools.partial(jax.jit, static_argnums=2)
    def after_a_step(model, batch, parts):
        state = init_state(lambda key: model, optax.sgd(0.1), jax.random.key(0))
        new, metrics = make_train_step(TokenLoss(), optax.sgd(0.1), accumulate=parts)(state, batch)
        return new.model, metrics

    (whole, metrics), (split, others) = (after_a_step(model, sentences(), parts) for parts in (1, 4))
    close(split, whole, rtol=0, atol=1e-6)
    close(others, metrics, rtol=1e-6)
    assert float(metrics["count"]) == sentences()["weights"].sum()


def test_accumulation_that_does_not_divide_names_both_numbers():
    with pytest.raises(ValueError, match="got 8 rows in 3 parts"):
        jax.eval_shape(step_of(accumulate=3), state_of(), rows())


def test_loss_and_update_are_those_of_the_mean():
    state, batch = state_of(), rows()
    mean = lambda kernel: (  # noqa: E731
        jnp.sum(batch["weight"] * jnp.sum((jnp.tanh(batch["x"] @ kernel) - batch["y"]) ** 2, -1)) / 28
    )
    loss, gradient = jax.value_and_grad(mean)(state.model["kernel"])
    new, metrics = step_of()(state, batch)
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-6)
    assert float(metrics["error"]) == pytest.approx(float(loss), rel=1e-6)
    assert float(metrics["gradient_norm"]) == pytest.approx(float(jnp.linalg.norm(gradient)), rel=1e-5)
    close(new.model["kernel"], state.model["kernel"] - 0.1 * gradient, rtol=1e-5, atol=1e-7)


def test_a_batch_of_padding_alone_changes_nothing():
    batch = {**rows(), "weight": np.zeros(8, np.float32)}
    new, metrics = step_of()(state_of(), batch)
    close(new.model, state_of().model, rtol=0)
    assert float(metrics["loss"]) == 0


@pytest.mark.parametrize("decay", [0.2, 0.9999])
def test_moving_average_ramps_its_decay(decay):
    """It is min(d, (1 + t) / (10 + t)); nothing of the parameters before the first step is in it."""
    state, step = state_of(ema=True), step_of(ema=decay)
    average = 0.0
    for t in range(1, 5):
        state, _ = step(state, rows())
        d = min(decay, (1 + t) / (10 + t)) if t > 1 else 0.0
        average = d * average + (1 - d) * np.asarray(state.model["kernel"], np.float64)
        close(state.ema["kernel"], average, rtol=1e-5, atol=1e-6)


def test_a_step_draws_its_key_from_the_step_number():
    """So that a resumed run draws the numbers it would have drawn."""
    state, step = state_of(), step_of(noise=0.5, rate=0.0)
    once, first = step(state, rows())
    twice, second = step(once, rows())
    _, again = step(once, rows())
    assert float(first["loss"]) != float(second["loss"])
    assert float(second["loss"]) == float(again["loss"])
    assert int(twice.step) == 2
    assert (jax.random.key_data(twice.key) == jax.random.key_data(state.key)).all()


def test_the_step_compiles_once_and_reuses_the_old_state():
    state = state_of()
    step = jit_train_step(make_train_step(objective, optax.sgd(0.1)), state)
    old = state.model["kernel"]
    for _ in range(3):
        state, _ = step(state, rows())
    assert step._cache_size() == 1
    assert old.is_deleted()


def test_a_restored_state_runs_the_program_already_compiled(tmp_path):
    state, step = state_of(), step_of()
    step(state, rows())
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(0, state, {})
        restored, _ = checkpoints.restore(jax.eval_shape(state_of))
        again, _ = checkpoints.restore(state)
    for other in (restored, again):
        step(other, rows())
    assert step._cache_size() == 1


def test_parameters_are_counted_on_abstract_models():
    assert parameter_count(jax.eval_shape(state_of).model) == 15
    assert parameter_count({"a": jnp.zeros((2, 3)), "b": jnp.zeros(4)}) == 10


@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_objective_without_a_count_is_told_what_it_lacks(accumulate):
    objective = lambda model, batch, *, key: (jnp.sum(batch * model), {"accuracy": jnp.sum(batch)})  # noqa: E731
    state = jax.eval_shape(lambda key: init_state(lambda key: jnp.ones(()), optax.sgd(0.1), key), jax.random.key(0))
    step = make_train_step(objective, optax.sgd(0.1), accumulate=accumulate)
    with pytest.raises(ValueError, match=r"an objective must report `count`.*got accuracy"):
        jax.eval_shape(step, state, jnp.ones((2, 3)))
