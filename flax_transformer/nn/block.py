"""A block is the tuple of its sublayers, each with a residual around it.

Axes: B batch, T positions, S positions of a memory and W its width, D width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.listing import listed
from flax_transformer.nn.cache import KVCache, Memory
from flax_transformer.nn.check import check_hidden, check_widths
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.experts import observed
from flax_transformer.nn.module import Module
from flax_transformer.nn.residual import Residual, ResidualConfig
from flax_transformer.ops import Mask
from flax_transformer.ops.routing import real_positions
from flax_transformer.ops.split_keys import split_keys


@dataclass(frozen=True)
class Sublayer:
    """A layer of a block, and the residual around it."""

    name: str
    """The block's attribute that the layer is; `{name}_residual` is what is around it."""
    layer: Any
    """A config with `embed` (D), `takes` and `build(rngs)`, which makes `f(x, *, key=None)` of hidden states, as
    `AttentionConfig` and `FeedForwardConfig` do. `takes` names the arguments of the block that the layer is given;
    `takes_of_memory` those of one that attends to the memory, whose `mask` is the block's `memory_mask`. None: an empty
    place, which draws a key all the same, so that blocks with and without this layer draw alike."""
    residual: ResidualConfig
    """Norm, dropout and drop-path around the layer."""
    of_memory: bool = False
    """Whether it attends to the memory of the block, which is an error to leave out unless `layer.optional`."""

    def __post_init__(self):
        wanted = ("embed", "takes", "build")
        if self.layer is not None and (missing := [name for name in wanted if not hasattr(self.layer, name)]):
            raise ValueError(
                f"{self.name} must be a config of a sublayer, got {type(self.layer).__name__}, which has no "
                f"{', '.join(missing)}"
            )

    @property
    def arguments(self) -> Mapping[str, str]:
        """The arguments of a block that the layer is given, and what the layer calls them."""
        if self.layer is None:
            return {}
        if not self.of_memory:
            return {name: name for name in self.layer.takes}
        return {"memory_mask" if name == "mask" else name: name for name in self.layer.takes_of_memory}


class SublayersConfig:
    """What configs of a block have in common: `sublayers`, in the order in which they are applied, and `residual`."""

    parallel = False  # whether all sublayers see what the block is given

    def __post_init__(self):
        check_fields(self)
        widths = {part.name: part.layer.embed for part in self.sublayers if part.layer is not None}
        own = {
            f"{part.name}_residual": part.residual.embed for part in self.sublayers if part.residual != self.residual
        }
        check_widths(**widths, residual=self.residual.embed, **own)

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.residual.embed

    def build(self, rngs: nnx.Rngs) -> "Block":
        """Make the block."""
        return Block(self, rngs=rngs)


@frozen
class BlockConfig(SublayersConfig):
    """A block of any sublayers; `TransformerBlockConfig` is that of attention and feed-forward.

    >>> from flax_transformer.nn import AttentionConfig, FeedForwardConfig
    >>> residual = ResidualConfig(embed=8)
    >>> BlockConfig(
    ...     sublayers=(
    ...         Sublayer("near", AttentionConfig(embed=8, heads=2), residual),
    ...         Sublayer("far", AttentionConfig(embed=8, heads=1), residual),
    ...         Sublayer("feedforward", FeedForwardConfig(embed=8, inner=16), residual),
    ...     )
    ... ).embed
    8
    """

    sublayers: tuple[Sublayer, ...]
    """In the order in which they are applied."""

    def __post_init__(self):
        if not self.sublayers:
            raise ValueError("a block must have a sublayer, got none")
        if len(names := [part.name for part in self.sublayers]) > len(set(names)):
            raise ValueError(f"sublayers must have a name each, got {', '.join(names)}")
        super().__post_init__()

    @property
    def residual(self) -> ResidualConfig:
        """Around the last sublayer: it says whether a stack of such blocks ends in a norm."""
        return self.sublayers[-1].residual


class Block(Module):
    """One layer of an encoder, a decoder, or both.

    `ops.capture(f, "hidden_states")` gives what each layer is given.

    What a sublayer adds to the residual stream is marked by its name: "attention_output", "feedforward_output".
    """

    def __init__(self, cfg: SublayersConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        for part in self._parts():
            setattr(self, part.name, part.layer.build(rngs))
            setattr(self, f"{part.name}_residual", part.residual.build(rngs))

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | Memory | None = None,
        *,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
        **arguments: Any,
    ) -> Float[Array, "*B T D"]:
        """Apply the block.

        Args:
          memory: what cross-attention looks at, as hidden states or projected keys and values: see `Attention`.
          drop_path: how often a row does without a sublayer, in place of what the config says.
          key: for dropout; None means none.
          arguments: what sublayers take, each of those that declare it (`Sublayer.layer`); None is as if left out.
            Those of a Transformer's block:

            mask: what self-attention may see.
            memory_mask: what cross-attention may see.
            bias: added to the products of self-attention, e.g. relative positions.
            positions: of the T queries, for rotary.

        Raises:
          ValueError: an argument that no sublayer takes; a memory that is given to a block without cross-attention, or
            missing for one with it that needs one; or shapes that do not fit, a whole stack called as a block among
            them.
        """
        return self.observe(x, memory, drop_path=drop_path, key=key, **arguments)[0]

    def observe(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | Memory | None = None,
        *,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
        **arguments: Any,
    ) -> tuple[Float[Array, "*B T D"], dict[str, Float[Array, "*B"]]]:
        """Apply the block as in a call; return beside what its sublayers observe, added up by name: see `Experts`."""
        x, given = self._enter(x, memory, arguments)
        real = partial(real_positions, given.get("mask"), x.shape[-2])
        parts, aux, first = self.cfg.sublayers, {}, x
        for part, each in zip(parts, split_keys(key, len(parts)), strict=True):
            if _applies(part, given):
                source = self._source(part, first)
                x = self._apply(part, x, given, real, aux, source=source, key=each, drop_path=drop_path)
        return x, aux

    def extend(
        self,
        x: Float[Array, "*B T D"],
        cache: KVCache,
        memory: Memory | Float[Array, "*M S W"] | None = None,
        **arguments: Any,
    ) -> tuple[Float[Array, "*B T D"], KVCache]:
        """Apply the block to T more positions, of which the cache knows the earlier ones; the rest as in a call."""
        x, given = self._enter(x, memory, arguments)
        cached, length, index = self._cached(), cache.length, cache.index
        first = x

        def real():
            return _next_real(given.get("mask"), length, index, x.shape[-2])

        for part in self.cfg.sublayers:
            source = self._source(part, first)
            if part.name == cached.name:
                layer, residual = self._layer(part)
                seen = residual.enter(x if source is None else source)
                y, cache = layer.extend(seen, cache, **_arguments(part, given))
                x = residual.add(x, y)
            elif _applies(part, given):
                x = self._apply(part, x, given, real, {}, source=source)
        return x, cache

    def _source(self, part: Sublayer, x: Array) -> Array | None:
        """Return what a sublayer beside others sees of what the block is given; None: they come one after another."""
        if not self.cfg.parallel or part.layer is None:
            return None
        first = self._layer(self._parts()[0])[1]
        return first.enter(x) if part.residual.norm_position == "none" else x

    def _apply(
        self, part: Sublayer, x: Array, given: dict[str, Any], real: Callable, aux: dict[str, Array], **options: Any
    ) -> Array:
        """Apply a sublayer, and put what it observes into `aux`."""
        layer, residual = self._layer(part)

        def run(x: Array, *, key: PRNGKeyArray | None) -> Array:
            y, found = observed(layer, x, real=real, key=key, **_arguments(part, given))
            aux.update({name: aux[name] + value if name in aux else value for name, value in found.items()})
            return checkpoint_name(y, f"{part.name}_output")

        around = {name: given[name] for name in part.residual.takes if name in given}
        return residual(x, run, **around, **options)

    def _enter(self, x: Array, memory: Any, arguments: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
        """Return what the first sublayer is given, and the arguments that there are, the memory among them."""
        check_hidden(x, self.cfg.embed)
        parts = self._parts()
        attending = [part.layer for part in parts if part.of_memory]
        if not attending and memory is not None:
            raise ValueError("a block without cross-attention takes no memory, got one")
        if memory is None and not all(layer.optional for layer in attending):
            raise ValueError("a block with cross-attention needs a memory, got none")
        given = {name: value for name, value in arguments.items() if value is not None}
        taken = {name for part in parts for name in (*part.arguments, *part.residual.takes)}
        if unknown := given.keys() - taken:
            rule = ", ".join(sorted(taken)) or "none"
            raise ValueError(f"no sublayer of the block takes {listed(sorted(unknown))}; they take {rule}")
        return checkpoint_name(x, "hidden_states"), given if memory is None else {**given, "memory": memory}

    def _parts(self) -> list[Sublayer]:
        """Return the sublayers that there are."""
        return [part for part in self.cfg.sublayers if part.layer is not None]

    def _layer(self, part: Sublayer) -> tuple[Any, Residual]:
        return getattr(self, part.name), getattr(self, f"{part.name}_residual")

    def _cached(self) -> Sublayer:
        """Return the sublayer that remembers positions."""
        cached = [part for part in self._parts() if not part.of_memory and hasattr(self._layer(part)[0], "init_cache")]
        if len(cached) != 1:
            names = listed(part.name for part in cached) or "none"
            raise ValueError(f"a block that decodes must have one sublayer with a cache, got {names}")
        return cached[0]

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> KVCache:
        """Make an empty cache for `length` positions of `batch` sentences, `beams` hypotheses each."""
        return self._layer(self._cached())[0].init_cache(batch, length, beams=beams)

    def project(self, memory: Float[Array, "*B S W"], *, beams: int = 1) -> Memory:
        """Compute the keys and values of a memory, once for all positions: see `Attention.project`."""
        attending = [part for part in self._parts() if part.of_memory]
        if len(attending) != 1:
            raise ValueError(f"a memory must be projected by one sublayer that attends to it, got {len(attending)}")
        return self._layer(attending[0])[0].project(memory, beams=beams)

    def for_decoding(self) -> "Block":
        """Copy the block as decoding on a CPU wants it: see `Attention.for_decoding`."""
        copy, name = jax.tree.map(lambda leaf: leaf, self), self._cached().name
        setattr(copy, name, getattr(self, name).for_decoding())
        return copy


def _applies(part: Sublayer, given: Mapping[str, Any]) -> bool:
    """Whether a sublayer is there, and what it attends to."""
    return part.layer is not None and (not part.of_memory or "memory" in given)


def _arguments(part: Sublayer, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a sublayer is given, by the names that it has for it."""
    return {theirs: given[ours] for ours, theirs in part.arguments.items() if ours in given}


def _next_real(mask: Mask | None, length: int, index: Any, T: int) -> Array | None:
    """Return which of the T positions from `index` on of a cache are no padding, by a mask of all that it has."""
    real = real_positions(mask, length)
    return None if real is None else jax.lax.dynamic_slice_in_dim(real, index, T, axis=-1)
