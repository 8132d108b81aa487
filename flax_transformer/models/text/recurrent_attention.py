"""Additive and multiplicative attention of a recurrent decoder to the hidden states of its source.

Axes: *B batch, T states that look, S source positions, Q width of states, W of the memory, A of what is scored.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import widen
from flax_transformer.ops.remat import attended


@frozen
class RecurrentAttentionConfig:
    """How source positions are scored, and which of them may be seen."""

    score: Literal["additive", "dot", "general"] = "additive"
    """v · tanh(W q + U m) (Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473; after a step it is what Luong et al.
    2015, https://arxiv.org/abs/1508.04025, call concat), q · m, or q · W m."""
    before: bool = False
    """Whether the decoder looks by its last state, and reads what it saw (Bahdanau et al.), or by its new one, and
    writes what it saw (Luong et al.)."""
    local: Literal["monotonic", "predictive"] | None = None
    """See a window alone: around the target's own position, or around one that the state predicts, the more the nearer
    (Luong et al. 2015, §3.2); None: all of the source."""
    window: int = 10
    """Positions on either side of a local window's middle."""
    width: int | None = None
    """A of additive scores; None: that of states."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "window", "width")

    def build(self, rngs: nnx.Rngs) -> "RecurrentAttention":
        """Make the model."""
        return RecurrentAttention(self, rngs=rngs)


class RecurrentAttention(Module):
    """Attention of one head."""

    def __init__(self, cfg: RecurrentAttentionConfig, query: int, memory: int, precision: Precision, *, rngs: nnx.Rngs):
        self.cfg, kinds = cfg, {**precision.dtypes, "rngs": rngs}
        width = cfg.width or query
        if cfg.score == "dot" and query != memory:
            raise ValueError(f"states and memory must be equally wide for score='dot', got {query} and {memory}")
        if cfg.score == "additive":
            self.state = Linear(query, width, use_bias=False, **kinds)
            self.memory = Linear(memory, width, **kinds)
            self.score = Linear(width, 1, use_bias=False, **kinds)
        elif cfg.score == "general":
            self.memory = Linear(memory, query, use_bias=False, **kinds)
        if cfg.local == "predictive":
            self.left = Linear(query, width, use_bias=False, **kinds)
            self.middle = Linear(width, 1, use_bias=False, **kinds)

    def keys(self, memory: Float[Array, "*B S W"]) -> Float[Array, "*B S A"]:
        """Compute of the memory what every score needs, once."""
        return memory if self.cfg.score == "dot" else self.memory(memory)

    def __call__(
        self,
        query: Float[Array, "*B T Q"],
        keys: Float[Array, "*B S A"],
        memory: Float[Array, "*B S W"],
        lengths: Int[Array, "*B"] | None,
        positions: Int[Array, "T"],
    ) -> tuple[Float[Array, "*B T W"], Float[Array, "*B T S"]]:
        """Return what each state sees, and how much of each source position; a row without a source sees nothing.

        Args:
          keys: by `keys`.
          lengths: of the source; all of it by default.
          positions: of the states in the target.
        """
        S = memory.shape[-2]
        length = jnp.full(memory.shape[:-2], S) if lengths is None else lengths
        scores, source = self._scores(query, keys), jnp.arange(S)
        seen, near = source < length[..., None, None], 1.0
        if self.cfg.local is not None:
            middle = self._middle(query, length, positions)
            away = jnp.abs(source - middle[..., None])
            seen = seen & (away <= self.cfg.window)
            if self.cfg.local == "predictive":
                near = jnp.exp(-2 * (away / self.cfg.window) ** 2)  # a standard deviation is half a window
        weights = jax.nn.softmax(jnp.where(seen, scores, jnp.finfo(scores.dtype).min), axis=-1) * near
        weights = jnp.where(seen, weights, 0)
        return attended(jnp.einsum("...ts,...sw->...tw", weights.astype(memory.dtype), memory)), weights

    def _scores(self, query: Array, keys: Array) -> Array:
        if self.cfg.score != "additive":
            return widen(jnp.einsum("...tq,...sq->...ts", query.astype(keys.dtype), keys))
        together = jnp.tanh(self.state(query)[..., :, None, :] + keys[..., None, :, :])
        return widen(self.score(together)[..., 0])

    def _middle(self, query: Array, length: Array, positions: Array) -> Array:
        """Return the middle of each state's window."""
        last = jnp.maximum(length - 1, 0)[..., None]
        if self.cfg.local == "monotonic":
            return jnp.minimum(positions, last)
        return widen(length[..., None] * jax.nn.sigmoid(self.middle(jnp.tanh(self.left(query)))[..., 0]))
