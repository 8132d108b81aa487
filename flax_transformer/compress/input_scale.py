"""Scales of single inputs that change no output: kernels are multiplied by them, and what feeds the kernels is divided.

Inputs of large values then have weights that are rounded more finely (AWQ, Lin et al. 2023,
https://arxiv.org/abs/2306.00978), or give some of their range to their weights (SmoothQuant, Xiao et al. 2022,
https://arxiv.org/abs/2211.10438). Axes: L layers, C channels of an input, O outputs.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.compress.kernel import linear_kernels, modules_of
from flax_transformer.compress.statistics import Statistics
from flax_transformer.nn.attention import Attention
from flax_transformer.nn.block import Block, Sublayer
from flax_transformer.nn.feedforward import FeedForward
from flax_transformer.nn.norm import LayerNorm, RMSNorm
from flax_transformer.nn.quantized import quantize
from flax_transformer.nn.residual import Residual
from flax_transformer.parallel import path_name

LEAST = 1e-5
"""The smallest scale of SmoothQuant, and the smallest largest weight."""
NEAR = 1e-4
"""The smallest mean input of AWQ, as a share of the largest."""
RATIOS = 20
"""Powers in [0, 1] that AWQ chooses among."""


@dataclass(frozen=True)
class Feed:
    """Kernels of one input, and what makes it: a norm, or a linear layer with nothing but products between."""

    written: tuple[str, ...]
    """Paths of arrays whose last axes are the channels: a norm's scale and bias, or a layer's kernel and bias."""
    kernels: tuple[str, ...]
    """Paths of the kernels, whose first axes after those of layers are the channels."""


def feeds(model: Any) -> list[Feed]:
    """Find the kernels of a model whose inputs can be scaled by what is before them.

    Those are of blocks of attention and feed-forward layers: query, key, value, up and gate behind the norm of a
    pre-norm block; out behind value, if each of its heads has one of its own; down behind up, if gated or with a relu.
    """
    known = {path for path, _ in _variables(model)}
    found = [feed for path, block in modules_of(model, Block) for feed in _of_block(f"{path}.".lstrip("."), block)]
    return [replace(feed, written=tuple(each for each in feed.written if each in known)) for feed in found]


def _of_block(path: str, block: Block) -> Iterator[Feed]:
    parts = block.cfg.sublayers
    # A norm whose output several sublayers see is no norm of one.
    shared = block.cfg.parallel and any(part.residual.norm_position == "none" for part in parts)
    for part in parts:
        if part.layer is None:
            continue
        name, layer = f"{path}{part.name}", getattr(block, part.name)
        around, kernels = getattr(block, f"{part.name}_residual"), _first(part, layer)
        # A residual of another kind may leave the norm out, in the first layer say.
        plain = type(around) is Residual and isinstance(getattr(around, "norm", None), LayerNorm | RMSNorm)
        if kernels and plain and not shared and part.residual.norm_position == "pre":
            written = f"{name}_residual.norm.scale", f"{name}_residual.norm.bias"
            yield Feed(written, tuple(f"{name}.{each}.kernel" for each in kernels))
        for before, after in _inside(layer):
            yield Feed((f"{name}.{before}.kernel", f"{name}.{before}.bias"), (f"{name}.{after}.kernel",))


def _first(part: Sublayer, layer: Any) -> tuple[str, ...]:
    """Return the linear layers that read what a sublayer is given."""
    if type(layer) is Attention:
        return ("query",) if part.of_memory else ("query", "key", "value")
    if type(layer) is FeedForward:
        return ("up", "gate") if layer.cfg.gated else ("up",)
    return ()


def _inside(layer: Any) -> tuple[tuple[str, str], ...]:
    """Return the linear layers of a sublayer whose outputs, times anything, are what another one reads times it."""
    if type(layer) is Attention and layer.cfg.resolved_kv_heads == layer.cfg.heads:
        return (("value", "out"),)
    if type(layer) is FeedForward and (layer.cfg.gated or layer.cfg.activation == "relu"):
        return (("up", "down"),)
    return ()


def scale_inputs(
    model: Any, statistics: Mapping[str, Statistics],
    find: Callable[[Mapping[str, Array], Statistics], Array | None],
) -> tuple[Any, dict[str, Statistics]]:  # fmt: skip
    """Return a model of the same outputs whose kernels are given other inputs, and the statistics of these.

    Args:
      statistics: of calibration, by kernel: `observe(model, …)`.
      find: from the kernels of one input [*L, C, O], by path, and the statistics of the input to the scales [*L, C]
        that the kernels are multiplied by; None: they stay.
    """
    axes = linear_kernels(model)
    arrays, found = dict(_variables(model)), dict(statistics)
    changed: dict[str, Array] = {}
    for feed in feeds(model):
        known = next((statistics[path] for path in feed.kernels if path in statistics), None)
        if known is None:
            continue
        lead = known.count.ndim
        flat = {}
        for path in feed.kernels:
            shape = arrays[path].shape
            inputs = math.prod(shape[lead : lead + axes[path].inputs])
            flat[path] = arrays[path].reshape(*shape[:lead], inputs, -1)
        scales = find(flat, known)
        if scales is None:
            continue
        for path in feed.kernels:
            kernel, inputs = arrays[path], axes[path].inputs
            spread = scales.reshape(*kernel.shape[: lead + inputs], *(1,) * (kernel.ndim - lead - inputs))
            changed[path] = arrays[path] = (kernel * spread).astype(kernel.dtype)
            if path in found:
                own = found[path]
                found[path] = replace(own, magnitude=own.magnitude / scales, peak=own.peak / scales)
        channels = arrays[feed.kernels[0]].shape[lead : lead + axes[feed.kernels[0]].inputs]
        for path in feed.written:
            before = arrays[path]
            spread = scales.reshape(*before.shape[:lead], *(1,) * (before.ndim - lead - len(channels)), *channels)
            changed[path] = arrays[path] = (before / spread).astype(before.dtype)
    return _replaced(model, changed), found


def _variables(model: Any) -> Iterator[tuple[str, Any]]:
    for path, node in jax.tree_util.tree_leaves_with_path(model, is_leaf=_is_variable):
        if _is_variable(node):
            yield path_name(path), node.get_value()


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _replaced(model: Any, arrays: Mapping[str, Array]) -> Any:
    def put(path: tuple, node: Any) -> Any:
        return node.replace(arrays[path_name(path)]) if path_name(path) in arrays else node

    return jax.tree_util.tree_map_with_path(put, model, is_leaf=_is_variable)


def smooth_scales(
    kernels: Float[Array, "*L C O"], statistics: Statistics, strength: float = 0.5
) -> Float[Array, "*L C"]:
    """Return SmoothQuant's scales: the largest input to a power, over the largest weight to what is left of 1.

    Args:
      kernels: all that read the input, side by side.
      strength: the power, in [0, 1]: how much of the range of inputs goes to their weights.
    """
    weights = jnp.maximum(jnp.abs(kernels.astype(jnp.float32)).max(-1), LEAST)
    scales = jnp.maximum(statistics.peak**strength / weights ** (1 - strength), LEAST)
    return jnp.where(statistics.peak > 0, scales, 1.0)


def awq_scales(
    kernels: Float[Array, "*L C O"], statistics: Statistics, weights: str, group: int | None = None
) -> Float[Array, "*L C"]:
    """Return AWQ's scales: mean inputs to the power in [0, 1] with which rounded kernels err the least.

    The error is that of the outputs on calibration data. Of inputs that are no more than their mean, the scales are
    those of `qwix.contrib.awq_core`.

    Args:
      kernels: all that read the input, side by side.
      statistics: with `products`.
      weights, group: what they are rounded to: see `Quantization`.
    """
    lead, inputs = kernels.shape[:-2], kernels.shape[-2]
    mean = statistics.magnitude / jnp.maximum(statistics.count, 1)[..., None]
    search = partial(_search, weights, group)
    flat = (
        kernels.reshape(-1, *kernels.shape[-2:]),
        mean.reshape(-1, inputs),
        statistics.products.reshape(-1, inputs, inputs),
    )
    return jax.jit(lambda each: jax.lax.map(lambda one: search(*one), each))(flat).reshape(*lead, inputs)


@jax.default_matmul_precision("highest")
def _search(weights: str, group: int | None, kernel: Array, mean: Array, products: Array) -> Float[Array, " C"]:
    kernel = kernel.astype(jnp.float32)
    share = jnp.maximum(mean / (mean.max() + 1e-8), NEAR)

    def tried(ratio: Array) -> tuple[Array, Array]:
        scales = share**ratio
        scales = scales / jnp.sqrt(scales.max() * scales.min())
        made = quantize(kernel * scales[:, None], weights, group=group, scale_dtype="float32")  # as qwix searches
        error = made.dequantize() / scales[:, None] - kernel
        return jnp.sum(error * (products @ error)), scales

    def better(best: tuple[Array, Array], ratio: Array) -> tuple[tuple[Array, Array], None]:
        new = tried(ratio)
        return jax.tree.map(partial(jnp.where, new[0] < best[0]), new, best), None

    (_, scales), _ = jax.lax.scan(better, (jnp.float32(jnp.inf), jnp.ones_like(mean)), jnp.linspace(0.0, 1.0, RATIOS))
    return scales
