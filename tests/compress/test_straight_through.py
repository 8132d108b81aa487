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
from flax_transformer.compress.straight_through import rounded_in_passing
from flax_transformer.hub.quantized.model import dequantize_model, quantized_kernels
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.task.experiment import train
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


@pytest.mark.parametrize("name", RULES)
def test_the_forward_pass_is_that_of_the_rounded_model_bit_for_bit(model, name):
    passing = jax.jit(lambda m: rounded_in_passing(m, RULES[name])(TOKENS))(model)
    rounded = jax.jit(lambda m: m(TOKENS))(quantize_model(model, RULES[name]))
    np.testing.assert_array_equal(passing, rounded)


@pytest.mark.parametrize("name", ["int8", "int4", "float8"])
def test_the_gradient_is_that_of_the_whole_model_with_rounded_kernels(model, name):
    ours = jax.grad(lambda m: loss(rounded_in_passing(m, RULES[name])))(model)
    whole = jax.grad(loss)(dequantize_model(quantize_model(model, RULES[name])))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


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
        (Quantization(activations="int8", ranges="mse"), "got round and mse"),
        (Quantization(embeddings=True), "embeddings must be False"),
        (Quantization(pattern="nowhere"), "a rule must take a kernel"),
    ],
)
def test_rules_that_cannot_be_trained_are_refused(model, rule, message):
    with pytest.raises(ValueError, match=message):
        rounded_in_passing(model, rule)


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
