"""What blocks remember: of attention a memory's keys and values, and those of the positions decoded so far.

Keys are kept as [*B K H S] and values as [*B K S H], the order in which attention multiplies, so that no step
transposes them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import qwix
from einops import rearrange
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int
from qwix import QArray

from flax_transformer.nn.check import check_beams
from flax_transformer.nn.quantized import ACTIVATIONS
from flax_transformer.ops import Mask


class LayerMemory(ABC):
    """What a block makes of a memory once, and uses at every decoding step; a pytree."""

    @abstractmethod
    def share(self, beams: int) -> "LayerMemory":
        """Share each row among so many rows of queries, one after another."""


class LayerCache(ABC):
    """What a block remembers of the positions seen so far; a pytree."""

    @property
    @abstractmethod
    def length(self) -> int:
        """The positions there is room for."""

    @abstractmethod
    def fork(self, beams: int, length: int) -> "LayerCache":
        """Prepare for `beams` hypotheses of every sentence, up to `length` positions; the cache is full of their
        prompt."""

    @abstractmethod
    def reorder(self, rows: Int[Array, "R"]) -> "LayerCache":
        """Reorder: row i continues what row `rows[i]` was, a hypothesis of the same sentence."""

    @abstractmethod
    def grow(self, length: int) -> "LayerCache":
        """Make room for `length` positions in all."""

    def by_row(self) -> "LayerCache":
        """Give each row an index of its own, so that rows can go on from different positions: see `map_rows`.

        Raises:
          ValueError: a cache of more than keys and values, which cannot forget what came after a position.
        """
        raise ValueError(f"caches of keys and values can go back to earlier positions, {type(self).__name__} cannot")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory(LayerMemory):
    """A memory's keys and values, projected once by `Attention.project`, used at every decoding step.

    Fields are arrays, or what stands for them in a tree of shapes or shardings.
    """

    key: Any
    """[*B K H S]; of few bits a `qwix.QArray` with scales [*B K 1 S]."""
    value: Any
    """[*B K S H]; of few bits with scales [*B K S 1]."""
    beams: int = field(default=1, kw_only=True, metadata={"static": True})
    """W, how many rows of queries, one after another, share each row: the hypotheses of a sentence."""

    @classmethod
    def of(cls, key: Float[Array, "*B S K H"], value: Float[Array, "*B S K H"], beams: int = 1) -> "Memory":
        """Lay keys and values out in memory as they will be multiplied.

        Without the constraint XLA keeps them as they were computed, and transposes them at every step. On several
        devices it would gather them whole, so there it is left out.
        """
        one = jax.sharding.get_abstract_mesh().size <= 1

        def fix(x):
            return with_layout_constraint(x, Layout(tuple(range(x.ndim)))) if one else x

        key, value = rearrange(key, "... S K H -> ... K H S"), rearrange(value, "... S K H -> ... K S H")
        return cls(fix(key), fix(value), beams=beams)

    def share(self, beams: int) -> "Memory":
        """Share each row among so many rows of queries."""
        return replace(self, beams=beams)

    def by_position(self) -> tuple[Any, Any]:
        """Return keys and values [*B, S, K, H] as `attention` takes them; XLA folds the transposition into the product.

        Those of few bits are `qwix.QArray`s with scales [*B, S, K, 1].
        """
        return _rearranged(self.key, "... K H S -> ... S K H"), _rearranged(self.value, "... K S H -> ... S K H")

    def quantize(self, kind: str) -> "Memory":
        """Round keys and values: each head's at each position by the largest of its H numbers.

        Args:
          kind: one of `nn.quantized.ACTIVATIONS`.

        Raises:
          ValueError: another kind, or keys and values that have few bits.
        """
        check_cache_kind(kind)
        if isinstance(self.key, QArray):
            raise ValueError(f"a cache is rounded once, this one has {jnp.dtype(self.key.qtype).name} already")
        return replace(self, key=_rounded(self.key, kind, -2), value=_rounded(self.value, kind, -1))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache(Memory, LayerCache):
    """Keys and values of the positions seen so far; the first `index` of S are filled.

    In beam search the W hypotheses of a sentence share one row: first the P `shared` positions of its prompt, then W
    slots for every position, so that position s of slot w is entry P + (s - P)·W + w. When hypotheses are selected,
    nothing but `ancestry` moves: it says in which slot each of them finds each of its own positions, -1 where there is
    none yet. A hypothesis looks at the sentence's whole row, and the mask hides what is not its own.

    A single sentence has no batch axis: on a CPU XLA copies the whole cache at every step to get rid of an axis of
    size 1.
    """

    index: Any
    """[*L]."""
    ancestry: Any = None
    """[*B W S - P]; None without beams."""
    shared: int = field(default=0, metadata={"static": True})
    """P, positions that all hypotheses have in common."""

    @property
    def length(self) -> int:
        """S, the positions there is room for."""
        return self.shared + (self.value.shape[-2] - self.shared) // self.beams

    @property
    def batched(self) -> bool:
        """Whether there is a batch axis: the cache of a single sentence has none."""
        return self.value.ndim - self.index.ndim == 4

    def append(self, key: Float[Array, "*R T K H"], value: Float[Array, "*R T K W"]) -> "KVCache":
        """Write T more positions. Where there is no room for them, what is read from then on is NaN.

        Args:
          key, value: R = B·W rows, the W hypotheses of a sentence after one another.

        Raises:
          ValueError: other rows than the cache has, or more positions than it could ever hold.
        """
        *rows, T, K, _ = key.shape
        sentences = math.prod(self.value.shape[:-3])
        if math.prod(rows) != sentences * self.beams:
            raise ValueError(
                f"a cache of {sentences} × {self.beams} rows takes as many, sentences times beams, got {tuple(rows)}"
            )
        if self.length < T:
            raise ValueError(f"a cache has room for {self.length} positions, got {T} at once; `grow` makes more")
        # XLA would move a write that does not fit and overwrite earlier positions.
        value = jnp.where(self.index + T <= self.length, value, jnp.nan)
        at = self.shared + (self.index - self.shared) * self.beams
        shape = (*self.value.shape[:-3], T * self.beams, K)

        def write(kept: Any, new: Array, pattern: str, axis: int) -> Any:
            def put(old: Array, new: Array) -> Array:
                new = rearrange(new.reshape(-1, self.beams, T, *new.shape[-2:]), "B W T K H -> B T W K H")
                new = rearrange(new.reshape(*shape, -1), pattern).astype(old.dtype)
                return jax.lax.dynamic_update_slice_in_dim(old, new, at, axis)

            new = _rounded(new, kept.qtype, -1) if isinstance(kept, QArray) else new
            return jax.tree.map(put, kept, new)

        key = write(self.key, key, "... S K H -> ... K H S", -1)
        value = write(self.value, value, "... S K H -> ... K S H", -2)
        return replace(self, key=key, value=value, index=self.index + T, ancestry=self._ancestry(T))

    def by_row(self) -> "KVCache":
        """Give each row an index of its own: a cache of rows is then one of single sentences, side by side."""
        if self.ancestry is not None:
            raise ValueError(f"hypotheses of a sentence are of one length, got {self.beams} beams")
        if not self.batched:
            return self
        rows = self.value.shape[self.index.ndim]
        return replace(self, index=jnp.broadcast_to(self.index[..., None], (*self.index.shape, rows)))

    def repeat(self, rows: int) -> "KVCache":
        """Let so many rows go on from what a single sentence has read."""
        if rows == 1:
            return self
        if self.batched or self.ancestry is not None:
            raise ValueError("a cache of one sentence without beams is repeated, got one of several")

        def spread(x: Array) -> Array:
            x = jnp.expand_dims(x, self.index.ndim)
            return jnp.broadcast_to(x, (*x.shape[: self.index.ndim], rows, *x.shape[self.index.ndim + 1 :]))

        return replace(self, key=jax.tree.map(spread, self.key), value=jax.tree.map(spread, self.value))

    def at(self, index: Int[Array, ""]) -> "KVCache":
        """Forget what comes after the first `index` positions."""
        return replace(self, index=jnp.broadcast_to(index, self.index.shape).astype(self.index.dtype))

    def _ancestry(self, T: int) -> Int[Array, "*B W S"] | None:
        """Note that each hypothesis finds the T positions after `index` in its own slot."""
        if self.ancestry is None:
            return None
        slots = jnp.broadcast_to(jnp.arange(self.beams, dtype=jnp.int32)[:, None], (*self.ancestry.shape[:-1], T))
        return jax.lax.dynamic_update_slice_in_dim(self.ancestry, slots, self.index - self.shared, axis=-1)

    def visible(self, mask: Mask | None, T: int) -> Mask:
        """Return what T queries about to be appended may see: nothing unwritten, no future, no other hypothesis.

        Args:
          mask: what else is hidden, for R rows and S positions. Its offset is `index` where the caller knows that when
            the program is compiled: fused kernels ask for it. A union of masks (`|`) says itself what of the T queries'
            future is seen.
        """
        mask = mask or Mask()
        mask = mask & (Mask(lengths=self.index + T) if mask.also else Mask(causal=True))
        mask = mask.at(self.index) if mask.offset is None else mask
        if self.ancestry is None and not mask.also and mask.lengths is mask.segments is mask.dense is None:
            return mask
        W, seen = self.beams, mask.materialize(T, self.length)
        seen = seen.reshape((1,) * (4 - seen.ndim) + seen.shape)
        seen = rearrange(seen, "(B W) N T S -> B N W T S 1", W=W if seen.shape[0] > 1 else 1)
        common, own = jnp.split(seen, [self.shared], axis=-2)
        if self.ancestry is not None:
            own = own & (self._ancestry(T).reshape(-1, 1, W, 1, self.length - self.shared, 1) == jnp.arange(W))
            common = jnp.broadcast_to(common, (*own.shape[:-2], *common.shape[-2:]))
        dense = [rearrange(part, "B N W T S slot -> B N (W T) (S slot)") for part in (common, own)]
        dense = jnp.concatenate(dense, axis=-1)
        return Mask(dense=dense if self.batched else dense[0])

    def spread(self, bias: Float[Array, "..."] | None) -> Float[Array, "..."] | None:
        """Lay a bias [..., T, S] out as attention over the cache has its queries and keys."""
        if bias is None or self.ancestry is None:
            return bias
        common, own = jnp.split(bias, [self.shared], axis=-1)
        own = jnp.repeat(own, self.beams, axis=-1)
        return jnp.concatenate([jnp.concatenate([common, own], axis=-1)] * self.beams, axis=-2)

    def fork(self, beams: int, length: int) -> "KVCache":
        """Prepare for `beams` hypotheses of every sentence, up to `length` positions; the cache has their prompt.

        The prompt is kept once a sentence.
        """
        check_beams(beams)
        if beams == 1:
            return self.grow(length)
        ancestry = jnp.full((*self.value.shape[:-3], beams, 0), -1, jnp.int32)
        return replace(self, ancestry=ancestry, beams=beams, shared=self.length).grow(length)

    def reorder(self, rows: Int[Array, "R"]) -> "KVCache":
        """Reorder: row i continues what row `rows[i]` was, a hypothesis of the same sentence."""
        if self.ancestry is not None:
            slots = (rows % self.beams).reshape(*self.ancestry.shape[self.index.ndim : -1], 1)
            slots = jnp.broadcast_to(slots, (*self.ancestry.shape[:-1], 1))
            return replace(self, ancestry=jnp.take_along_axis(self.ancestry, slots, axis=-2, mode="clip"))
        if not self.batched:
            return self

        def pick(x):
            return jnp.take(x, rows, axis=-4, mode="clip")

        return replace(self, key=jax.tree.map(pick, self.key), value=jax.tree.map(pick, self.value))

    def grow(self, length: int) -> "KVCache":
        """Make room for `length` positions in all."""
        more = length - self.length
        if more < 0:
            raise ValueError(f"a cache cannot shrink: it has room for {self.length} positions, asked for {length}")

        def pad(x: Array, axis: int, by: int, fill: int) -> Array:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, by)
            return jnp.pad(x, widths, constant_values=fill)

        return replace(
            self,
            key=jax.tree.map(lambda x: pad(x, -1, more * self.beams, 0), self.key),
            value=jax.tree.map(lambda x: pad(x, -2, more * self.beams, 0), self.value),
            ancestry=None if self.ancestry is None else pad(self.ancestry, -1, more, -1),
        )


Caches = LayerCache | tuple[LayerCache, ...]
"""Of all layers: one with a layer axis, or one a layer where the stack is taken apart."""


Memories = LayerMemory | tuple[LayerMemory, ...]
"""What all layers make of a memory, likewise."""


def each_cache(function: Callable[[Any], Any], layers: Any) -> Any:
    """Change the cache of every layer, or what it has of a memory."""
    return tuple(map(function, layers)) if isinstance(layers, tuple) else function(layers)


def map_rows(
    function: Callable[..., tuple[Any, Caches]], layers: Caches, index: Int[Array, "B"], *rows: Any,
    memory: Memories | None = None,
) -> tuple[Any, Caches]:  # fmt: skip
    """Apply `function(layers, index, *row) -> (result, layers)` to each row: the cache of a sentence, at its index.

    Args:
      layers: caches by row, as `LayerCache.by_row` makes them.
      rows: what else has a row in front.
      memory: what the layers have of a memory, which the function is given by that name.

    >>> cache = KVCache(jnp.zeros((2, 1, 1, 4)), jnp.zeros((2, 1, 4, 1)), jnp.array(0)).by_row()
    >>> write = lambda cache, index, x: (index, cache.append(x, x))
    >>> map_rows(write, cache, jnp.array([2, 0]), jnp.ones((2, 1, 1, 1)))[1].value[:, 0, :, 0].tolist()
    [[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    """

    def one(layers: Caches, memory: Memories | None, index: Array, *row: Any) -> tuple[Any, Caches]:
        given = {} if memory is None else {"memory": memory}
        return function(each_cache(lambda cache: cache.at(index), layers), index, *row, **given)

    if index.shape == (1,):
        result, layers = one(layers, memory, *jax.tree.map(lambda x: x[0], (index, *rows)))
        return jax.tree.map(lambda x: x[None], result), layers
    axis = (layers[0] if isinstance(layers, tuple) else layers).index.ndim - 1
    axes = axis, axis, *(0 for _ in (index, *rows))
    return jax.vmap(one, in_axes=axes, out_axes=(0, axis))(layers, memory, index, *rows)


def check_cache_kind(kind: str) -> None:
    """Check that keys and values may be rounded to a kind; raise ValueError if not."""
    if kind not in ACTIVATIONS:
        raise ValueError(f"caches are rounded to {' or '.join(ACTIVATIONS)}, got {kind!r}")


def quantize_cache(cache: Any, kind: str | None) -> Any:
    """Round all keys and values of a cache, and what is appended from then on; scales are one a head and position.

    Attention multiplies scores and weights by the scales, so that no step makes keys or values whole. A cache of H
    numbers a head takes (H + 4) bytes for each, those of bfloat16 2 H.

    Args:
      cache: what `init_cache` or `prefill` of a model or layer gave: any pytree with `KVCache`s in it.
      kind: one of `nn.quantized.ACTIVATIONS`; None leaves the cache as it is.

    Raises:
      ValueError: another kind, a cache without keys and values, or one that has been rounded.

    >>> cache = KVCache(jnp.ones((2, 4, 3)), jnp.ones((2, 3, 4)), jnp.zeros((), int))
    >>> few = quantize_cache(cache, "int8")
    >>> few.value.qvalue.dtype, few.value.scale.shape
    (dtype('int8'), (2, 3, 1))
    """
    if kind is None:
        return cache
    nodes, structure = jax.tree.flatten(cache, is_leaf=lambda node: isinstance(node, Memory))
    if not any(isinstance(node, KVCache) for node in nodes):
        raise ValueError(f"keys and values are rounded, {type(cache).__name__} has none")
    return structure.unflatten([node.quantize(kind) if isinstance(node, Memory) else node for node in nodes])


def cache_bytes(cache: Any) -> int:
    """Count the bytes of the keys and values in a cache, or in one of shapes alone, and of their scales."""
    nodes = jax.tree.leaves(cache, is_leaf=lambda node: isinstance(node, Memory))
    parts = jax.tree.leaves([(node.key, node.value) for node in nodes if isinstance(node, Memory)])
    return sum(part.size * part.dtype.itemsize for part in parts)


def _rearranged(x: Any, pattern: str) -> Any:
    """Rearrange an array, or the values and the scales of one of few bits alike."""
    return jax.tree.map(lambda part: rearrange(part, pattern), x)


def _rounded(x: Float[Array, "..."], kind: Any, axis: int) -> QArray:
    """Round to a scale for each row along an axis: the largest value of int8 is ±127, without an error of its own.

    Qwix itself divides by 127.5, and so between two values.
    """
    kind = jnp.dtype(kind)
    axes = tuple(other for other in range(x.ndim) if other != axis % x.ndim)
    how = "absmax" if jnp.issubdtype(kind, jnp.floating) else f"absmax,{127.5 / 127}"
    return qwix.quantize(x.astype(jnp.float32), kind, channelwise_axes=axes, calibration_method=how)


def cache_length(layers: Caches) -> int:
    """Return the positions there is room for."""
    return (layers[0] if isinstance(layers, tuple) else layers).length
