"""What a query may look at, described by value and turned into booleans only where a kernel needs them.

Axes: B batch, N query heads, T query positions, S key positions. A mask broadcasts as `[*B, N, T, S]`; True is visible.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from flax_transformer.ops.mask_field import check_kind, check_shape, spelled, window_sides, within

_LEAVES = ("lengths", "segments", "dense", "offset", "also")


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False, kw_only=True)
class Mask:
    """Describe which keys each query sees: what every given field allows, or one of several such masks (`|`).

    A pytree: `causal` and `window` are static, the other fields are its leaves, so a mask goes through `jit`,
    `vmap` and `scan` like any array. A field has every batch axis, of size 1 where all rows are alike, or none.

    Attributes:
        causal: a query sees no key after its own position.
        window: how many keys to the left and to the right of its own position a query sees; `w` means `(w, w)`.
        lengths: keys at positions `>= length` are hidden (padding on the right).
        segments: ids of queries and of keys; equal ids see each other (packed sequences).
        dense: True where the key is visible: `[T, S]`, or `[*B, N, T, S]` with 1 where all are alike. Three axes for a
            batch could mean its rows or its heads, and are refused.
        offset: position of the first query among the keys. Without it queries and keys are aligned at their right
            end (`S - T`), so a causal query block always sees all of the past.
        also: masks each of which makes visible what it shows, whatever the fields above say: what `|` adds.

    Raises:
        ValueError: a field of another kind, such as numbers to be added to scores where `dense` is booleans.

    >>> Mask(causal=True).materialize(2, 3).astype(int)[0]
    Array([[1, 1, 0],
           [1, 1, 1]], dtype=int32)
    >>> (Mask(causal=True) & Mask(window=1)).materialize(3, 3).astype(int)[0]
    Array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]], dtype=int32)
    >>> (Mask(causal=True) | Mask(lengths=jnp.array(2))).materialize(3, 3).astype(int)[0]  # a prefix of two
    Array([[1, 1, 0],
           [1, 1, 0],
           [1, 1, 1]], dtype=int32)
    """

    causal: bool = False
    window: tuple[int, int] | int | None = None
    lengths: Int[Array, "*#B"] | None = None
    segments: tuple[Int[Array, "*#B T"], Int[Array, "*#B S"]] | None = None
    dense: Bool[Array, "..."] | None = None
    offset: Int[Array, "*#B"] | int | None = None
    also: tuple["Mask", ...] = ()

    def __post_init__(self):
        if not isinstance(self.causal, bool | np.bool_):
            raise ValueError(f"causal must be True or False, got {spelled(self.causal)}")
        object.__setattr__(self, "window", window_sides(self.window))
        segments = self.segments
        if segments is not None and not (isinstance(segments, tuple | list) and len(segments) == 2):
            raise ValueError(f"mask segments must be a pair, ids of queries and ids of keys, got {spelled(segments)}")
        if not isinstance(self.offset, Integral):
            check_kind("offset", self.offset, jnp.integer)
        check_kind("lengths", self.lengths, jnp.integer)
        check_kind("dense", self.dense, jnp.bool_)
        for ids in segments or ():
            check_kind("segments", ids, jnp.integer)

    def tree_flatten_with_keys(self):
        """Split into leaves and static fields, as JAX asks."""
        leaves = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in _LEAVES]
        return leaves, (self.causal, self.window)

    @classmethod
    def tree_unflatten(cls, static, leaves):
        """Rebuild without `__init__`: JAX also puts axes, shapes and placeholders where arrays belong."""
        mask = object.__new__(cls)
        for name, value in zip(("causal", "window", *_LEAVES), (*static, *leaves), strict=True):
            object.__setattr__(mask, name, value)
        return mask

    def __and__(self, other: "Mask | None") -> "Mask":
        """Hide what either hides; one offset serves both.

        Raises:
            ValueError: both have segments, or both have an offset; or the other is not a mask.
        """
        if other is None:
            return self
        check_mask(other)
        if self.also or other.also:
            return _any([one & each for one in self.parts for each in other.parts])
        _check_one(self, other, "segments", "offset")
        return Mask(
            causal=self.causal or other.causal,
            window=_either(lambda a, b: (min(a[0], b[0]), min(a[1], b[1])), self.window, other.window),
            lengths=_either(jnp.minimum, self.lengths, other.lengths),
            segments=self.segments if other.segments is None else other.segments,
            dense=_either(jnp.logical_and, self.dense, other.dense),
            offset=self.offset if other.offset is None else other.offset,
        )

    def __or__(self, other: "Mask | None") -> "Mask":
        """Show what either shows; one offset serves both. None is everything, as in `attention`.

        Raises:
            ValueError: both have an offset; or the other is not a mask.
        """
        if other is None:
            return Mask()
        check_mask(other)
        _check_one(self, other, "offset")
        return _any([*self.parts, *other.parts]).at(self.offset if other.offset is None else other.offset)

    @property
    def parts(self) -> tuple["Mask", ...]:
        """The masks of which one is enough to make a key visible, each without others in it."""
        return (replace(self, also=()), *self.also)

    def at(self, offset: Int[Array, "*#B"] | int | None) -> "Mask":
        """Return the mask with another offset."""
        return replace(self, offset=offset, also=tuple(replace(part, offset=offset) for part in self.also))

    def positional(self) -> bool:
        """Return whether the positions of queries matter: causal or windowed."""
        return self.causal or self.window is not None or any(part.positional() for part in self.also)

    def query_positions(self, T: int, S: int) -> Int[Array, "*#B 1 T 1"]:
        """Return the position of each query among the keys."""
        offset = jnp.asarray(S - T if self.offset is None else self.offset)
        return offset[..., None, None, None] + jnp.arange(T)[:, None]

    def check(self, batch: tuple[int, ...], N: int, T: int, S: int) -> None:
        """Raise ValueError where a field does not fit queries `[*batch, T, N, H]` and keys `[*batch, S, K, H]`."""
        query, key = (None, None) if self.segments is None else self.segments
        for name, value, own, shape in (
            ("lengths", self.lengths, 0, batch),
            ("query segments", query, 1, (*batch, T)),
            ("key segments", key, 1, (*batch, S)),
            ("dense", self.dense, 2, (*batch, N, T, S)),
            ("offset", self.offset, 0, batch),
        ):
            check_shape(name, value, own, shape)
        for part in self.also:
            part.check(batch, N, T, S)

    def materialize(self, T: int, S: int) -> Bool[Array, "*#B #N T S"] | None:
        """Make the booleans for T queries and S keys, broadcastable to `[*B, N, T, S]`; None when nothing is hidden."""
        shown = [part._shown(T, S) for part in self.parts]
        if any(each is None for each in shown):
            return None
        visible = reduce(jnp.logical_or, shown)
        return jnp.broadcast_to(visible, jnp.broadcast_shapes(visible.shape, (1, T, S)))

    def _shown(self, T: int, S: int) -> Array | None:
        """Return what all fields but `also` allow; None when they hide nothing."""
        keys, parts = jnp.arange(S), []
        if self.causal or self.window is not None:
            parts.append(within(keys - self.query_positions(T, S), self.causal, self.window))
        if self.lengths is not None:
            parts.append(keys < self.lengths[..., None, None, None])
        if self.segments is not None:
            query, key = self.segments
            parts.append(query[..., None, :, None] == key[..., None, None, :])
        if self.dense is not None:
            parts.append(self.dense)
        return reduce(jnp.logical_and, parts) if parts else None


def _any(parts: list[Mask]) -> Mask:
    return replace(parts[0], also=tuple(parts[1:]))


def _check_one(one: Mask, other: Mask, *names: str) -> None:
    for name in names:
        if getattr(one, name) is not None and getattr(other, name) is not None:
            raise ValueError(f"only one of two combined masks may have `{name}`, both do; use `dense` for one of them")


def check_mask(mask: Any) -> None:
    """Raise ValueError unless it is a mask."""
    if not isinstance(mask, Mask):
        raise ValueError(f"a mask must be a Mask, such as Mask(dense=booleans), got {spelled(mask)}")


def _either(combine: Callable, a, b):
    return b if a is None else a if b is None else combine(a, b)
