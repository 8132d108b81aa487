"""Low-rank adaptation: a model's kernels W become W + α/r · A B, of which only A and B are trained (Hu et al. 2021).

Axes: r rank, L layers; a kernel's other axes are its inputs and outputs, e.g. [L, D, N, H] for queries.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.order import Part
from flax_transformer.parallel import path_name
from flax_transformer.train.carry import NOTHING, Carry, Objective, alone, carry_of, on_model
from flax_transformer.train.finetune import check_pattern
from flax_transformer.train.parameter_axis import Axes, parameter_axes


@frozen
class LoraConfig:
    """Which kernels are adapted, and by how much."""

    rank: int = 8
    """R, the rank of what is added to a kernel."""
    alpha: float = 16.0
    """The change is multiplied by alpha / rank."""
    pattern: str = r"(query|value)\.kernel$"
    """Kernels and embeddings whose path matches are adapted."""
    target_modules: tuple[str, ...] = ()
    """In place of `pattern`: modules of a checkpoint by their names in `transformers`, as PEFT takes them, whole or
    their last parts, or "all-linear"; `hub.find_targets` says which kernels these are."""

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        if self.alpha <= 0:
            raise ValueError(f"alpha must be positive, got {self.alpha}")
        check_pattern("pattern", self.pattern)
        if not isinstance(self.target_modules, tuple) or not all(isinstance(each, str) for each in self.target_modules):
            raise ValueError(f"target_modules must be a tuple of names, got {self.target_modules!r:.60}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LowRank:
    """The two factors of a kernel's change, scale · A B; `a` has the kernel's input axes, `b` its output axes."""

    a: Any
    """float32 [L, inputs…, r]."""
    b: Any
    """float32 [L, r, outputs…]."""
    scale: float = field(metadata={"static": True})


Lora = dict[str, LowRank]
"""The factors by the path of the kernel they change."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Adapted:
    """A model and its low-rank change, as one training state holds them; `trainable=r"^lora\\."` trains the latter."""

    base: Any
    lora: Any
    """By path, as `init_lora` makes it."""

    layer_order = (Part("base"),)

    @staticmethod
    def stands_for(name: str) -> str:
        """Return the path of the kernel that a factor changes: it lies in the same layer."""
        return re.sub(r"^lora\.(.*)\.[ab]$", r"base.\1", name)


def _leaves(model: Any) -> dict[str, Any]:
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model)}


def init_lora(model: Any, config: LoraConfig, key: PRNGKeyArray) -> Lora:
    """Make factors for a model: A normal with variance 1 / inputs, B zero, so that at first nothing changes.

    Args:
      model: arrays or abstract ones.

    Raises:
      ValueError: when the pattern matches no parameter, or one that is no kernel or embedding, and for names of
        modules, which are of a checkpoint.
    """
    if config.target_modules:
        raise ValueError(
            "target_modules are of a checkpoint: hub.find_targets(config, pretrained) gives the pattern of their "
            f"kernels, got {config.target_modules}"
        )
    chosen = {name: leaf for name, leaf in _leaves(model).items() if re.search(config.pattern, name)}
    if not chosen:
        raise ValueError(f"the pattern must match a kernel, got {config.pattern!r}")
    for name, leaf in chosen.items():
        if not re.search(r"(^|\.)(kernel|embedding)$", name) or leaf.ndim < 2:
            raise ValueError(f"only kernels and embeddings have low-rank changes, got {name} of shape {leaf.shape}")

    axes = _leaves(parameter_axes(model))

    def factors(name: str, leaf: Any, key: PRNGKeyArray) -> LowRank:
        lead, inputs, outputs = _split(axes[name], leaf.shape)
        a = math.prod(inputs) ** -0.5 * jax.random.normal(key, (*lead, *inputs, config.rank))
        return LowRank(a, jnp.zeros((*lead, config.rank, *outputs)), config.alpha / config.rank)

    keys = jax.random.split(key, len(chosen))
    return {name: factors(name, leaf, k) for (name, leaf), k in zip(chosen.items(), keys, strict=True)}


def _split(axes: Axes, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Split a kernel's shape into layers, inputs and outputs."""
    outputs = axes.layers + axes.inputs
    return shape[: axes.layers], shape[axes.layers : outputs], shape[outputs:]


def merge_lora(model: Any, lora: Lora) -> Any:
    """Return the model with its kernels changed, W + scale · A B, computed in float32 and rounded to W's type.

    Pure and differentiable: `merge_lora(base, lora)` inside a loss trains `lora`; once, at the end, it gives a model
    like any other. In bfloat16 W's rounding swallows small changes, so train and merge on float32 parameters.

    Raises:
      ValueError: listing every kernel the model lacks or has in another shape.
    """
    leaves, axes = _leaves(model), _leaves(parameter_axes(model))
    faults = [fault for name, pair in lora.items() if (fault := _misfit(name, pair, leaves.get(name), axes.get(name)))]
    if faults:
        raise ValueError(f"the low-rank factors must fit the model, got {'; '.join(faults)}")

    def change(path: tuple, leaf: Any) -> Any:
        pair = lora.get(path_name(path))
        if pair is None:
            return leaf
        lead = _split(axes[path_name(path)], leaf.shape)[0]
        rank = pair.a.shape[-1]
        a, b = pair.a.reshape(*lead, -1, rank), pair.b.reshape(*lead, rank, -1)
        product = jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST).reshape(leaf.shape)
        return (leaf.astype(jnp.float32) + pair.scale * product).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(change, model)


def _misfit(name: str, pair: LowRank, leaf: Any, axes: Axes | None) -> str:
    if leaf is None or axes is None:
        return f"{name}, which the model lacks"
    lead, inputs, outputs = _split(axes, leaf.shape)
    rank = pair.a.shape[-1]
    wanted = ((*lead, *inputs, rank), (*lead, rank, *outputs))
    fits = (pair.a.shape, pair.b.shape) == wanted
    return "" if fits else f"{name} with factors {pair.a.shape} and {pair.b.shape}, not {wanted[0]} and {wanted[1]}"


def adapt(objective: Objective) -> Objective:
    """Make an objective of a model into one of an `Adapted` model, whose base gets no gradients.

    What the objective carries it carries of the merged model. Where that is a part of the model, as batch statistics
    are, the model that is evaluated and ended with is the merged one, no longer `Adapted`.
    """

    def merged(model: Adapted) -> Any:
        return merge_lora(jax.lax.stop_gradient(model.base), model.lora)

    carry = carry_of(objective)
    return on_model(objective, merged, carry if carry is NOTHING else _adapted(carry, merged))


def _adapted(carry: Carry, merged: Callable[[Adapted], Any]) -> Carry:
    """Return what an `Adapted` model carries of the merged one."""
    return Carry(
        begin=lambda model, key: carry.begin(merged(model), key),
        after=lambda model, carried: carry.after(merged(model), carried),
        trained=lambda model: replace(model, base=carry.trained(model.base)),
        whole=alone if carry.whole is alone else lambda model, carried: carry.whole(merged(model), carried),
    )
