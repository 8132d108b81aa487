"""A call of attention as a value: what is mixed, which keys are visible, and what it needs of who computes it.

Axes: B batch, T query positions, S key positions, N query heads, K key/value heads, H head width.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from qwix import QArray

from flax_transformer.ops.dropout import Dropout
from flax_transformer.ops.mask import Mask, check_mask
from flax_transformer.ops.mask_field import check_broadcast

FEATURES = {
    "dropout": "dropout of attention weights",
    "bias": "bias of scores",
    "scale": "scale of scores",
    "cross": "queries of another length than the keys",
    "causal": "causal mask",
    "window": "window in a mask",
    "lengths": "lengths",
    "segments": "segments",
    "dense": "dense mask",
    "offset": "offset of the queries among the keys, and so no cache",
    "also": "union of masks",
    "rounded": "keys and values of few bits",
}
"""What a call may need beside queries, keys and values, as a message says it."""

MASKS = frozenset({"causal", "window", "lengths", "segments", "dense", "offset", "also"})
"""The features that are fields of a mask."""


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of `attention`, checked.

    Arrays may be `jax.ShapeDtypeStruct`: whether a call can be served goes by its shapes.

    Raises:
        ValueError: shapes that do not fit each other.

    >>> import jax
    >>> q = jax.ShapeDtypeStruct((2, 16, 4, 32), "float32")
    >>> sorted(Call(q, q, q, Mask(causal=True), scale=1.0).features)
    ['causal', 'scale']
    """

    q: Any
    """Queries [*B, T, N, H]."""
    k: Any
    """Keys [*B, S, K, H]; of few bits with a scale a position and head: `qwix.QArray`."""
    v: Any
    """Values [*B, S, K, H], likewise."""
    mask: Mask | None = None
    """Which keys each query sees; given None, a mask that hides nothing."""
    bias: Any = None
    """[*B, N, T, S] with 1 where all are alike, [N, T, S] or [T, S]: added to the scaled scores."""
    scale: float | None = None
    """Factor on the scores; None is `1 / sqrt(H)`."""
    dropout: Dropout | None = None
    """Drops attention weights; a rate of 0 becomes None."""

    def __post_init__(self):
        check_arrays(self.q, self.k, self.v)
        mask = Mask() if self.mask is None else self.mask
        check_mask(mask)
        *batch, T, N, _ = self.q.shape
        mask.check(tuple(batch), N, T, self.k.shape[-3])
        if self.bias is not None:
            _check_bias(self.bias, (*batch, N, T, self.k.shape[-3]))
        # Without an offset that says what is so anyway: kernels that take none can then serve.
        same = isinstance(mask.offset, int) and mask.offset == self.k.shape[-3] - T
        object.__setattr__(self, "mask", mask.at(None) if same else mask)
        if self.dropout is not None and self.dropout.rate == 0:
            object.__setattr__(self, "dropout", None)

    def __str__(self) -> str:
        """Describe shapes, the number format, and what else the call needs."""
        *batch, T, N, H = self.q.shape
        S, K = self.k.shape[-3:-1]
        rows = " × ".join(map(str, batch)) or "1"
        words = (FEATURES[name] for name in FEATURES if name in self.features)
        said = f"{rows} rows, {T} queries, {S} keys, {N} heads of width {H}, {K} of keys, {self.q.dtype}"
        return ", ".join([said, *words])

    @property
    def lengths(self) -> tuple[int, int]:
        """T and S, the numbers of queries and of keys."""
        return self.q.shape[-3], self.k.shape[-3]

    @property
    def resolved_scale(self) -> float:
        """The factor on the scores."""
        return 1 / math.sqrt(self.q.shape[-1]) if self.scale is None else self.scale

    @cached_property
    def features(self) -> frozenset[str]:
        """Which of `FEATURES` the call needs."""
        T, S = self.lengths
        mask = {name for name in ("causal", "also") if getattr(self.mask, name)}
        mask |= {name for name in MASKS - {"causal", "also"} if getattr(self.mask, name) is not None}
        rest = {name for name in ("bias", "scale", "dropout") if getattr(self, name) is not None}
        rest |= {"rounded"} if isinstance(self.k, QArray) else set()
        return frozenset(mask | rest | ({"cross"} if T != S and self.mask.offset is None else set()))


def check_arrays(q, k, v) -> None:
    """Raise ValueError for queries, keys and values that do not fit each other."""
    if isinstance(k, QArray) != isinstance(v, QArray):
        few = "keys" if isinstance(k, QArray) else "values"
        raise ValueError(f"keys and values have few bits together, got {few} alone")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if len(x.shape) < 3:
            raise ValueError(f"attention takes {name} as [*batch, positions, heads, width], got {x.shape}")
        if not jnp.issubdtype(x.dtype, jnp.floating):
            raise ValueError(f"attention takes {name} as floating point, got {x.dtype}")
    *batch, _, N, H = q.shape
    *key_batch, _, K, key_width = k.shape
    if k.shape != v.shape:
        raise ValueError(f"keys and values must have one shape, got {k.shape} and {v.shape}")
    for x in (k, v) if isinstance(k, QArray) else ():
        if x.scale.shape != (*k.shape[:-1], 1) or x.zero_point is not None:
            raise ValueError(f"keys and values {k.shape} of few bits have scales [*B, S, K, 1], got {x.scale.shape}")
    if key_batch != batch:
        raise ValueError(f"queries and keys must have the same batch axes, got {tuple(batch)} and {tuple(key_batch)}")
    if key_width != H:
        raise ValueError(f"queries and keys must have one head width, got {H} and {key_width}")
    if N % K:
        raise ValueError(f"query heads must be a multiple of kv heads, got N={N}, K={K}")


def _check_bias(bias, shape: tuple[int, ...]) -> None:
    check_broadcast("bias", bias.shape, shape)
    if len(bias.shape) not in (2, 3, len(shape)) or not jnp.issubdtype(bias.dtype, jnp.floating):
        rule = "a bias must be floating point of [*B, N, T, S], [N, T, S] or [T, S]"
        raise ValueError(f"{rule}, got {bias.dtype} of {bias.shape}")
