"""Attention with fewer heads: how much the loss depends on each head, and models without the least important ones
(Michel et al. 2019, https://arxiv.org/abs/1905.10650).

Axes: B batch, T positions, L layers, N query heads, K key/value heads, G = N/K, H head width.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flax_transformer.compress.kernel import modules_of, resized
from flax_transformer.compress.watch import watch
from flax_transformer.nn.attention import Attention, AttentionConfig
from flax_transformer.nn.config import map_configs
from flax_transformer.nn.grid_bias import GridBiasConfig
from flax_transformer.nn.relative import AlibiConfig
from flax_transformer.nn.trunk import Trunk

Importance = Mapping[str, Float[Array, "*L N"]]
"""Of the heads of every attention, by its path."""


def _slopes(
    x: Float[Array, "*B T N H"], gradient: Float[Array, "*B T N H"], zeros: Array, inputs: int
) -> Float[Array, " N"]:
    """Return the sum over rows of |∂loss/∂ξ|, where ξ multiplies what a head gives at every position of a row."""
    of_rows = jnp.einsum("...tnh,...tnh->...n", x.astype(jnp.float32), gradient.astype(jnp.float32))
    return jnp.abs(of_rows).reshape(-1, x.shape[-2]).sum(0)


def head_importance(model: Any, loss: Callable[[Any, Any], Array], batches: Iterable[Any]) -> Importance:
    """Compute how much the loss of calibration data depends on each head: E |∂loss/∂ξ|, where ξ = 1 multiplies the
    head's output, normalised by layer.

    Args:
      loss: `loss(model, batch)`, a sum over rows, whose gradient tells rows apart.

    Returns:
      Of every attention of the model, by path, the importance of its heads, whose squares add up to 1 in each layer.

    Raises:
      ValueError: no batch, or a model without attention.
    """
    layers = attentions_of(model)
    kernels = {path: f"{path}.out.kernel".lstrip(".") for path in layers}
    zeros = {kernels[path]: jnp.zeros(each.out.kernel.shape[:-2]) for path, each in layers.items()}
    sums = watch(model, zeros, _slopes, loss, batches)
    found = {path: sums[kernel] for path, kernel in kernels.items()}
    return {
        path: each / jnp.maximum(jnp.linalg.norm(each, axis=-1, keepdims=True), 1e-30) for path, each in found.items()
    }


def remove_heads(model: Any, share: float, importance: Importance) -> Any:
    """Return a model whose attention has fewer heads, as wide as they were: the same number in all layers of a stack.

    Of grouped-query attention a key/value head goes with all the query heads of its group. Where layers share relative
    positions, which each head has its own of (T5), they lose the same heads.

    Args:
      share: of the heads that are removed.
      importance: of all heads: `head_importance(model, …)`.

    Raises:
      ValueError: a share that leaves none or takes none, attention without an importance, or of a kind whose heads are
        not told apart by its config.
    """
    if any(isinstance(trunk.cfg.relative, AlibiConfig) for _, trunk in modules_of(model, Trunk)):
        raise ValueError(
            "heads that are removed must have no slopes, got a trunk with ALiBi, whose heads each have one"
        )
    kept = kept_heads(model, share, importance)
    try:
        config = map_configs(lambda each: _fewer(each, share), model.cfg)
    except ValueError as error:
        raise ValueError(f"how many heads there are must be said by the model's config alone: {error}") from error
    layers = attentions_of(model)
    owners = {f"{path}.".lstrip("."): (kept[path], layers[path].cfg) for path in kept}
    owners |= {f"{path.removesuffix('attention.')}relative.": each for path, each in owners.items()}
    for path, attention in _of_one_bias(model).items():
        owners[f"{path}.relative.".lstrip(".")] = kept[attention][0], layers[attention].cfg

    def fill(name: str, value: Any, shape: tuple[int, ...]) -> Any:
        axes = [axis for axis, sizes in enumerate(zip(value.shape, shape, strict=True)) if sizes[0] != sizes[1]]
        owner = next((each for path, each in owners.items() if name.startswith(path)), None)
        if len(axes) != 1 or owner is None:
            return value
        at, cfg = owner
        if value.shape[axes[0]] == cfg.resolved_kv_heads:
            group = cfg.heads // cfg.resolved_kv_heads
            at = at[..., ::group] // group
        between, behind = (1,) * (axes[0] + 1 - at.ndim), (1,) * (value.ndim - axes[0] - 1)
        return jnp.take_along_axis(value, at.reshape(*at.shape[:-1], *between, -1, *behind), axis=axes[0])

    return resized(model, config, fill)


def kept_heads(model: Any, share: float, importance: Importance) -> Mapping[str, Int[Array, "*L n"]]:
    """Return which heads of every attention are kept, in their order, when a share of them is removed.

    Raises:
      ValueError: as `remove_heads`.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share of heads that are removed must be in (0, 1), got {share}")
    same, kept = set(_of_one_bias(model).values()), {}
    for path, layer in attentions_of(model).items():
        if path not in importance or importance[path].shape != layer.out.kernel.shape[:-2]:
            raise ValueError(f"every head must have an importance, those of {path or 'the layer'} have none")
        heads, groups = layer.cfg.heads, layer.cfg.resolved_kv_heads
        group, left = heads // groups, heads_left(layer.cfg, share) * groups // heads
        if left == groups:
            raise ValueError(f"of {groups} heads that have keys a share of {share} is none, in {path or 'the layer'}")
        score = importance[path].reshape(*importance[path].shape[:-1], groups, group).sum(-1)
        if path in same:
            score = jnp.broadcast_to(score.sum(0), score.shape)
        best = jnp.sort(jnp.argsort(-score, axis=-1, stable=True)[..., :left], axis=-1)
        kept[path] = (best[..., None] * group + jnp.arange(group)).reshape(*best.shape[:-1], -1)
    return kept


def heads_left(cfg: AttentionConfig, share: float) -> int:
    """Return how many query heads are kept: those of whole groups."""
    groups = cfg.resolved_kv_heads
    return max(round(groups * (1 - share)), 1) * (cfg.heads // groups)


def attentions_of(model: Any) -> dict[str, Attention]:
    """Return the attention of a model by path.

    Raises:
      ValueError: a model without.
    """
    found = dict(modules_of(model, Attention))
    if not found:
        raise ValueError(f"heads are of attention, a {type(model).__name__} has none")
    return found


def _of_one_bias(model: Any) -> dict[str, str]:
    """Return the trunks whose layers share relative positions, and the attention that these are of."""
    trunks = {path: trunk for path, trunk in modules_of(model, Trunk) if trunk.cfg.relative is not None}
    return {path: f"{path}.blocks.attention".lstrip(".") for path in trunks}


def _fewer(config: Any, share: float) -> dict[str, Any]:
    """Return the fields of a config of attention, or of biases of its heads, that are other with fewer heads."""
    if isinstance(config, GridBiasConfig):
        return {"heads": max(round(config.heads * (1 - share)), 1)}
    if not isinstance(config, AttentionConfig):
        return {}
    heads, groups = heads_left(config, share), config.resolved_kv_heads
    kv_heads = None if config.kv_heads is None else heads * groups // config.heads
    return {"heads": heads, "kv_heads": kv_heads, "head_width": config.width}
