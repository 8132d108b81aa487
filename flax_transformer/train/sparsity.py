"""Kernels with zeros: which values are kept by their size, and training that makes ever more of them zero.

Axes: L layers, I inputs, O outputs of a kernel; of an N:M pattern N of M consecutive inputs of an output are kept.
"""

import math
import re
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float

from flax_transformer.frozen import frozen
from flax_transformer.parallel import path_name
from flax_transformer.train.finetune import check_pattern
from flax_transformer.train.parameter_axis import Axes, parameter_axes


@frozen
class SparsityConfig:
    """How many values of kernels become zero in training, ever more of them (Zhu & Gupta 2017,
    https://arxiv.org/abs/1710.01878); once all are, zeros stay zero.
    """

    share: float = 0.0
    """Of each layer's values at the end; 0 leaves kernels alone, but for the zeros that `keep` holds."""
    begin: int = 0
    """The step from which values become zero: ever fewer a time, by the cube of what is left of the way."""
    end: int | None = None
    """The step by which all have; by default three quarters of the run."""
    every: int = 50
    """Steps from one time to the next."""
    block: tuple[int, int] | None = None
    """N and M of a pattern N:M, such as 2:4: M consecutive inputs keep the N largest, from `begin` on; not beside
    `share`."""
    keep: bool = False
    """Whether kernels' zeros of the model that training begins with stay zero: of one that was pruned before."""
    pattern: str = r"kernel$"
    """Which kernels, by path (searched)."""
    by: Literal["magnitude", "movement"] = "magnitude"
    """Which values become zero: the smallest, or those that training moves towards zero (Sanh et al. 2020), which takes
    the memory of two more models while training."""

    def __post_init__(self) -> None:
        check_share(self.share, self.block)
        if self.begin < 0 or self.every < 1 or (self.end is not None and self.end < self.begin):
            raise ValueError(
                f"values become zero every few steps from begin to end, got begin={self.begin}, end={self.end}, "
                f"every={self.every}"
            )
        check_pattern("pattern", self.pattern)
        if self.by == "movement" and not self.share and self.block is None:
            raise ValueError("what becomes zero by movement is a share or a pattern N:M, got neither")

    @property
    def changes(self) -> bool:
        """Whether it changes anything."""
        return bool(self.share or self.block or self.keep)

    def end_of(self, steps: int) -> int:
        """Return the step by which all values are zero, of a run of some steps."""
        return 3 * steps // 4 if self.end is None else self.end


def check_share(share: float, block: tuple[int, int] | None) -> None:
    """Check that there is one rule of what becomes zero, and that it leaves something; raise ValueError if not."""
    if not 0 <= share < 1:
        raise ValueError(f"the share of zeros must be in [0, 1), got {share}")
    if block is not None and (share or not 0 < block[0] < block[1]):
        raise ValueError(f"a pattern N:M keeps some of M, 0 < N < M, and goes with no share, got {block} and {share}")


def largest(
    kernel: Float[Array, "..."], axes: Axes, share: Float[Array, ""] | float, block: tuple[int, int] | None = None
) -> Bool[Array, "..."]:
    """Return which values of a kernel are kept: all but a share of each layer's, or N of every M inputs.

    Raises:
      ValueError: M that does not divide the inputs.

    >>> largest(jnp.array([[1.0], [-3.0], [2.0], [0.5]]), Axes(0, 1, 1), 0.5)[:, 0].tolist()
    [False, True, True, False]
    """
    return best(jnp.abs(kernel.astype(jnp.float32)), axes, share, block)


def best(
    scores: Float[Array, "..."], axes: Axes, share: Float[Array, ""] | float, block: tuple[int, int] | None = None
) -> Bool[Array, "..."]:
    """Return which values of a kernel are kept by scores of any sign, the greatest; arguments as of `largest`."""
    lead, rest = scores.shape[: axes.layers], scores.shape[axes.layers :]
    if block is not None:
        inputs = math.prod(rest[: axes.inputs])
        few, many = block
        if inputs % many:
            raise ValueError(f"M of a pattern N:M must divide the inputs, got {few}:{many} for {inputs} inputs")
        groups = jnp.moveaxis(scores.reshape(*lead, inputs // many, many, -1), -2, -1)
        rank = jnp.argsort(jnp.argsort(-groups, axis=-1, stable=True), axis=-1, stable=True)
        return jnp.moveaxis(rank < few, -1, -2).reshape(scores.shape)
    flat = scores.reshape(*lead, -1)
    gone = jnp.floor(share * flat.shape[-1]).astype(jnp.int32)
    ordered = jnp.sort(flat, axis=-1)
    least = jnp.take(ordered, jnp.minimum(gone, flat.shape[-1] - 1), axis=-1)
    return (flat >= least[..., None]).reshape(scores.shape)


def share_at(config: SparsityConfig, step: Array, steps: int) -> Float[Array, ""]:
    """Return the share of zeros of a step."""
    end = config.end_of(steps)
    left = 1 - jnp.clip((step - config.begin) / max(end - config.begin, 1), 0, 1)
    return config.share * (1 - left**3)


def prunes_at(config: SparsityConfig, step: Array, steps: int) -> Bool[Array, ""]:
    """Return whether values become zero in a step of a run of so many."""
    end = config.end_of(steps)
    every = (step >= config.begin) & ((step - config.begin) % config.every == 0) & (step <= end)
    return every | (step == end)


def sparsify(config: SparsityConfig, steps: int) -> optax.GradientTransformation:
    """Make the last part of an optimizer, which sees to zeros.

    Args:
      steps: of the run.
    """

    def init(params: Any) -> Array:
        return jnp.zeros((), jnp.int32)

    def update(updates: Any, count: Array, params: Any) -> tuple[Any, Array]:
        axes = parameter_axes(params)

        def change(path: tuple, update: Array, param: Array, axes: Axes) -> Array:
            if not re.search(config.pattern, path_name(path)) or not axes.inputs:
                return update
            held = jnp.where(param == 0, 0, update)

            def prune() -> Array:
                kept = largest(param + held, axes, share_at(config, count, steps), config.block)
                return jnp.where(kept, held, -param)

            if not config.share and config.block is None:
                return held
            pruned = jax.lax.cond(prunes_at(config, count, steps), prune, lambda: held)
            return jnp.where(count >= config.begin, pruned, held if config.keep else update)

        return jax.tree_util.tree_map_with_path(change, updates, params, axes), count + 1

    return optax.GradientTransformation(init, update)
