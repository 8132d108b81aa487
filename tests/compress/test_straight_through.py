"""Quantization-aware training: forward of rounded kernels, the gradient of whole ones, and what a run exports."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.compress.kernel import linear_kernels
from flax_transformer.compress.straight_through import DECAY, round_in_training, rounded_in_passing, settle
from flax_transformer.hub.quantized.model import dequantize_model, quantized_kernels
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.ops import Mask, activation
from flax_transformer.task.experiment import train
from flax_transformer.task.run import open_run
from flax_transformer.train import ScheduleConfig
from flax_transformer.train.carry import Carry, Carrying, carry_of
from flax_transformer.train.folder import PACKAGES
from flax_transformer.train.state import new_state
from flax_transformer.train.step import make_train_step
from tests.examples import DNA, records

pytestmark = pytest.mark.proves("kernels of few bits", "training with them: forward of the export, bit for bit")

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 40, (3, 12)))
RULES = {
    "int8": Quantization(), "int4": Quantization(weights="int4", group=8),
    "dynamic": Quantization(activations="int8"), "float8": Quantization(weights="float8_e4m3fn"),
}  # fmt: skip


@pytest.fixture(scope="module")
def model():
    return with_fields(gpt2_tiny(vocab=40, dropout=0.0), embed=16, heads=2, inner=24, depth=2).build(nnx.Rngs(0))


def loss(model):
    return (model(TOKENS) ** 2).mean()


@pytest.mark.rotates
@pytest.mark.parametrize("name", RULES)
def test_the_forward_pass_is_that_of_the_rounded_model_bit_for_bit(model, name):
    passing = jax.jit(lambda m: rounded_in_passing(m, RULES[name])(TOKENS))(model)
    rounded = jax.jit(lambda m: m(TOKENS))(quantize_model(model, RULES[name]))
    np.testing.assert_array_equal(passing, rounded)


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["int8", "int4", "float8"])
def test_the_gradient_is_that_of_the_whole_model_with_rounded_kernels(model, name):
    ours = jax.grad(lambda m: loss(rounded_in_passing(m, RULES[name])))(model)
    whole = jax.grad(loss)(dequantize_model(quantize_model(model, RULES[name])))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.rotates
def test_training_makes_up_for_rounding(model):
    rule, goal = Quantization(weights="int4"), model(TOKENS)

    def far(m):
        return ((m(TOKENS) - goal) ** 2).mean()

    @jax.jit
    def step(model, state):
        change, state = adam.update(jax.grad(lambda m: far(rounded_in_passing(m, rule)))(model), state)
        return optax.apply_updates(model, change), state

    adam, trained = optax.adam(1e-3), model
    state = adam.init(trained)
    for _ in range(100):
        trained, state = step(trained, state)
    assert far(quantize_model(trained, rule)) < 0.5 * far(quantize_model(model, rule))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Quantization(weights="int4", method="gptq"), "training rounds to the nearest, .* got gptq and dynamic"),
        (Quantization(weights="int4", method="awq"), "got awq and dynamic"),
        (Quantization(activations="int8", ranges="mse"), "got round and mse"),
        (Quantization(embeddings=True), "embeddings must be False"),
        (Quantization(pattern="nowhere"), "a rule must take a kernel"),
    ],
)
def test_rules_that_cannot_be_trained_are_refused(model, rule, message):
    with pytest.raises(ValueError, match=message):
        rounded_in_passing(model, rule)


@pytest.mark.rotates
def test_a_run_exports_what_it_tested(tmp_path):
    rule = Quantization(weights="int4", group=16, activations="int8")
    short = replace(DNA, quantization=rule, train=replace(DNA.train, steps=40, eval_every=40))
    train(short, tmp_path)
    exported = hub.load(tmp_path / "export")
    assert {each.kind for each in quantized_kernels(exported.model).values()} == {"int4"}
    test = records(tmp_path)[-1]
    pieces = short.data.read("test")
    ids = exported.tokenizer(list(pieces["text"]), max_length=64, truncate=True)
    found = np.asarray(exported(input_ids=ids["input_ids"], attention_mask=ids["attention_mask"]).logits).argmax(-1)
    assert 100 * test["accuracy"] == pytest.approx(100 * (found == np.array(pieces["label"])).mean(), abs=0.3)


STATIC = Quantization(activations="int8", ranges="absmax")


def squares(model, batch, *, key=None):
    y = model(batch["tokens"])
    return (y**2).sum(), {"count": jnp.float32(len(y))}


@pytest.fixture(scope="module", params=[False, True], ids=["loop", "unrolled"])
def layers(request):
    config = with_fields(gpt2_tiny(vocab=40, dropout=0.0), embed=16, heads=2, inner=24, depth=2, unroll=request.param)
    return config.build(nnx.Rngs(0))


@pytest.mark.rotates
def test_ranges_follow_the_largest_input_of_every_step(layers):
    objective = round_in_training(squares, STATIC)
    step = jax.jit(make_train_step(objective, optax.sgd(0.0)))
    state = new_state(layers, optax.sgd(0.0), False, jax.random.key(0), carry_of(objective))
    batches, peaks = [{"tokens": TOKENS}, {"tokens": TOKENS[::-1] + 1}, {"tokens": TOKENS[:, ::-1]}], []
    expected = None
    for batch in batches:
        # What layers are given depends on the ranges of those before them, so it is observed on the model as it is.
        known = state.carried["range"]
        passing = rounded_in_passing(layers, STATIC, known)
        down = peak_of(passing, batch["tokens"])
        expected = down if expected is None else expected + (1 - DECAY) * (down - expected)
        state, _ = step(state, batch)
        peaks.append(down)
    np.testing.assert_allclose(state.carried["range"]["trunk.blocks.feedforward.down"], expected, rtol=1e-4)
    assert np.abs(np.diff(peaks, axis=0)).max() > 1e-3
    assert all((peak == 0).all() for peak in state.carried["peak"].values())


def peak_of(model, tokens):
    """Compute the largest input of the second layer of feed-forward, layer by layer, by hand."""
    x, peaks = model.embedding(tokens), []
    for layer in range(2):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], model.trunk.blocks)
        x = x + block.attention(block.attention_residual.norm(x), mask=Mask(causal=True))
        hidden = activation(block.feedforward.cfg.activation)(block.feedforward.up(block.feedforward_residual.norm(x)))
        peaks.append(float(jnp.abs(hidden).max()))
        x = x + block.feedforward.down(hidden)
    return np.array(peaks)


@pytest.mark.rotates
def test_with_ranges_the_forward_pass_is_that_of_the_export_bit_for_bit(layers):
    ranges = {path.removesuffix(".kernel"): jnp.full(2, 1.5) for path in linear_kernels(layers)}
    rule = replace(STATIC, pattern="trunk")
    passing = jax.jit(lambda m: rounded_in_passing(m, rule, ranges)(TOKENS))(layers)
    settled = settle(layers, rule, ranges)
    np.testing.assert_array_equal(passing, jax.jit(lambda m: m(TOKENS))(settled))
    assert {each.activations for each in quantized_kernels(settled).values()} == {"int8"}
    for each in quantized_kernels(settled).values():
        np.testing.assert_allclose(each.input_scale, [1.5 / 127] * 2)
    # Inputs beyond the range get no gradient.
    gradient = jax.grad(lambda x: rounded_in_passing(one_layer(), STATIC, {"": jnp.float32(1.0)})(x).sum())
    assert (gradient(jnp.array([[0.5, 2.0, -0.9, -1.1]])) == 0).tolist() == [[False, True, False, True]]


def one_layer():
    layer = Linear(4, 3, rngs=nnx.Rngs(0))
    layer.kernel[...] = jnp.ones((4, 3))
    return layer


@pytest.mark.rotates
def test_a_batch_in_parts_carries_the_same_ranges(layers):
    objective = round_in_training(squares, STATIC)
    batch = {"tokens": jnp.concatenate([TOKENS, TOKENS[:, ::-1]])[:4]}
    states = []
    for parts in (1, 2):
        state = new_state(layers, optax.sgd(0.1), False, jax.random.key(0), carry_of(objective))
        # The first step takes each part's own range; from the second on they are known.
        state = replace(state, carried={"range": {k: v + 2.0 for k, v in state.carried["range"].items()},
                                        "peak": state.carried["peak"]})  # fmt: skip
        states.append(jax.jit(make_train_step(objective, optax.sgd(0.1), accumulate=parts))(state, batch)[0])
    for one, other in zip(*(jax.tree.leaves((each.model, each.carried)) for each in states), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_ranges_beside_another_state_are_refused():
    carrying = Carrying(squares, Carry(begin=lambda model, key: jnp.zeros(())))
    with pytest.raises(ValueError, match="ranges must be dynamic for an objective that carries state, got 'absmax'"):
        round_in_training(carrying, STATIC)


@pytest.mark.slow
def test_a_run_with_ranges_exports_what_it_tested_and_is_resumed(tmp_path):
    rule = replace(STATIC, pattern="feedforward")
    config = replace(DNA.train, steps=40, eval_every=20, checkpoint_every=20)
    steady = replace(DNA.optimizer, schedule=ScheduleConfig(name="constant"))
    recipe = replace(DNA, quantization=rule, optimizer=steady, train=config)
    train(recipe, tmp_path / "whole")
    train(replace(recipe, train=replace(config, steps=20)), tmp_path / "resumed")
    train(recipe, tmp_path / "resumed")
    one, other = (hub.load(tmp_path / name / "export") for name in ("whole", "resumed"))
    kernels = quantized_kernels(one.model)
    assert all((np.asarray(each.input_scale) > 0).all() for each in kernels.values())
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(one.model), jax.tree.leaves(other.model))
    opened = open_run(tmp_path / "whole", packages=(*PACKAGES, "classify_dna"))
    for path, each in quantized_kernels(opened.model).items():
        np.testing.assert_array_equal(each.values, kernels[path].values)
        np.testing.assert_array_equal(each.input_scale, kernels[path].input_scale)
