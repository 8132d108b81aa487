"""Movement pruning: values of kernels that gradients move towards zero become zero, large ones too (Sanh et al. 2020,
https://arxiv.org/abs/2005.07683).

The loss is of kernels with zeros, its gradient also of the values that are zero there: they keep what they were, and
come back where their score is again among the best.
"""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.parallel import path_name
from flax_transformer.train.parameter_axis import Axes, parameter_axes
from flax_transformer.train.sparsity import SparsityConfig, best, prunes_at, share_at


class MovementState(NamedTuple):
    """What is carried from step to step, of kernels by path."""

    count: Int[Array, ""]
    """Steps so far."""
    scores: dict[str, Float[Array, "..."]]
    """−Σ η w ∂L/∂w over the steps so far, of learning rate η: positive of values that move away from zero."""
    kept: dict[str, Bool[Array, "..."]]
    """Which values are not zero."""
    weights: dict[str, Float[Array, "..."]]
    """What values that are zero were, and come back with."""
    inner: Any
    """Of the optimizer."""


def move(
    config: SparsityConfig, steps: int, optimizer: optax.GradientTransformation, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Make an optimizer whose kernels have ever more zeros, by their movement.

    Args:
      steps: of the run.
      optimizer: makes the updates of the values that are left.
      schedule: the learning rate by step.
    """

    def kernels(params: Any) -> dict[str, tuple[Array, Axes]]:
        axes = jax.tree.leaves(parameter_axes(params))
        found = zip(jax.tree_util.tree_leaves_with_path(params), axes, strict=True)
        named = {path_name(path): (leaf, each) for (path, leaf), each in found}
        return {name: each for name, each in named.items() if re.search(config.pattern, name) and each[1].inputs}

    def init(params: Any) -> MovementState:
        found = {name: leaf for name, (leaf, _) in kernels(params).items()}
        kept = {name: leaf != 0 if config.keep else jnp.ones(leaf.shape, bool) for name, leaf in found.items()}
        scores = {name: jnp.where(each, 0.0, -jnp.inf) for name, each in kept.items()}
        weights = {name: jnp.asarray(leaf) for name, leaf in found.items()}
        return MovementState(jnp.zeros((), jnp.int32), scores, kept, weights, optimizer.init(params))

    def update(gradients: Any, state: MovementState, params: Any) -> tuple[Any, MovementState]:
        updates, inner = optimizer.update(gradients, state.inner, params)
        slopes = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)}
        new = MovementState(state.count + 1, {}, {}, {}, inner)
        found, rate, now = kernels(params), schedule(state.count), prunes_at(config, state.count, steps)

        def change(path: tuple, step: Array) -> Array:
            name = path_name(path)
            if name not in found:
                return step
            param, axes = found[name]
            before = state.kept[name]
            whole = jnp.where(before, param, state.weights[name])
            score = state.scores[name] - rate * (whole * slopes[name]).astype(jnp.float32)

            def choose() -> Array:
                kept = best(score, axes, share_at(config, state.count, steps), config.block)
                return kept & (score > -jnp.inf)

            kept = jax.lax.cond(now, choose, lambda: before)
            new.scores[name], new.kept[name] = score, kept
            new.weights[name] = jnp.where(before, param + step, whole)
            return jnp.where(kept, jnp.where(before, step, whole), -param)

        return jax.tree_util.tree_map_with_path(change, updates), new

    return optax.GradientTransformation(init, update)
