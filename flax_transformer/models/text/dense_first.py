"""A decoder whose first blocks have a dense feed-forward layer, and all others experts.

Blocks of one kind are a stack, so that there are two of them. Axes: B batch, T positions, D width, L layers.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.causal import CausalConfig
from flax_transformer.nn import (
    Caches,
    FeedForwardConfig,
    PerLayer,
    Trunk,
    apply_stack,
    every_layer,
    extend_stack,
    init_stack,
    map_stack,
    unstack,
)
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.trunk import stage_drop_rates
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Stack


@frozen
class DenseFirstConfig(CausalConfig):
    """A decoder of `dense_depth` blocks with a dense layer, and then `depth` as `block` says."""

    dense: FeedForwardConfig
    """The feed-forward layer of the first blocks, which are else as the others."""
    dense_depth: int = 1
    """How many there are."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 0, "dense_depth")
        if self.dense.embed != self.block.embed:
            raise ValueError(f"blocks must be of one width, got D={self.dense.embed} and D={self.block.embed}")
        each = self.relative or self.falling_scale or self.numbers_layers
        if each or isinstance(self.window, tuple):
            raise ValueError(
                "two stacks of blocks have nothing that is shared by them or goes by the number of a layer: no "
                "relative positions, scales that fall, first layers without a norm or windows in turns"
            )

    @property
    def dense_block(self) -> Any:
        """What the first blocks are."""
        return replace(self.block, feedforward=self.dense)

    def make_trunk(self, *, causal: bool = False, key: PRNGKeyArray | None = None, rngs: nnx.Rngs) -> Trunk:
        """Make the trunk; arguments as `Trunk`'s."""
        kind = DenseFirstTrunk if self.dense_depth else Trunk
        return kind(self, causal=causal, key=key, rngs=rngs)


class DenseFirstTrunk(Trunk):
    """Two stacks, `dense_blocks` below `blocks`; the caches are those of each, or of all layers where they are apart.

    What blocks tell (`observe`) is told by the upper ones alone.
    """

    layer_order = (Stack("dense_blocks"), Stack("blocks"), "norm")

    def __init__(self, cfg: DenseFirstConfig, *, causal: bool = False, key: PRNGKeyArray | None = None, rngs: nnx.Rngs):
        """Make the parameters; arguments as `Trunk`'s."""
        lower, upper = split_keys(rngs.params() if key is None else key)
        super().__init__(cfg, causal=causal, key=upper, rngs=rngs)
        self.dense_blocks = init_stack(cfg.dense_block.build, cfg.dense_depth, key=lower)

    def __call__(
        self, x: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None, **given: Any
    ) -> Float[Array, "*B T D"]:
        """Run the blocks; arguments as `Trunk`'s, but that there is no memory."""
        lower, upper = split_keys(key)
        return super().__call__(self._below(apply_stack, x, lower, given), key=upper, **given)

    def observe(
        self, x: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None, **given: Any
    ) -> tuple[Float[Array, "*B T D"], Any]:
        """Run the blocks as in a call; give beside what each of the upper ones tells, on a leading layer axis."""
        lower, upper = split_keys(key)
        return super().observe(self._below(apply_stack, x, lower, given), key=upper, **given)

    def states(
        self, x: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None, **given: Any
    ) -> Float[Array, "L *B T D"]:
        """Run the blocks as in a call; give what each of them gives, before the norm at the end."""
        lower, upper = split_keys(key)
        first = self._below(every_layer, x, lower, given)
        return jnp.concatenate([first, super().states(first[-1], key=upper, **given)])

    def _below(self, run: Any, x: Array, key: PRNGKeyArray | None, given: dict[str, Any]) -> Array:
        """Run the lower blocks."""
        rates = stage_drop_rates(self.cfg.drop_path, (self.cfg.dense_depth, self.cfg.depth), key)[0]
        return run(self._dropped(key, self.dense_blocks), x, **self._options(x, key, {**given, **rates}))

    def drop_rates(self, key: PRNGKeyArray | None) -> PerLayer | None:
        """Return each upper block's rate of doing without a sublayer; see `Trunk.drop_rates`."""
        rates = stage_drop_rates(self.cfg.drop_path, (self.cfg.dense_depth, self.cfg.depth), key)
        return rates[1].get("drop_path")

    def extend(
        self, x: Float[Array, "*B T D"], cache: Caches, *, index: Int[Array, ""], **given: Any
    ) -> tuple[Float[Array, "*B T D"], Caches]:
        """Run the blocks on T more positions; give the caches with them in; arguments as `Trunk`'s."""
        apart = isinstance(self.blocks, nnx.List)
        first, rest = (cache[: len(self.dense_blocks)], cache[len(self.dense_blocks) :]) if apart else cache
        said = {name: value for name, value in given.items() if value is not None}
        x, first = extend_stack(self.dense_blocks, x, first, unroll=self.cfg.unroll, **said)
        x, rest = super().extend(x, rest, index=index, **given)
        return x, self._caches(first, rest)

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> Caches:
        """Make empty caches for `length` positions of `batch` sentences, `beams` hypotheses each."""
        first = map_stack(lambda block: block.init_cache(batch, length, beams=beams), self.dense_blocks)
        return self._caches(first, super().init_cache(batch, length, beams=beams))

    def _caches(self, first: Caches, rest: Caches) -> Caches:
        return (*first, *rest) if isinstance(self.blocks, nnx.List) else (first, rest)

    def for_decoding(self) -> "DenseFirstTrunk":
        """Copy the trunk as decoding on a CPU wants it: the blocks of both stacks apart."""
        copy = super().for_decoding()
        copy.dense_blocks = nnx.List([block.for_decoding() for block in unstack(self.dense_blocks)])
        return copy
