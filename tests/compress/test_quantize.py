"""Quantization of models: what is observed, which rules count, GPTQ, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.compress import Quantization, Quantized, observe, quantize_model
from flax_transformer.compress.gptq import gptq
from flax_transformer.compress.kernel import is_table, kernels_of, linear_kernels, lookup_tables
from flax_transformer.compress.statistics import BINS, bin_edges, input_range, statistics_of
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn.linear import Linear
from flax_transformer.ops import capture
from flax_transformer.parallel import path_name

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 40, (3, 12)))


@pytest.fixture(scope="module")
def model():
    return gpt2_tiny(vocab=40).build(nnx.Rngs(0))


def run(model, tokens):
    return model(tokens)


@pytest.mark.rotates
def test_sums_of_all_layers_come_out_of_a_scan(model):
    found = observe(model, run, [TOKENS, TOKENS[:2]], products=True)
    assert set(found) == set(linear_kernels(model))
    up = found["trunk.blocks.feedforward.up.kernel"]
    assert up.count.tolist() == [60] * 4
    assert up.products.shape == (4, 128, 128)
    np.testing.assert_allclose(up.largest.sum(-1), 60 * 128)
    # By hand: what the layer is given is the residual stream after attention, normalised.
    _, hidden = capture(run, "hidden_states")(model, TOKENS)
    assert hidden[0].shape[0] == 4
    x = np.concatenate([np.asarray(inputs_of(model, tokens)) for tokens in (TOKENS, TOKENS[:2])], axis=1)
    np.testing.assert_allclose(up.products[0], x[0].T @ x[0], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(up.magnitude[0], np.abs(x[0]).sum(0), rtol=1e-4, atol=1e-3)


def inputs_of(model, tokens):
    """Compute what the first layer's feed-forward is given."""
    block = jax.tree.map(lambda leaf: leaf[0], model.trunk.blocks)
    x = model.embedding(tokens)
    from flax_transformer.ops import Mask

    x = x + block.attention(block.attention_residual.norm(x), mask=Mask(causal=True))
    return block.feedforward_residual.norm(x).reshape(1, -1, 128)


def test_ranges_are_as_histograms_say():
    x = jnp.asarray(np.random.default_rng(1).normal(size=(400, 50)), jnp.float32).at[0, 0].set(100.0)
    found = statistics_of(x)
    largest = float(input_range(found, "absmax"))
    assert 100 <= largest <= 100 * 2 ** (33 / BINS) * 1.001
    assert 2 < float(input_range(found, "percentile", percentile=99.0)) < 3
    best = float(input_range(found, "mse"))
    assert 3 < best < 100
    errors = {edge: squared(np.asarray(x), edge) for edge in (best, best / 2, best * 2, largest)}
    assert min(errors, key=errors.get) == best
    assert bin_edges().shape == (BINS,)


def squared(x, largest):
    scale = largest / 127
    return ((x - np.clip(np.round(x / scale), -127, 127) * scale) ** 2).sum()


def logits(model, tokens=TOKENS):
    return np.asarray(run(model, tokens))


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("rule", "most"),
    [
        (Quantization(), 0.02), (Quantization(activations="int8"), 0.03),
        (Quantization(activations="int8", ranges="percentile"), 0.04), (Quantization(weights="float8_e4m3fn"), 0.06),
        (Quantization(weights="int4", group=32), 0.2), (Quantization(weights="nf4", group=64), 0.2),
        (Quantization(embeddings=True), 0.03),
    ],
)  # fmt: skip
def test_logits_stay_near(model, rule, most):
    statistics = observe(model, run, [TOKENS]) if rule.calibrated else None
    found = logits(quantize_model(model, rule, statistics))
    before = logits(model)
    assert 0 < np.linalg.norm(found - before) / np.linalg.norm(before) < most


@pytest.mark.rotates
def test_gptq_is_nearer_than_rounding_and_mse_nearer_than_the_largest(model):
    statistics = observe(model, run, [TOKENS], products=True)
    before = logits(model)
    errors = {
        method: np.linalg.norm(
            logits(quantize_model(model, Quantization(weights="int4", group=32, method=method), statistics)) - before
        )
        for method in ("round", "mse", "gptq")
    }
    assert errors["gptq"] < 0.8 * errors["round"]
    kernel = kernels_of(model)["trunk.blocks.feedforward.up.kernel"]
    layer = Linear(128, 512, rngs=nnx.Rngs(0))
    layer.kernel[...] = kernel[0]

    def error(method):
        found = quantize_model(layer, Quantization(weights="int4", method=method)).kernel.get_value()
        return float(jnp.linalg.norm(found.dequantize() - kernel[0]))

    assert error("mse") < error("round")


@pytest.mark.parity
@pytest.mark.parametrize(("inputs", "group"), [(24, None), (24, 8), (32, 16)])
def test_gptq_is_that_of_qwix(inputs, group):
    from qwix._src.core import qarray
    from qwix.contrib import gptq_core

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(inputs, inputs)) @ rng.normal(size=(inputs, 100)), jnp.float32)
    kernel = jnp.asarray(rng.normal(size=(6, inputs)), jnp.float32)
    tiles = {} if group is None else {1: group}
    how = qarray.HowToQuantize(qtype=jnp.int4, channelwise_axes=(0,), tiled_axes=tiles)
    theirs, _ = gptq_core.quantize_weight(kernel, x @ x.T, how)
    values, scales = gptq(kernel, x @ x.T, kind="int4", group=group, scale_dtype="float32")
    np.testing.assert_array_equal(np.asarray(values, np.int32), np.asarray(theirs.qvalue, np.int32))
    np.testing.assert_allclose(scales, theirs.scale, rtol=1e-6)


def test_the_first_rule_that_takes_a_kernel_counts(model):
    rules = Quantization(weights="int4", group=32, pattern="feedforward"), Quantization()
    found = kernels_of(quantize_model(model, rules))
    assert {path: each.kind for path, each in found.items() if isinstance(each, Quantized)} == {
        path: "int4" if "feedforward" in path else "int8" for path in linear_kernels(model)
    }
    assert not isinstance(found["embedding.token.embedding"], Quantized)
    assert list(lookup_tables(model)) == ["embedding.position.embedding", "embedding.token.embedding"]


def test_tables_are_rounded_row_by_row(model):
    found = quantize_model(model, Quantization(embeddings=True, pattern="position"))
    assert {path for path, each in kernels_of(found).items() if isinstance(each, Quantized)} == {
        "embedding.position.embedding"
    }
    whole = model.embedding.position.embedding[: TOKENS.shape[1]]
    error = np.abs(np.asarray(found.embedding(TOKENS) - model.embedding(TOKENS)))
    assert error.max() > 0
    assert (error <= np.abs(whole).max(-1, keepdims=True) / 127).all()  # the scale is rounded too
    both = Quantization(weights=None, pattern="position"), Quantization(embeddings=True)
    kinds = {path: type(each) for path, each in kernels_of(quantize_model(model, both)).items() if is_table(path)}
    assert kinds["embedding.token.embedding"] is Quantized
    assert kinds["embedding.position.embedding"] is not Quantized


def test_bias_norms_and_axes_stay(model):
    changed = quantize_model(model, Quantization())
    whole = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(changed):
        if path_name(path) in whole:
            assert leaf is whole[path_name(path)]
    own = changed.trunk.blocks.feedforward.up.kernel.get_metadata().get("out_sharding")
    assert own == model.trunk.blocks.feedforward.up.kernel.get_metadata().get("out_sharding")


REFUSED = {
    "groups": (Quantization(group=48), "feedforward.* groups must divide the inputs|groups must divide"),
    "gptq": (Quantization(weights="int4", method="gptq"), "gptq needs calibration data that reach every layer"),
    "ranges": (Quantization(activations="int8", ranges="mse"), "ranges='mse' needs calibration data"),
    "nothing": (Quantization(pattern="nowhere"), "rules must take a kernel of a linear layer, there are"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_it_begins(model, name):
    rule, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        quantize_model(model, rule)


def test_a_model_is_quantized_once_and_calibrated_on_something(model):
    with pytest.raises(ValueError, match=r"a model is quantized once, .* is a Quantized already"):
        quantize_model(quantize_model(model, Quantization()), Quantization())
    with pytest.raises(ValueError, match="calibration needs at least one batch, got none"):
        observe(model, run, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": 0}, "group must be at least 1 input, got 0"),
        ({"ranges": "absmax"}, "are of activations, which are not quantized"),
        ({"weights": "nf4", "method": "gptq"}, "gptq rounds to int8 or int4, got weights='nf4'"),
        ({"weights": "nf4", "activations": "int8"}, "multiplied as floats: activations must be None"),
        ({"percentile": 0.0}, "percentile must be in"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Quantization(**options)
