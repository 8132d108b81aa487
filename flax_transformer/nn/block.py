"""The block: attention, cross-attention where asked for, feed-forward, a residual around each."""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import AttentionConfig, CrossAttentionConfig
from flax_transformer.nn.cache import KVCache, Memory
from flax_transformer.nn.check import check_hidden, check_widths
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.experts import ExpertsConfig, observed
from flax_transformer.nn.feedforward import FeedForwardConfig
from flax_transformer.nn.module import Module
from flax_transformer.nn.residual import Residual, ResidualConfig
from flax_transformer.ops import Mask
from flax_transformer.ops.routing import real_positions


@frozen
class BlockConfig:
    """A Transformer block: its sublayers in order, and the residual around each; `transformer_block` writes it shorter.

    A subclass of a sublayer's config that builds another module puts that in its place.
    """

    attention: AttentionConfig
    """Self-attention."""
    feedforward: FeedForwardConfig
    """The feed-forward layer."""
    residual: ResidualConfig
    """Around each sublayer."""
    cross: AttentionConfig | None = None
    """Attention to a memory, between self-attention and feed-forward; None: the block takes no memory. A
    `CrossAttentionConfig` where the memory is of another width, or may be missing."""
    feedforward_residual: ResidualConfig | None = None
    """Around the feed-forward layer; None: as around the others."""

    def __post_init__(self):
        check_fields(self)
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        check_widths(**{name: part.embed for name, part in parts.items() if part is not None})

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.residual.embed

    def resolved(self) -> "BlockConfig":
        """Spell out what None stands for, so that blocks that are the same are equal."""
        return replace(self, feedforward_residual=self.feedforward_residual or self.residual)

    def build(self, rngs: nnx.Rngs) -> "Block":
        """Make the block."""
        return Block(self, rngs=rngs)


def transformer_block(*, cross: bool | Mapping[str, Any] = False, **options: Any) -> BlockConfig:
    """Make a block's config of what its parts are to be, by name.

    Args:
      cross: whether the block attends to a memory too, with a layer like that of its self-attention; or what a
        `CrossAttentionConfig` has besides, such as the width of the memory.
      options: fields of `AttentionConfig`, `FeedForwardConfig` (with `experts`: `ExpertsConfig`) and `ResidualConfig`.
        Each goes to every part that has a field of its name: `embed`, `bias`, `init_std` and `precision` are said once.

    Raises:
      ValueError: a name that no part has, or values that do not fit.

    >>> transformer_block(embed=64, heads=4, inner=256, norm_position="pre").residual.norm_position
    'pre'
    """
    feedforward = ExpertsConfig if "experts" in options else FeedForwardConfig
    kinds = {"attention": AttentionConfig, "feedforward": feedforward, "residual": ResidualConfig}
    known = {part: {field.name for field in fields(kind)} for part, kind in kinds.items()}
    if unknown := sorted(set(options).difference(*known.values())):
        raise ValueError(
            f"no part of a block has {', '.join(unknown)}; they have {sorted(set().union(*known.values()))}"
        )
    parts = {p: kind(**{n: v for n, v in options.items() if n in known[p]}) for p, kind in kinds.items()}
    layer = parts["attention"] if cross else None
    if isinstance(cross, Mapping):
        shared = {field.name: getattr(parts["attention"], field.name) for field in fields(AttentionConfig)}
        layer = CrossAttentionConfig(**{**shared, **cross})
    return BlockConfig(**parts, cross=layer)


class Block(Module):
    """One layer of an encoder, a decoder, or both; `ops.capture(f, "hidden_states")` gives what each layer is given."""

    def __init__(self, cfg: BlockConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.attention = cfg.attention.build(rngs)
        self.attention_residual = Residual(cfg.residual, rngs=rngs)
        if cfg.cross is not None:
            self.cross = cfg.cross.build(rngs)
            self.cross_residual = Residual(cfg.residual, rngs=rngs)
        self.feedforward = cfg.feedforward.build(rngs)
        self.feedforward_residual = Residual(cfg.feedforward_residual or cfg.residual, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | Memory | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Apply the block.

        Args:
          memory: what cross-attention looks at, as hidden states or projected keys and values: see `Attention`.
          mask: what self-attention may see.
          memory_mask: what cross-attention may see.
          bias: added to the products of self-attention, e.g. relative positions.
          positions: of the T queries, for rotary.
          drop_path: how often a row does without a sublayer, in place of what the config says.
          key: for dropout; None means none.

        Raises:
          ValueError: when a memory is given to a block without cross-attention, or missing for one with it that needs
            one; or shapes that do not fit, a whole stack called as a block among them.
        """
        attending = {"mask": mask, "bias": bias, "positions": positions}
        return self._observe(x, memory, attending, memory_mask, drop_path, key)[0]

    def observe(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | Memory | None = None,
        *,
        memory_mask: Mask | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
        **attending: Any,
    ) -> tuple[Float[Array, "*B T D"], dict[str, Float[Array, "*B"]]]:
        """Apply the block as in a call; give beside what its feed-forward layer tells: see `Experts`.

        Args:
          attending: `mask`, `bias` and `positions` of self-attention; the rest as in a call.
        """
        return self._observe(x, memory, attending, memory_mask, drop_path, key)

    def _observe(
        self, x: Array, memory: Any, attending: dict, memory_mask: Mask | None, drop_path: Any, key: Any
    ) -> tuple[Array, dict[str, Array]]:
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        x = self._given(x, memory)
        x = self.attention_residual(x, partial(self.attention, **attending), key=keys[0], drop_path=drop_path)
        real = partial(real_positions, attending.get("mask"), x.shape[-2])
        return self._rest(x, memory, memory_mask, keys, drop_path, real=real)

    def extend(
        self,
        x: Float[Array, "*B T D"],
        cache: KVCache,
        memory: Memory | Float[Array, "*M S W"] | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
    ) -> tuple[Float[Array, "*B T D"], KVCache]:
        """Apply the block to T more positions, of which the cache knows the earlier ones; the rest as in a call."""
        x = self._given(x, memory)
        y, cache = self.attention.extend(
            self.attention_residual.enter(x), cache, mask=mask, bias=bias, positions=positions
        )
        real = partial(_next_real, mask, cache.length, cache.index - x.shape[-2], x.shape[-2])
        return self._rest(self.attention_residual.add(x, y), memory, memory_mask, real=real)[0], cache

    def _rest(
        self,
        x: Array,
        memory: Any,
        memory_mask: Mask | None,
        keys: Any = (None,) * 3,
        drop_path: Any = None,
        *,
        real: Callable[[], Array | None],
    ) -> tuple[Array, dict[str, Array]]:
        """Apply what comes after self-attention; give what the feed-forward layer tells. `real`: see `observed`."""
        if memory is not None:
            look = partial(self.cross, memory=memory, mask=memory_mask)
            x = self.cross_residual(x, look, key=keys[1], drop_path=drop_path)
        told: dict[str, Array] = {}

        def feed(x: Array, *, key: PRNGKeyArray | None) -> Array:
            y, found = observed(self.feedforward, x, real=real, key=key)
            told.update(found)
            return y

        return self.feedforward_residual(x, feed, key=keys[2], drop_path=drop_path), told

    def _given(self, x: Array, memory: Any) -> Array:
        check_hidden(x, self.cfg.embed)
        if memory is None and self.cfg.cross is not None and self.cfg.cross.optional:
            return checkpoint_name(x, "hidden_states")
        if (self.cfg.cross is None) == (memory is not None):
            rule = "without cross-attention takes no memory, got one"
            rule = rule if self.cfg.cross is None else "with cross-attention needs a memory, got none"
            raise ValueError(f"a block {rule}")
        return checkpoint_name(x, "hidden_states")

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> KVCache:
        """Make an empty cache for `length` positions of `batch` sentences, `beams` hypotheses each."""
        return self.attention.init_cache(batch, length, beams=beams)

    def project(self, memory: Float[Array, "*B S W"], *, beams: int = 1) -> Memory:
        """Compute the keys and values of a memory, once for all positions: see `Attention.project`."""
        return self.cross.project(memory, beams=beams)

    def for_decoding(self) -> "Block":
        """Copy the block as decoding on a CPU wants it: see `Attention.for_decoding`."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.attention = self.attention.for_decoding()
        return copy


def _next_real(mask: Mask | None, length: int, index: Any, T: int) -> Array | None:
    """Say which of the T positions from `index` on of a cache are no padding, by a mask of all that it has."""
    real = real_positions(mask, length)
    return None if real is None else jax.lax.dynamic_slice_in_dim(real, index, T, axis=-1)
