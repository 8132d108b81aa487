"""What a training state refuses: parameters that are trained in fewer bits than float32."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from optax import contrib

from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import with_precision
from flax_transformer.train.finetune import adopt_state, train_only
from flax_transformer.train.lora import Adapted, LoraConfig, adapt, init_lora
from flax_transformer.train.optimizer import OptimizerConfig, make_optimizer
from flax_transformer.train.schedule import ScheduleConfig
from flax_transformer.train.state import abstract_state, init_state, moving_average
from flax_transformer.train.step import jit_train_step, make_train_step

NARROW = ("bfloat16", "float16", "float8_e4m3fn")


def optimizer(**options):
    return make_optimizer(OptimizerConfig(schedule=ScheduleConfig(name="constant"), **options), 10)


def model(dtype="float32", head="float32"):
    draw = lambda seed, *shape: jax.random.normal(jax.random.key(seed), shape)  # noqa: E731
    return {
        "encoder": {"up": {"kernel": draw(0, 2, 6, 6).astype(dtype), "bias": jnp.zeros((2, 6), dtype)}},
        "head": {"kernel": draw(1, 6, 3).astype(head)},
    }


def error(model, batch, *, key=None):
    h = batch["x"]
    for i in range(2):
        h = jnp.tanh(h @ model["encoder"]["up"]["kernel"][i] + model["encoder"]["up"]["bias"][i])
    return jnp.sum((h @ model["head"]["kernel"] - 1).astype(jnp.float32) ** 2), {"count": jnp.float32(4)}


ROWS = {"x": np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)}
OPTIMIZERS = {
    **{name: partial(optimizer, name=name) for name in ("adam", "adafactor", "lion", "muon", "rmsprop")},
    "sgd": partial(optimizer, name="sgd", momentum=0.0),
    "part": partial(optimizer, name="sgd", momentum=0.0, trainable="encoder"),
    "optax.adamw": lambda: optax.adamw(1e-3),
    "optax.sgd": lambda: optax.sgd(1e-3),
    "optax.contrib.muon": lambda: contrib.muon(1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_parameters_below_float32_are_not_trained(name):
    with pytest.raises(
        ValueError, match=r"must be kept in float32, got encoder.up.\w+ in bfloat16 and .*precision.params"
    ):
        jax.eval_shape(lambda: adopt_state(model("bfloat16"), OPTIMIZERS[name](), jax.random.key(0)))


@pytest.mark.parametrize("dtype", NARROW)
def test_one_narrow_parameter_is_named(dtype):
    with pytest.raises(ValueError, match=f"got head.kernel in {dtype}: let precision.params be float32"):
        jax.eval_shape(lambda: adopt_state(model(head=dtype), optimizer(), jax.random.key(0)))


@pytest.mark.parametrize("params", ["bfloat16", "float16"])
def test_a_config_with_narrow_parameters_is_refused_for_training(params):
    config = with_precision(transformer_tiny(vocab=16), params=params, compute=params)
    with pytest.raises(ValueError, match=f"got decoder.blocks.attention.key.bias in {params} and "):
        abstract_state(lambda key: Seq2Seq(config, rngs=nnx.Rngs(key)), optimizer())
    wide = with_precision(config, params="float32")
    state = abstract_state(lambda key: Seq2Seq(wide, rngs=nnx.Rngs(key)), optimizer(), ema=True)
    assert {leaf.dtype for leaf in jax.tree.leaves((state.opt_state, state.ema)) if leaf.ndim} == {jnp.dtype("float32")}


@pytest.mark.parametrize("dtype", NARROW[:2])
def test_what_is_frozen_may_be_narrow(dtype):
    """And is the same after a step, to the bit, in the model and in its average."""
    mixed = model(dtype)
    state = adopt_state(jax.tree.map(jnp.copy, mixed), optimizer(trainable="head"), jax.random.key(0), ema=True)
    step = jax.jit(make_train_step(error, optimizer(trainable="head"), ema=0.9))
    for _ in range(3):
        state, metrics = step(state, ROWS)
    assert np.isfinite(metrics["loss"])
    for tree in (state.model, state.ema):
        jax.tree.map(np.testing.assert_array_equal, tree["encoder"], mixed["encoder"])
        assert tree["encoder"]["up"]["kernel"].dtype == dtype
        assert not np.array_equal(tree["head"]["kernel"], mixed["head"]["kernel"])
        assert tree["head"]["kernel"].dtype == jnp.float32


@pytest.mark.rotates
def test_low_rank_factors_train_on_a_base_in_bfloat16():
    base = model("bfloat16", head="bfloat16")
    lora = init_lora(base, LoraConfig(rank=2, pattern="kernel$"), jax.random.key(0))
    only = optimizer(trainable=r"^lora\.", learning_rate=0.1)
    before = jax.tree.map(np.asarray, base)
    state = adopt_state(Adapted(base, lora), only, jax.random.key(0), ema=True)
    step = jax.jit(make_train_step(adapt(error), only, ema=0.9))
    state, first = step(state, ROWS)
    for _ in range(4):
        state, last = step(state, ROWS)
    assert last["loss"] < first["loss"]
    jax.tree.map(np.testing.assert_array_equal, state.model.base, before)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.model.lora)} == {jnp.dtype("float32")}


def test_a_narrow_model_is_no_obstacle_where_nothing_is_trained():
    adopt_state(model("bfloat16"), optax.set_to_zero(), jax.random.key(0))
    with pytest.raises(ValueError, match=r"got encoder.up.bias in bfloat16 and 1 more"):
        jax.eval_shape(train_only("encoder", optax.sgd(0.1)).init, model("bfloat16"))


def test_an_average_of_what_stays_is_what_stays():
    parameters = {"kernel": jnp.linspace(-3, 5, 101)}
    average = parameters
    for step in (1, 2, 1_000, 10**6):
        average = jax.jit(partial(moving_average, decay=0.999))(average, parameters, step=step)
    np.testing.assert_array_equal(average["kernel"], parameters["kernel"])


def test_an_average_forgets_the_beginning_of_a_short_run_and_at_its_decay_in_a_long_one():
    at = lambda step: float(moving_average(jnp.zeros(()), jnp.ones(()), 0.999, step))  # noqa: E731
    assert at(1) == 1
    assert at(2) == pytest.approx(9 / 12, rel=1e-5)
    assert at(120) == pytest.approx(9 / 130, rel=1e-5)
    assert at(10**6) == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("begin", ["init", "adopt"])
def test_parameters_made_of_python_s_numbers_cost_no_second_program(begin):
    weak = lambda: {"w": jnp.full((6,), 0.1), "scale": jnp.full((), 2.0)}  # noqa: E731
    assert all(jax.typeof(leaf).weak_type for leaf in jax.tree.leaves(weak()))
    rule = optax.sgd(1e-2, momentum=0.9)
    if begin == "init":
        state = init_state(lambda key: weak(), rule, jax.random.key(0), ema=True)
    else:
        state = adopt_state(weak(), rule, jax.random.key(0), ema=True)

    def loss(model, batch, *, key=None):
        return jnp.sum((batch["x"] @ model["w"] * model["scale"]) ** 2), {"count": jnp.float32(4)}

    step = jit_train_step(make_train_step(loss, rule, ema=0.9), state)
    for _ in range(2):
        state, _ = step(state, ROWS)
    assert step._cache_size() == 1
