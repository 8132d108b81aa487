"""The trunk of every encoder and decoder: a stack of blocks, relative positions, a norm at its end.

Axes: B batch, T positions, S positions of a memory and W its width, D width, N heads.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.cache import Caches, LayerMemory, Memories, cache_length
from flax_transformer.nn.config import check_at_least, check_fields, check_rates
from flax_transformer.nn.layer_drop import LayerDrop
from flax_transformer.nn.module import Module
from flax_transformer.nn.relative import AlibiConfig, RelativeConfig
from flax_transformer.nn.stack import (
    Cycle,
    PerLayer,
    apply_stack,
    every_layer,
    extend_stack,
    init_stack,
    map_stack,
    observe_stack,
    unstack,
)
from flax_transformer.ops import Mask
from flax_transformer.order import Stack


@frozen
class TrunkConfig:
    """A stack of blocks, and how it runs."""

    block: Any
    """A `BlockConfig`, or any config with `embed` (D), `residual` (a `ResidualConfig`, which says whether the stack
    ends in a norm) and `build(rngs)`, which makes a block `f(x, *, key=None)`. One that decodes has `init_cache`,
    `extend` and, of a memory, `project`, as `Block` has them: what it remembers is its own business (`LayerCache`)."""
    depth: int = 12
    """L, blocks."""
    relative: RelativeConfig | AlibiConfig | None = None
    """Relative positions, as biases on attention that all blocks share: of T5, or ALiBi."""
    drop_path: float = 0.0
    """How often a row does without a sublayer of the last block, while training; it grows linearly from 0 in the first
    block (Huang et al. 2016). 0: as the blocks themselves say."""
    layer_drop: float = 0.0
    """How often a row does without a whole block, the same for all, in training (LayerDrop, Fan et al. 2020): a stack
    that is trained so bears that `compress.keep_layers` removes some."""
    unroll: int | bool = 1
    """Blocks per loop iteration; True for no loop."""
    remat: Literal["none", "full", "attention", "dots", "offload"] = "none"
    """What a block keeps for its backward pass: see `nn.REMAT`."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "depth")
        check_rates(self, "drop_path", "layer_drop")
        if missing := [name for name in ("embed", "residual", "build") if not hasattr(self.block, name)]:
            raise ValueError(
                f"block must be a config of a block, as BlockConfig is, got {type(self.block).__name__}, which has no "
                f"{', '.join(missing)}"
            )

    @property
    def cross(self) -> bool:
        """Whether the blocks attend to a memory."""
        return getattr(self.block, "cross", None) is not None

    @property
    def end_norm(self) -> bool:
        """Whether the stack ends in a norm, as one of pre-norm blocks does."""
        return self.block.residual.norm_position in ("pre", "both")

    @property
    def numbers_layers(self) -> bool:
        """Whether blocks are told the number of their layer, as some residuals want it."""
        return any("layer" in part.residual.takes for part in getattr(self.block, "sublayers", ()))

    def build(self, rngs: nnx.Rngs) -> nnx.Module:
        """Make what the config describes."""
        return self.make_trunk(rngs=rngs)

    def make_trunk(self, *, causal: bool = False, key: PRNGKeyArray | None = None, rngs: nnx.Rngs) -> "Trunk":
        """Make the trunk of what the config describes, as `Trunk` says; a subclass may have another kind of it."""
        return Trunk(self, causal=causal, key=key, rngs=rngs)


@frozen
class StageConfig(TrunkConfig):
    """One of several stacks, whose last one is followed by a norm of the model's own."""

    end_norm = False


class Trunk(Module):
    """Hidden states in, hidden states out: `trunk(x, mask=mask)`; `extend` goes on where a cache ends.

    `ops.capture(f, "trunk_output")` gives what comes before the norm at the end.
    """

    layer_order = ("relative", Stack("blocks"), "norm")

    def __init__(self, cfg: TrunkConfig, *, causal: bool = False, key: PRNGKeyArray | None = None, rngs: nnx.Rngs):
        """Make the parameters.

        Args:
          causal: whether relative positions are all in the past, as a decoder's.
          key: of the blocks, from `rngs` by default. With one the relative positions are left out, for
            `init_relative`: who makes several trunks says in which order they draw.
        """
        self.cfg, self.causal = cfg, causal
        self.blocks = init_stack(cfg.block.build, cfg.depth, key=rngs.params() if key is None else key)
        if cfg.end_norm:
            self.norm = cfg.block.residual.make_norm(rngs)
        if key is None:
            self.init_relative(rngs)

    def init_relative(self, rngs: nnx.Rngs) -> None:
        """Make the relative positions, if there are any."""
        if self.cfg.relative is not None:
            heads, precision = self.cfg.block.attention.heads, self.cfg.block.attention.precision
            self.relative = self.cfg.relative.build(heads, causal=self.causal, precision=precision, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | LayerMemory | PerLayer | None = None,
        *,
        mask: Mask | Cycle | None = None,
        memory_mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | Int[Array, "*#B T axes"] | None = None,
        key: PRNGKeyArray | None = None,
        **others: Any,
    ) -> Float[Array, "*B T D"]:
        """Run the blocks, which are given what is not None.

        Args:
          memory: what cross-attention looks at; all blocks look at the same, unless they have each its own keys and
            values, `PerLayer(trunk.project(memory))`.
          mask: what self-attention may see; of several, in a `Cycle`, blocks take turns.
          memory_mask: what cross-attention may see.
          positions: of the T queries, for rotary.
          key: for dropout; None means none.
          others: what else blocks of this kind take; it comes before what is said here.
        """
        given = {"mask": mask, "memory_mask": memory_mask, "positions": positions, **others}
        return self._end(apply_stack(self._dropped(key), x, *_given(memory), **self._options(x, key, given)))

    def observe(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | LayerMemory | None = None,
        *,
        key: PRNGKeyArray | None = None,
        **given: Any,
    ) -> tuple[Float[Array, "*B T D"], Any]:
        """Run the blocks as in a call; give beside what each of them tells, on a leading layer axis.

        Args:
          given: as in a call.
        """
        x, aux = observe_stack(self._dropped(key), x, *_given(memory), **self._options(x, key, given))
        return self._end(x), aux

    def states(
        self, x: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None, **given: Any
    ) -> Float[Array, "L *B T D"]:
        """Run the blocks as in a call, without memory; give what each of them gives, before the norm at the end.

        Args:
          given: as in a call.
        """
        return every_layer(self._dropped(key), x, **self._options(x, key, given))

    def _dropped(self, key: PRNGKeyArray | None, blocks: Any = None) -> Any:
        """Return the blocks, or others, as they run: where something is random, some rows may do without."""
        blocks = self.blocks if blocks is None else blocks
        return LayerDrop(blocks, self.cfg.layer_drop) if self.cfg.layer_drop and key is not None else blocks

    def _options(self, x: Array, key: PRNGKeyArray | None, given: dict[str, Any]) -> dict[str, Any]:
        """Return how the stack runs, and what its blocks are given."""
        own = {"drop_path": self.drop_rates(key), "layer": self.layer_numbers()}
        options = {"bias": self._bias(*2 * x.shape[-2:-1]), **own, **given, "key": key}
        said = {name: value for name, value in options.items() if value is not None}
        return {**said, "unroll": self.cfg.unroll, "remat": self.cfg.remat}

    def extend(
        self,
        x: Float[Array, "*B T D"],
        cache: Caches,
        memory: Memories | None = None,
        *,
        index: Int[Array, ""],
        mask: Mask | Cycle | None = None,
        memory_mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | Int[Array, "*#B T axes"] | None = None,
    ) -> tuple[Float[Array, "*B T D"], Caches]:
        """Run the blocks on T more positions; give the caches with them in.

        Args:
          memory: each block's own keys and values, as `project` gives them.
          index: positions that the cache has; the rest as in a call.
        """
        given = {
            "mask": mask, "memory_mask": memory_mask, "positions": positions,
            "bias": self._bias(x.shape[-2], cache_length(cache), index),
        }  # fmt: skip
        x, cache = extend_stack(
            self.blocks, x, cache, *_given(None if memory is None else PerLayer(memory)), unroll=self.cfg.unroll,
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        return self._end(x), cache

    def drop_rates(self, key: PRNGKeyArray | None) -> PerLayer | None:
        """Return each block's rate of doing without a sublayer; None: as the blocks say, or nothing is random."""
        cfg = self.cfg
        return PerLayer(jnp.linspace(0, cfg.drop_path, cfg.depth)) if cfg.drop_path and key is not None else None

    def layer_numbers(self) -> PerLayer | None:
        """Return each block's number, from 0 on; None: blocks do not ask for it."""
        return PerLayer(jnp.arange(self.cfg.depth)) if self.cfg.numbers_layers else None

    def _end(self, x: Array) -> Array:
        x = checkpoint_name(x, "trunk_output")
        return self.norm(x) if self.cfg.end_norm else x

    def _bias(self, T: int, S: int, offset: Array | int = 0) -> Array | None:
        return None if self.cfg.relative is None else self.relative(T, S, offset)

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> Caches:
        """Make empty caches for `length` positions of `batch` sentences, `beams` hypotheses each."""
        return map_stack(lambda block: block.init_cache(batch, length, beams=beams), self.blocks)

    def project(self, memory: Float[Array, "*B S W"], *, beams: int = 1) -> Memories:
        """Compute each block's keys and values of a memory, once for all positions: see `Attention.project`."""
        return map_stack(lambda block: block.project(memory, beams=beams), self.blocks)

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: those of the input."""
        return mask

    def for_decoding(self) -> "Trunk":
        """Copy the trunk as decoding on a CPU wants it: blocks apart (see `unstack`), each laid out for it."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.blocks = nnx.List([block.for_decoding() for block in unstack(self.blocks)])
        return copy


def stage_drop_rates(rate: float, depths: Sequence[int], key: PRNGKeyArray | None) -> list[dict[str, PerLayer]]:
    """Return what stacks one on top of another are told of stochastic depth, as their argument `drop_path`.

    Args:
      rate: that of the last block of all; it grows linearly from 0 in the first.
      depths: blocks of each stack.
      key: None means that nothing is random, and that stacks are told nothing.
    """
    if not rate or key is None:
        return [{} for _ in depths]
    rates = jnp.split(jnp.linspace(0, rate, sum(depths)), np.cumsum(depths)[:-1])
    return [{"drop_path": PerLayer(each)} for each in rates]


def _given(memory: Any) -> list:
    return [] if memory is None else [memory]
