"""Quantization-aware training: products with rounded kernels, of which the gradient is that of whole ones.

The forward pass is that of the quantized model, whole numbers included; the backward pass takes rounding for nothing
(the straight-through estimator, Bengio et al. 2013, https://arxiv.org/abs/1308.3432; Jacob et al. 2017,
https://arxiv.org/abs/1712.05877). Ranges of inputs are those of each row, or moving averages of the largest input of
every step, which training carries. Axes: L layers.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from flax_transformer.compress.kernel import WrappedKernel, kernels_of, linear_kernels, map_kernels
from flax_transformer.compress.quantize import Quantization, quantize_model
from flax_transformer.listing import listed
from flax_transformer.nn.linear import flat_dot_general, last_axes
from flax_transformer.nn.quantized import Quantized, largest_value, quantize
from flax_transformer.ops import capture_all
from flax_transformer.train.carry import NOTHING, Carry, Carrying, Objective, carry_of, is_separable, on_model

PEAK = "largest_input."
"""What the name begins with by which a kernel marks its largest input; its path follows."""
DECAY = 0.99
"""Of the moving averages of largest inputs; the first step's is taken as it is."""

Ranges = Mapping[str, Any]
"""The largest input that is represented, [*L], by the path of the layer; 0: not known yet."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RoundedInPassing(WrappedKernel):
    """A whole kernel that is multiplied as if it had few bits."""

    range: Any = None
    """The largest input that is represented, [*L]; None: each row's own, 0: that of the inputs themselves."""
    rule: Quantization = field(default=Quantization(), metadata={"static": True})
    path: str = field(default="", metadata={"static": True})

    def multiply(self, x: Float[Array, "..."], inputs: int) -> Float[Array, "..."]:
        """Multiply the last axes of x, as many as there are inputs."""
        if self.range is None:
            return _product(self.rule, inputs, x, self.kernel, None)
        peak = jax.lax.stop_gradient(jnp.abs(x).max()).astype(jnp.float32)
        peak = checkpoint_name(peak, PEAK + self.path)
        return _product(
            self.rule, inputs, x, self.kernel, _scale(self.rule, jnp.where(self.range > 0, self.range, peak))
        )


def _scale(rule: Quantization, largest: Array) -> Array:
    """Return what inputs are divided by; 1 where all were 0."""
    return jnp.where(largest > 0, largest / largest_value(rule.activations), 1.0)


def _quantized(rule: Quantization, inputs: int, kernel: Array, scale: Array | None) -> Quantized:
    made = quantize(kernel, rule.weights, inputs=inputs, group=rule.group)
    return replace(made, activations=rule.activations, input_scale=scale)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(rule: Quantization, inputs: int, x: Array, kernel: Array, scale: Array | None) -> Array:
    return _quantized(rule, inputs, kernel, scale).multiply(x, inputs)


def _forward(rule: Quantization, inputs: int, x: Array, kernel: Array, scale: Array | None) -> tuple[Array, tuple]:
    return _product(rule, inputs, x, kernel, scale), (x, kernel, scale)


def _backward(rule: Quantization, inputs: int, kept: tuple, pull: Array) -> tuple[Array, Array, Array | None]:
    x, kernel, scale = kept
    whole = _quantized(rule, inputs, kernel, scale).dequantize().astype(x.dtype)
    _, pulled = jax.vjp(lambda x, kernel: flat_dot_general(x, kernel, last_axes(x, inputs)), x, whole)
    to_x, to_kernel = pulled(pull)
    if scale is not None:  # beyond the range nothing follows the input
        to_x = jnp.where(jnp.abs(x) <= scale * largest_value(rule.activations), to_x, 0)
    return to_x, to_kernel.astype(kernel.dtype), None if scale is None else jnp.zeros_like(scale)


_product.defvjp(_forward, _backward)


def rounded_in_passing(model: Any, rule: Quantization, ranges: Ranges | None = None) -> Any:
    """Return a model whose products are those of the quantized one, to differentiate through.

    `settle(model, rule, ranges)` is what such a model becomes; their outputs are equal.

    Args:
      ranges: of inputs, where the rule has ranges of layers.

    Raises:
      ValueError: a rule that needs calibration, that is of tables, or that takes no kernel.
    """
    check_trainable(rule)
    chosen = _chosen(model, rule)

    def change(path: str, kernel: Any) -> Any:
        if path not in chosen:
            return kernel
        return RoundedInPassing(kernel, None if ranges is None else ranges[_layer(path)], rule, _layer(path))

    return map_kernels(change, model)


def _chosen(model: Any, rule: Quantization) -> dict[str, Any]:
    axes = linear_kernels(model)
    chosen = {path: each for path, each in axes.items() if rule.takes(path)}
    if not chosen:
        raise ValueError(f"a rule must take a kernel, there are {listed(axes) or 'none'}")
    return chosen


def _layer(path: str) -> str:
    return path.removesuffix("kernel").rstrip(".")


def settle(model: Any, rule: Quantization, ranges: Ranges | None = None) -> Any:
    """Return the model of few bits that training with a rule has made; arguments as `rounded_in_passing`'s."""
    made = quantize_model(model, replace(rule, ranges="dynamic"))
    if ranges is None:
        return made

    def change(path: str, kernel: Any) -> Any:
        known = ranges.get(_layer(path))
        return kernel if known is None else replace(kernel, input_scale=_scale(rule, known))

    return map_kernels(change, made)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Ranged:
    """A model in training, and the ranges of its layers' inputs."""

    model: Any
    ranges: Ranges


def round_in_training(objective: Objective, rule: Quantization) -> Objective:
    """Make an objective whose model has kernels that are rounded in passing.

    With ranges of layers it carries them: `carry.whole(model, carried)` is a `Ranged`.

    Raises:
      ValueError: as `rounded_in_passing`, or ranges of layers beside an objective that carries state of its own.
    """
    check_trainable(rule)
    if rule.ranges == "dynamic":
        return on_model(objective, partial(rounded_in_passing, rule=rule))
    if carry_of(objective) is not NOTHING:
        raise ValueError(
            f"training carries ranges of layers, and nothing else beside them: ranges must be dynamic for an objective "
            f"that carries state, got {rule.ranges!r}"
        )

    def begin(model: Any, key: Array) -> dict[str, dict[str, Array]]:
        kernels, chosen = kernels_of(model), _chosen(model, rule)
        zeros = {_layer(path): jnp.zeros(kernels[path].shape[: each.layers]) for path, each in chosen.items()}
        return {"range": zeros, "peak": zeros}

    def after(model: Any, carried: dict) -> dict:
        def follow(known: Array, peak: Array) -> Array:
            moved = jnp.where(known > 0, known + (1 - DECAY) * (peak - known), peak)
            return jnp.where(peak > 0, moved, known)

        ranges = jax.tree.map(follow, carried["range"], carried["peak"])
        return {"range": ranges, "peak": jax.tree.map(jnp.zeros_like, ranges)}

    def carrying(model: Any, batch: Any, *, key: Array | None, carried: dict) -> tuple:
        def run(model: Any, batch: Any, key: Array | None, ranges: Ranges) -> tuple:
            return objective(rounded_in_passing(model, rule, ranges), batch, key=key)

        run = capture_all(run, lambda name: name.startswith(PEAK))
        (loss, metrics), seen = run(model, batch, key, carried["range"])
        peaks = dict(carried["peak"])
        for name, found in seen.items():
            path = name.removeprefix(PEAK)
            peaks[path] = jnp.maximum(peaks[path], _largest(path, found, peaks[path].shape))
        return loss, metrics, {"range": carried["range"], "peak": peaks}

    carry = Carry(begin=begin, after=after, whole=lambda model, carried: Ranged(model, carried["range"]))
    return Carrying(carrying, carry, separable=is_separable(objective))


def _largest(path: str, found: list[Array], shape: tuple[int, ...]) -> Array:
    """Return the largest input of each layer [*L], of all its uses; layers of no loop mark one after the other."""
    if found[0].shape[: len(shape)] != shape:
        flat = jnp.stack(found).reshape(len(found), -1).max(-1)
        if flat.size % math.prod(shape):
            raise ValueError(
                f"each of the {math.prod(shape)} layers of {path} must be used as often, got {flat.size} uses"
            )
        found = list(flat.reshape(-1, *shape))
    return jnp.stack([each.reshape(*shape, -1).max(-1) for each in found]).max(0)


def check_trainable(rule: Quantization) -> None:
    """Check that a rule says all that training needs; raise ValueError if not."""
    if rule.method != "round" or rule.ranges not in ("dynamic", "absmax"):
        raise ValueError(
            "training rounds to the nearest, and inputs by each row's range or by their largest: method must be round "
            f"and ranges dynamic or absmax, got {rule.method} and {rule.ranges}"
        )
    if rule.embeddings:
        raise ValueError("training rounds kernels alone: embeddings must be False, tables may be rounded after it")
