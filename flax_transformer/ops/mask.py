"""What a query may look at, described by value and turned into booleans only where a kernel needs them.

Axes: B batch, N query heads, T query positions, S key positions. A mask broadcasts as `[*B, N, T, S]`; True is visible.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

_LEAVES = ("lengths", "segments", "dense", "offset")


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, eq=False, kw_only=True)
class Mask:
    """Describe which keys each query sees: what every given field allows.

    A pytree: `causal` and `window` are static, the other fields are its leaves, so a mask goes through `jit`,
    `vmap` and `scan` like any array.

    Attributes:
        causal: a query sees no key after its own position.
        window: how many keys to the left and to the right of its own position a query sees; `w` means `(w, w)`.
        lengths: keys at positions `>= length` are hidden (padding on the right).
        segments: ids of queries and of keys; equal ids see each other (packed sequences).
        dense: True where the key is visible; broadcasts to `[*B, N, T, S]`.
        offset: position of the first query among the keys. Without it queries and keys are aligned at their right
            end (`S - T`), so a causal query block always sees all of the past.

    >>> Mask(causal=True).materialize(2, 3).astype(int)[0]
    Array([[1, 1, 0],
           [1, 1, 1]], dtype=int32)
    >>> (Mask(causal=True) & Mask(window=1)).materialize(3, 3).astype(int)[0]
    Array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]], dtype=int32)
    """

    causal: bool = False
    window: tuple[int, int] | int | None = None
    lengths: Int[Array, "*#B"] | None = None
    segments: tuple[Int[Array, "*#B T"], Int[Array, "*#B S"]] | None = None
    dense: Bool[Array, "..."] | None = None
    offset: Int[Array, "*#B"] | int | None = None

    def __post_init__(self):
        window = self.window
        if isinstance(window, int):
            window = (window, window)
        if window is not None and min(window) < 0:
            raise ValueError(f"a window counts the keys to the left and right, both at least 0, got {window}")
        object.__setattr__(self, "window", window)

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
            ValueError: both have segments, or both have an offset.
        """
        if other is None:
            return self
        for name in ("segments", "offset"):
            if getattr(self, name) is not None and getattr(other, name) is not None:
                raise ValueError(
                    f"only one of two combined masks may have `{name}`, both do; use `dense` for one of them"
                )
        return Mask(
            causal=self.causal or other.causal,
            window=_either(lambda a, b: (min(a[0], b[0]), min(a[1], b[1])), self.window, other.window),
            lengths=_either(jnp.minimum, self.lengths, other.lengths),
            segments=self.segments if other.segments is None else other.segments,
            dense=_either(jnp.logical_and, self.dense, other.dense),
            offset=self.offset if other.offset is None else other.offset,
        )

    def positional(self) -> bool:
        """Say whether the positions of queries matter: causal or windowed."""
        return self.causal or self.window is not None

    def query_positions(self, T: int, S: int) -> Int[Array, "*#B 1 T 1"]:
        """Give the position of each query among the keys."""
        offset = jnp.asarray(S - T if self.offset is None else self.offset)
        return offset[..., None, None, None] + jnp.arange(T)[:, None]

    def check(self, batch: tuple[int, ...], N: int, T: int, S: int) -> None:
        """Raise ValueError where a field does not fit queries `[*batch, T, N, H]` and keys `[*batch, S, K, H]`."""
        query, key = (None, None) if self.segments is None else self.segments
        for name, value, shape in (
            ("lengths", self.lengths, batch),
            ("query segments", query, (*batch, T)),
            ("key segments", key, (*batch, S)),
            ("dense", self.dense, (*batch, N, T, S)),
            ("offset", self.offset, batch),
        ):
            if value is not None:
                check_broadcast(f"mask {name}", getattr(value, "shape", ()), shape)

    def materialize(self, T: int, S: int) -> Bool[Array, "*#B #N T S"] | None:
        """Make the booleans for T queries and S keys, broadcastable to `[*B, N, T, S]`; None when nothing is hidden."""
        keys = jnp.arange(S)
        parts = []
        if self.positional():
            ahead = keys - self.query_positions(T, S)
            left, right = (S + T, S + T) if self.window is None else self.window
            if self.causal:
                parts.append(ahead <= 0)
            if self.window is not None:
                parts.append((ahead >= -left) & (ahead <= right))
        if self.lengths is not None:
            parts.append(keys < self.lengths[..., None, None, None])
        if self.segments is not None:
            query, key = self.segments
            parts.append(query[..., None, :, None] == key[..., None, None, :])
        if self.dense is not None:
            parts.append(self.dense)
        if not parts:
            return None
        visible = reduce(jnp.logical_and, parts)
        return jnp.broadcast_to(visible, jnp.broadcast_shapes(visible.shape, (1, T, S)))


def check_broadcast(what: str, shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Raise ValueError unless `shape` broadcasts to `target` without enlarging it."""
    fits = len(shape) <= len(target) and all(a in (1, b) for a, b in zip(shape[::-1], target[::-1], strict=False))
    if not fits:
        raise ValueError(f"{what} must broadcast to {target}, got {shape}")


def _either(combine: Callable, a, b):
    return b if a is None else a if b is None else combine(a, b)
