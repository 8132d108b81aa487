"""Inputs that are scaled: outputs stay, the scales are those of the papers, and errors fall."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from qwix.contrib import awq_core

from flax_transformer import hub
from flax_transformer.compress import Quantization, observe, quantize_model
from flax_transformer.compress.input_scale import awq_scales, feeds, scale_inputs, smooth_scales
from flax_transformer.compress.statistics import statistics_of
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields

pytestmark = pytest.mark.proves("kernels of few bits", "AWQ and SmoothQuant: equal to the model, errors lower")

GOLDEN = Path(__file__).parent.parent / "hub" / "golden"
TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 40, (4, 12)))
PREPARED = {
    "gpt2": {"up": 1, "query": 3, "out": 1}, "llama": {"up": 2, "query": 3, "down": 1}, "bart": {"out": 1},
    "t5": {"down": 1, "query": 3}, "whisper": {"up": 1, "query": 1}, "vit": {"up": 1, "query": 3}, "bert": {"out": 1},
}  # fmt: skip
"""Of some families, kernels that can be scaled, and how many share their input."""


@pytest.mark.rotates
@pytest.mark.parametrize("family", PREPARED)
def test_outputs_stay_as_they_are(family):
    unchanged(family, PREPARED[family])


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({each.name for each in GOLDEN.iterdir() if each.is_dir()} - set(PREPARED)))
def test_outputs_of_every_family_stay_as_they_are(family):
    unchanged(family, {})


def unchanged(family, expected):
    whole = hub.load(GOLDEN / family)
    with np.load(GOLDEN / family / "expected.npz") as arrays:
        call = {name.removeprefix("in_"): value for name, value in arrays.items() if name.startswith("in_")}
    statistics = observe(whole.model, lambda model, call: replace(whole, model=model)(**call), [call])
    key, changed = jax.random.key(0), []

    def find(kernels, known):
        changed.append(kernels)
        return jnp.exp(jax.random.normal(jax.random.fold_in(key, len(changed)), known.magnitude.shape))

    scaled, other = scale_inputs(whole.model, statistics, find)
    for kernel, count in expected.items():
        assert any(path.endswith(f"{kernel}.kernel") and len(each) == count for each in changed for path in each), (
            kernel
        )
    for one, two in zip(
        jax.tree.leaves(whole(**call)), jax.tree.leaves(replace(whole, model=scaled)(**call)), strict=True
    ):
        np.testing.assert_allclose(one, two, rtol=2e-4, atol=2e-5)
    if not changed:
        return
    assert any(np.abs(np.asarray(a) - np.asarray(b)).max() > 0.1 for a, b in zip(
        jax.tree.leaves(whole.model), jax.tree.leaves(scaled), strict=True))  # fmt: skip
    again = observe(scaled, lambda model, call: replace(whole, model=model)(**call), [call])
    for path in {path for each in changed for path in each} & set(again):
        np.testing.assert_allclose(other[path].peak, again[path].peak, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def outliers():
    """A model of which some channels are a hundred times as large, as those of large language models are."""
    model = with_fields(gpt2_tiny(vocab=40, dropout=0.0), embed=32, heads=2, inner=64, depth=2).build(nnx.Rngs(0))
    for part in ("attention", "feedforward"):
        norm = getattr(model.trunk.blocks, f"{part}_residual").norm
        norm.scale[...] = norm.scale[...].at[:, ::8].mul(100.0)
        layer = getattr(model.trunk.blocks, part)
        for name in ("query", "key", "value") if part == "attention" else ("up",):
            kernel = getattr(layer, name).kernel
            kernel[...] = kernel[...].at[:, ::8].mul(0.02)
    return model, observe(model, lambda m, t: m(t), [TOKENS], products=True)


def error(model, rule, statistics):
    small = quantize_model(model, rule, statistics)
    return float(jnp.linalg.norm(small(TOKENS) - model(TOKENS)) / jnp.linalg.norm(model(TOKENS)))


@pytest.mark.rotates
def test_large_inputs_cost_less(outliers):
    dynamic = Quantization(activations="int8")
    smooth = replace(dynamic, method="smoothquant")
    assert error(outliers[0], smooth, outliers[1]) < 0.5 * error(outliers[0], dynamic, None)
    static = replace(dynamic, ranges="absmax")
    smooth = replace(static, method="smoothquant")
    assert error(outliers[0], smooth, outliers[1]) < 0.5 * error(outliers[0], static, outliers[1])
    nearest = Quantization(weights="int4", group=8)
    assert error(outliers[0], replace(nearest, method="awq"), outliers[1]) < 0.8 * error(*outliers[:1], nearest, None)


@pytest.mark.rotates
def test_a_range_is_that_of_the_scaled_inputs(outliers):
    model, statistics = outliers
    small = quantize_model(model, Quantization(activations="int8", ranges="absmax", method="smoothquant"), statistics)
    up = small.trunk.blocks.feedforward.up.kernel.get_value()
    kernel = model.trunk.blocks.feedforward.up.kernel[...]
    peak = statistics["trunk.blocks.feedforward.up.kernel"].peak
    scales = np.sqrt(np.asarray(peak) / np.abs(np.asarray(kernel)).max(-1))
    np.testing.assert_allclose(up.input_scale, (np.asarray(peak) / scales).max(-1) / 127, rtol=1e-5)
    norm = small.trunk.blocks.feedforward_residual.norm
    np.testing.assert_allclose(
        norm.scale[...], model.trunk.blocks.feedforward_residual.norm.scale[...] / scales, rtol=1e-5
    )
    # Behind a gelu nothing can be scaled: the kernel is rounded as it is.
    down = small.trunk.blocks.feedforward.down.kernel.get_value()
    plain = quantize_model(model, Quantization()).trunk.blocks.feedforward.down.kernel.get_value()
    np.testing.assert_array_equal(down.values, plain.values)


def test_scales_of_smoothquant_are_those_of_the_paper():
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    kernel = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    expected = np.abs(x).max(0) ** 0.75 / np.abs(kernel).max(1) ** 0.25
    kernel = jnp.asarray(kernel)
    np.testing.assert_allclose(smooth_scales(kernel, statistics_of(jnp.asarray(x)), 0.75), expected, rtol=1e-5)
    x[:, 2] = 0.0
    assert smooth_scales(kernel, statistics_of(jnp.asarray(x)))[2] == 1.0


@pytest.mark.rotates
@pytest.mark.parametrize(("weights", "group"), [("int4", 8), ("int8", None), ("int4", None)])
def test_scales_of_awq_are_those_of_qwix(weights, group):
    draws = np.random.default_rng(2)
    kernel = jnp.asarray(draws.normal(size=(2, 32, 12)), jnp.float32)
    mean = np.exp(1.5 * draws.normal(size=(2, 32))).astype(np.float32)
    # Inputs of which each is alone in its row: products of two are none, and errors are weighted by their squares.
    known = [replace(statistics_of(jnp.diag(each), products=True), count=jnp.float32(1)) for each in mean]
    found = awq_scales(kernel, jax.tree.map(lambda *leaves: jnp.stack(leaves), *known), weights, group)
    tiles = {} if group is None else {1: group}
    how = awq_core.qarray.HowToQuantize(
        qtype=weights, channelwise_axes=(0,), tiled_axes=tiles, calibration_method="absmax"
    )
    for scales, each, size in zip(found, kernel, mean, strict=True):
        theirs = awq_core.search_optimal_scales(each.T, jnp.asarray(size), how)[0]
        np.testing.assert_allclose(scales, theirs, rtol=1e-5)


def test_awq_chooses_by_the_error_of_outputs():
    """Of twenty powers the best by hand, with inputs that go together."""
    draws = np.random.default_rng(3)
    mix = draws.normal(size=(16, 16)) * np.exp(draws.normal(size=16))
    x = (draws.normal(size=(200, 16)) @ mix).astype(np.float32)
    kernel = draws.normal(size=(16, 10)).astype(np.float32)
    found = awq_scales(jnp.asarray(kernel), statistics_of(jnp.asarray(x), products=True), "int4")
    tried = []
    for ratio in np.linspace(0, 1, 20):
        scales = np.maximum(np.abs(x).mean(0) / np.abs(x).mean(0).max(), 1e-4) ** ratio
        scales /= np.sqrt(scales.max() * scales.min())
        wide = kernel * scales[:, None]
        step = np.abs(wide).max(0) / np.nextafter(np.float32(7.5), np.float32(0))  # −7.5 is rounded to −7
        rounded = np.clip(np.round(wide / step), -8, 7) * step / scales[:, None]
        tried.append((np.linalg.norm(x @ (rounded - kernel)), scales))
    np.testing.assert_allclose(found, min(tried, key=lambda each: each[0])[1], rtol=1e-4)


@pytest.mark.rotates
def test_what_cannot_be_is_refused(outliers):
    model, statistics = outliers
    with pytest.raises(ValueError, match="smoothquant is for inputs that are rounded"):
        Quantization(method="smoothquant")
    with pytest.raises(ValueError, match="ranges of scaled inputs must be dynamic or absmax, got 'percentile'"):
        Quantization(method="awq", activations="int8", ranges="percentile")
    with pytest.raises(ValueError, match="awq needs calibration data"):
        quantize_model(model, Quantization(method="awq"))
    with pytest.raises(ValueError, match=r"awq needs products of inputs, observe\(…, products=True\)"):
        quantize_model(model, Quantization(method="awq"), observe(model, lambda m, t: m(t), [TOKENS]))
    with pytest.raises(ValueError, match=r"there is none before trunk\.blocks\.feedforward\.down\.kernel"):
        quantize_model(model, Quantization(method="awq", pattern=r"down\.kernel"), statistics)


def test_a_layer_that_nothing_is_before_is_no_feed():
    assert feeds(nnx.Linear(4, 2, rngs=nnx.Rngs(0))) == []
