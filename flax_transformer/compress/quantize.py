"""Post-training quantization of a model: which kernels, to how many bits, and how they are chosen.

Axes: L layers, I inputs, O outputs, G groups.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.compress.gptq import gptq
from flax_transformer.compress.input_scale import awq_scales, scale_inputs, smooth_scales
from flax_transformer.compress.kernel import (
    KernelAxes,
    is_table,
    kernels_of,
    linear_kernels,
    lookup_tables,
    map_kernels,
)
from flax_transformer.compress.statistics import Statistics, input_range
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed
from flax_transformer.nn.quantized import (
    ACTIVATIONS,
    BITS,
    Quantized,
    check_kind,
    group_tiles,
    largest_value,
    quantize,
    quantize_table,
)

RANGES = tuple(1 - 0.05 * step for step in range(9))
"""Shares of the largest value that `mse` chooses among."""
GROUP = 64
"""Inputs of a kernel of 4 bits that share a scale, where a command is not told otherwise."""
UNQUANTIZED = r"(^|\.)(router|output|head|classifier|score|patch|tubelet)\."
"""Layers that are left as they are: those that choose, and those of pixels, which are small and first or last."""


@frozen
class Quantization:
    """What becomes of kernels; their biases, norms, embeddings and all that is no product stay as they are."""

    weights: Literal["int8", "int4", "nf4", "float8_e4m3fn"] | None = "int8"
    """What kernels are rounded to; None: they stay whole, whatever later rules say."""
    group: int | None = None
    """Inputs that share a scale, consecutive ones of an output; None: all of an output's."""
    method: Literal["round", "mse", "gptq", "awq", "smoothquant"] = "round"
    """How values are chosen: the nearest, with the largest value as the end of the range or with that of the least
    squared error; by GPTQ, which makes up for the error of one input by those after it; or the nearest of kernels whose
    inputs are scaled, where what is before them can be divided by these scales: for the least error by AWQ, for inputs
    of less range by SmoothQuant. The last three need calibration."""
    activations: Literal["int8", "float8_e4m3fn"] | None = None
    """What the inputs of products are rounded to; None: they are not."""
    ranges: Literal["dynamic", "absmax", "percentile", "mse"] = "dynamic"
    """What inputs' scales are: each row's own, or one of each layer, found by calibration."""
    percentile: float = 99.99
    """Of the absolute values that are within the range, where `ranges` is percentile."""
    embeddings: bool = False
    """Whether tables of tokens and of their positions have few bits too, with a scale for each row, or group of its
    columns."""
    pattern: str = ""
    """Which kernels and tables, by path (searched); all but `UNQUANTIZED` by default."""

    def __post_init__(self) -> None:
        if self.weights is None:
            if self.activations is not None or self.method != "round" or self.embeddings:
                raise ValueError(f"weights=None leaves kernels whole, and goes with nothing else, got {self}")
            return
        check_kind(self.weights)
        if self.activations not in (None, *ACTIVATIONS):
            raise ValueError(f"activations must be one of {', '.join(ACTIVATIONS)} or None, got {self.activations!r}")
        if self.group is not None and self.group < 1:
            raise ValueError(f"group must be at least 1 input, got {self.group}")
        if self.ranges != "dynamic" and self.activations is None:
            raise ValueError(f"ranges={self.ranges!r} are of activations, which are not quantized")
        if self.method == "gptq" and not self.weights.startswith("int"):
            raise ValueError(f"gptq rounds to int8 or int4, got weights={self.weights!r}")
        if self.method == "smoothquant" and self.activations is None:
            raise ValueError("smoothquant is for inputs that are rounded: activations must be given, got None")
        if self.scaled and self.ranges not in ("dynamic", "absmax"):
            raise ValueError(f"ranges of scaled inputs must be dynamic or absmax, got {self.ranges!r}")
        if self.activations is not None and self.weights == "nf4":
            raise ValueError("nf4 is a table of values, which are multiplied as floats: activations must be None")
        if not 0 < self.percentile <= 100:
            raise ValueError(f"percentile must be in (0, 100], got {self.percentile}")
        re.compile(self.pattern)

    @property
    def calibrated(self) -> bool:
        """Whether it needs to know what layers are given."""
        return self.products or self.scaled or self.ranges != "dynamic"

    @property
    def products(self) -> bool:
        """Whether it needs to know the products of every two inputs."""
        return self.method in ("gptq", "awq")

    @property
    def scaled(self) -> bool:
        """Whether it scales inputs."""
        return self.method in ("awq", "smoothquant")

    def takes(self, path: str) -> bool:
        """Return whether it is of the kernel or table of a path."""
        if is_table(path) and not self.embeddings and self.weights is not None:
            return False
        return takes(self.pattern, path)


def takes(pattern: str, path: str) -> bool:
    """Return whether a kernel is chosen: by a pattern, or without one unless it is of `UNQUANTIZED`."""
    return bool(re.search(pattern, path)) if pattern else not re.search(UNQUANTIZED, path)


def quantize_model(
    model: Any, rules: Quantization | Sequence[Quantization], statistics: Mapping[str, Statistics] | None = None
) -> Any:
    """Return a model whose kernels have few bits.

    Args:
      model: with linear layers of Flax's or this package's.
      rules: the first that takes a kernel says what becomes of it; a kernel that none takes stays.
      statistics: of calibration, by kernel: `observe(model, …)`; with `products` for gptq and awq.

    Raises:
      ValueError: groups that do not divide a kernel's inputs, calibration that is missing, a model that is quantized
        already, rules that take no kernel, or awq and smoothquant of kernels with nothing before them; says which.

    >>> from flax import nnx
    >>> layer = quantize_model(nnx.Linear(4, 2, rngs=nnx.Rngs(0)), Quantization(weights="int8"))
    >>> layer.kernel.get_value().kind
    'int8'
    """
    rules = (rules,) if isinstance(rules, Quantization) else tuple(rules)
    axes = linear_kernels(model) | lookup_tables(model)
    found = {path: next((rule for rule in rules if rule.takes(path)), None) for path in axes}
    chosen = {path: rule for path, rule in found.items() if rule is not None and rule.weights is not None}
    if not chosen:
        raise ValueError(f"rules must take a kernel of a linear layer, there are {listed(axes) or 'none'}")
    kernels = kernels_of(model)
    for path, rule in chosen.items():
        _check(path, kernels[path], axes[path], rule, (statistics or {}).get(path))

    if any(rule.scaled for rule in chosen.values()):
        model, statistics = _scaled(model, chosen, statistics or {})

    def change(path: str, kernel: Any) -> Any:
        if path not in chosen:
            return kernel
        return _quantized(kernel, axes[path], chosen[path], (statistics or {}).get(path))

    return map_kernels(change, model)


def _scaled(
    model: Any, chosen: Mapping[str, Quantization], statistics: Mapping[str, Statistics]
) -> tuple[Any, Mapping[str, Statistics]]:
    """Scale the inputs of the kernels whose rule says so, all kernels of one input alike."""
    found = []

    def find(kernels: Mapping[str, Array], known: Statistics) -> Array | None:
        rules = {path: chosen[path] for path in kernels if path in chosen and chosen[path].scaled}
        if not rules:
            return None
        found.extend(rules)
        rule = next(iter(rules.values()))
        side = jnp.concatenate([kernels[path] for path in rules], axis=-1)
        if rule.method == "smoothquant":
            return smooth_scales(side, known)
        return awq_scales(side, known, rule.weights, rule.group)

    model, statistics = scale_inputs(model, statistics, find)
    if not found:
        raise ValueError(
            "awq and smoothquant scale what a norm or a linear layer before a kernel writes, and there is none before "
            f"{listed(path for path, rule in chosen.items() if rule.scaled)}"
        )
    return model, statistics


def _check(path: str, kernel: Any, axes: KernelAxes, rule: Quantization, found: Statistics | None) -> None:
    """Refuse what cannot be, before anything is computed."""
    if not isinstance(kernel, jax.Array | jax.ShapeDtypeStruct):
        raise ValueError(f"a model is quantized once, {path} is a {type(kernel).__name__} already")
    if axes.table:
        if rule.group is not None and kernel.shape[1] % rule.group:
            raise ValueError(f"{path}: groups must divide the columns, got group={rule.group} for {kernel.shape[1]}")
        return
    try:
        group_tiles(kernel.shape, axes.layers, axes.inputs, rule.group)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if rule.calibrated and found is None:
        what = rule.method if rule.products or rule.scaled else f"ranges={rule.ranges!r}"
        raise ValueError(f"{what} needs calibration data that reach every layer, {path} was given none")
    if rule.products and found.products is None:
        raise ValueError(f"{rule.method} needs products of inputs, observe(…, products=True), {path} has none")


def _quantized(kernel: Array, axes: KernelAxes, rule: Quantization, found: Statistics | None) -> Quantized:
    if axes.table:
        return quantize_table(kernel, rule.weights, group=rule.group)
    made = _rounded(kernel, axes, rule, found)
    if rule.activations is None:
        return made
    if rule.ranges == "dynamic":
        return replace(made, activations=rule.activations)
    if rule.scaled:  # by channels; the histogram is of the inputs before
        largest = found.peak.max(-1)
    else:
        largest = input_range(found, rule.ranges, bits=BITS[rule.activations], percentile=rule.percentile)
    scale = jnp.asarray(largest / largest_value(rule.activations), jnp.float32)
    return replace(made, activations=rule.activations, input_scale=scale)


def _rounded(kernel: Array, axes: KernelAxes, rule: Quantization, found: Statistics | None) -> Quantized:
    how = {"layers": axes.layers, "inputs": axes.inputs, "group": rule.group}
    if rule.method == "gptq":
        return _by_gptq(kernel, axes, rule, found.products)
    if rule.method == "round" or rule.scaled:
        return jax.jit(partial(quantize, kind=rule.weights, **how))(kernel)
    tries = [jax.jit(partial(quantize, kind=rule.weights, clip=clip, **how))(kernel) for clip in RANGES]
    errors = jnp.stack([_error(kernel, each, axes) for each in tries])
    best = errors.argmin(0)

    def pick(*parts: Array) -> Array:
        picked = parts[0]
        for number, part in enumerate(parts[1:], start=1):
            picked = jnp.where(_spread(best == number, part.shape), part, picked)
        return picked

    return jax.tree.map(pick, *tries)


def _error(kernel: Array, made: Quantized, axes: KernelAxes) -> Float[Array, "..."]:
    """Return the squared error of each group, in the shape of the scales."""
    error = (made.dequantize() - kernel.astype(jnp.float32)) ** 2
    sizes = zip(error.shape, made.scale.shape, strict=True)
    shape = [part for size, groups in sizes for part in (groups, size // groups)]
    return error.reshape(shape).sum(tuple(range(1, len(shape), 2)))


def _spread(mask: Array, shape: tuple[int, ...]) -> Array:
    """Spread what is of groups over their members."""
    for axis, size in enumerate(shape):
        mask = jnp.repeat(mask, size // mask.shape[axis], axis=axis)
    return mask


def _by_gptq(kernel: Array, axes: KernelAxes, rule: Quantization, products: Array) -> Quantized:
    lead, rest = kernel.shape[: axes.layers], kernel.shape[axes.layers :]
    inputs, outputs = rest[: axes.inputs], rest[axes.inputs :]
    flat = kernel.reshape(-1, math.prod(inputs), math.prod(outputs)).swapaxes(1, 2)
    sums = products.reshape(-1, *products.shape[-2:])
    made = [gptq(one, each, kind=rule.weights, group=rule.group) for one, each in zip(flat, sums, strict=True)]
    values = jnp.stack([each[0] for each in made]).swapaxes(1, 2).reshape(kernel.shape)
    groups = scale_shape(rest, axes.inputs, rule.group)
    scales = jnp.stack([each[1] for each in made]).swapaxes(1, 2).reshape(*lead, *groups, *outputs)
    return Quantized(values, scales, kind=rule.weights)


def scale_shape(shape: tuple[int, ...], inputs: int, group: int | None) -> tuple[int, ...]:
    """Return the shape of the scales along the inputs of a kernel.

    >>> scale_shape((4, 64, 512), 2, 32), scale_shape((4, 64, 512), 2, 128), scale_shape((4, 64, 512), 2, None)
    ((4, 2), (2, 1), (1, 1))
    """
    if group is None:
        return (1,) * inputs
    ((axis, tile),) = group_tiles(shape, 0, inputs, group).items()
    return (*shape[:axis], shape[axis] // tile, *(1,) * (inputs - axis - 1))
