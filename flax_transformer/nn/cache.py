"""What attention remembers: a memory's keys and values, and those of the positions decoded so far.

Keys are kept as [*B K H S] and values as [*B K S H], the order in which attention multiplies, so that no step
transposes them.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from einops import rearrange
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int

from flax_transformer.ops import Mask


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Memory:
    """A memory's keys and values, projected once by `Attention.project`, used at every decoding step."""

    key: Float[Array, "*B K H S"]
    value: Float[Array, "*B K S H"]

    @classmethod
    def of(cls, key: Float[Array, "*B S K H"], value: Float[Array, "*B S K H"]) -> "Memory":
        """Lay keys and values out in memory as they will be multiplied.

        Without the constraint XLA keeps them as they were computed, and transposes them at every step.
        """
        fix = lambda x: with_layout_constraint(x, Layout(tuple(range(x.ndim))))  # noqa: E731
        return cls(fix(rearrange(key, "... S K H -> ... K H S")), fix(rearrange(value, "... S K H -> ... K S H")))

    def by_position(self) -> tuple[Float[Array, "*B S K H"], Float[Array, "*B S K H"]]:
        """Give keys and values as `attention` takes them; XLA folds the transposition into the product."""
        return rearrange(self.key, "... K H S -> ... S K H"), rearrange(self.value, "... K S H -> ... S K H")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVCache(Memory):
    """Keys and values of the positions seen so far; the first `index` of S are filled.

    In beam search the W hypotheses of a sentence share one row: position s of slot w is entry s·W + w. When hypotheses
    are selected, nothing but `ancestry` moves: it says in which slot each of them finds each of its positions, -1
    where there is none yet. A hypothesis looks at the sentence's whole row, and the mask hides what is not its own.

    A single sentence has no batch axis: on a CPU XLA copies the whole cache at every step to get rid of an axis of
    size 1.
    """

    index: Int[Array, "*L"]
    ancestry: Int[Array, "*B W _"] | None = None

    @property
    def beams(self) -> int:
        """W, the hypotheses that share a row."""
        return 1 if self.ancestry is None else self.ancestry.shape[-2]

    @property
    def length(self) -> int:
        """S, the positions there is room for."""
        return self.value.shape[-2] // self.beams

    @property
    def batched(self) -> bool:
        """Whether there is a batch axis: the cache of a single sentence has none."""
        return self.value.ndim - self.index.ndim == 4

    def append(self, key: Float[Array, "*R T K H"], value: Float[Array, "*R T K H"]) -> "KVCache":
        """Write T more positions; the caller sees to it that index + T ≤ S, as XLA would clamp silently.

        Args:
          key, value: R = B·W rows, the W hypotheses of a sentence after one another.
        """
        *_, T, K, H = key.shape
        at, shape = self.index * self.beams, (*self.value.shape[:-3], T * self.beams, K, H)

        def write(old: Array, new: Array, pattern: str, axis: int) -> Array:
            new = rearrange(new.reshape(-1, self.beams, T, K, H), "B W T K H -> B T W K H").reshape(shape)
            return jax.lax.dynamic_update_slice_in_dim(old, rearrange(new, pattern).astype(old.dtype), at, axis)

        key = write(self.key, key, "... S K H -> ... K H S", -1)
        value = write(self.value, value, "... S K H -> ... K S H", -2)
        return KVCache(key, value, self.index + T, self._ancestry(T))

    def _ancestry(self, T: int) -> Int[Array, "*B W S"] | None:
        """Note that each hypothesis finds the T positions after `index` in its own slot."""
        if self.ancestry is None:
            return None
        slots = jnp.broadcast_to(jnp.arange(self.beams)[:, None], (*self.ancestry.shape[:-1], T))
        return jax.lax.dynamic_update_slice_in_dim(self.ancestry, slots, self.index, axis=-1)

    def visible(self, mask: Mask | None, T: int) -> Mask:
        """Say what T queries that are about to be appended may see: nothing unwritten, no future, no other hypothesis.

        Args:
          mask: what else is hidden, for R rows and S positions.
        """
        alone, mask = mask is None, (mask or Mask()) & Mask(causal=True, offset=self.index)
        if alone and self.ancestry is None:
            return mask
        W, seen = self.beams, mask.materialize(T, self.length)
        seen = seen.reshape((1,) * (4 - seen.ndim) + seen.shape)
        seen = rearrange(seen, "(B W) N T S -> B N W T S 1", W=W if seen.shape[0] > 1 else 1)
        if self.ancestry is not None:
            own = self._ancestry(T).reshape(-1, 1, W, 1, self.length, 1) == jnp.arange(W)
            seen = seen & own
        dense = rearrange(seen, "B N W T S slot -> B N (W T) (S slot)")
        return Mask(dense=dense if self.batched else dense[0])

    def reorder(self, rows: Int[Array, "R"]) -> "KVCache":
        """Let row i continue what row `rows[i]` was, a hypothesis of the same sentence."""
        if self.ancestry is not None:
            slots = (rows % self.beams).reshape(*self.ancestry.shape[self.index.ndim : -1], 1)
            slots = jnp.broadcast_to(slots, (*self.ancestry.shape[:-1], 1))
            return replace(self, ancestry=jnp.take_along_axis(self.ancestry, slots, axis=-2, mode="clip"))
        if not self.batched:
            return self
        pick = lambda x: jnp.take(x, rows, axis=-4, mode="clip")  # noqa: E731
        return replace(self, key=pick(self.key), value=pick(self.value))

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
            key=pad(self.key, -1, more * self.beams, 0),
            value=pad(self.value, -2, more * self.beams, 0),
            ancestry=None if self.ancestry is None else pad(self.ancestry, -1, more, -1),
        )
