"""Feed-forward layers with fewer neurons: the least important ones of each layer are removed, so that programs shrink.

Axes: L layers, D model width, F neurons.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.compress.kernel import modules_of, resized
from flax_transformer.compress.statistics import Statistics
from flax_transformer.nn.config import map_configs
from flax_transformer.nn.experts import Experts
from flax_transformer.nn.feedforward import FeedForward, FeedForwardConfig


def narrow_model(model: Any, share: float, statistics: Mapping[str, Statistics] | None = None) -> Any:
    """Return a model whose feed-forward layers have fewer neurons, the same number in all layers of a stack.

    A neuron counts as much as it writes: the norm of its row of the second kernel times the mean of its absolute value
    on calibration data, or without such times the norms of its columns of the other kernels. Layers of experts and
    those with a norm inside stay.

    Args:
      share: of the neurons that are removed.
      statistics: of calibration, by kernel: `observe(model, …)`.

    Raises:
      ValueError: a share that leaves none or is none, a model without such layers or without a config that builds it.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share of neurons that are removed must be in (0, 1), got {share}")
    found = modules_of(model, FeedForward | Experts)
    layers = {path: layer for path, layer in found if type(layer) is FeedForward}
    if not layers:
        raise ValueError(f"neurons are of feed-forward layers, a {type(model).__name__} has none")
    kept: dict[str, Array] = {}
    for path, layer in layers.items():
        seen = (statistics or {}).get(f"{path}.down.kernel".lstrip("."))
        ranked = jnp.argsort(-_importance(layer, seen), axis=-1, stable=True)
        kept[path] = jnp.sort(ranked[..., : neurons_left(layer.cfg.inner, share)], axis=-1)

    def fill(name: str, value: Any, shape: tuple[int, ...]) -> Array:
        owner, _, part = name.rpartition(".")
        layer, _, kind = owner.rpartition(".")
        if layer not in kept or kind not in ("up", "gate", "down") or (kind, part) == ("down", "bias"):
            return value
        at, axis = kept[layer], -2 if kind == "down" else -1
        index = at if value.ndim == at.ndim else jnp.expand_dims(at, -1 if axis == -2 else -2)
        return jnp.take_along_axis(value, index, axis=axis)

    return resized(model, _narrowed(model.cfg, share), fill)


def neurons_left(inner: int, share: float) -> int:
    """Return how many neurons are kept."""
    return max(round(inner * (1 - share)), 1)


def _importance(layer: FeedForward, found: Statistics | None) -> Float[Array, "*L F"]:
    written = jnp.linalg.norm(layer.down.kernel[...].astype(jnp.float32), axis=-1)
    if found is not None:
        return written * found.magnitude
    read = [layer.up, layer.gate] if layer.cfg.gated else [layer.up]
    for each in read:
        written = written * jnp.linalg.norm(each.kernel[...].astype(jnp.float32), axis=-2)
    return written


def _narrowed(config: Any, share: float) -> Any:
    """Return a config whose feed-forward layers are narrower."""

    def narrower(each: Any) -> dict[str, int]:
        return {"inner": neurons_left(each.inner, share)} if type(each) is FeedForwardConfig else {}

    return map_configs(narrower, config)
