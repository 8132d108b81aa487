"""When times may be told among words: Whisper's rules (Radford et al. 2022, https://arxiv.org/abs/2212.04356, §2.3).

Axes: R rows of logits, V vocabulary, M `max_length`. The last tokens of the vocabulary are times, in order.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen


@frozen
class Timestamps:
    """Text stands between two times, and time does not go back."""

    begin: int
    """The token of the first time; those after it are later, the one before it says that there are none."""
    end: int
    """The end token; what is below it is text."""
    latest: int | None = None
    """How many steps after the first time a text may begin at the latest; None: whenever."""

    def __post_init__(self):
        if not 0 <= self.end < self.begin or (self.latest is not None and self.latest < 0):
            raise ValueError(
                f"times must come after the end token, and the latest must not be negative, got begin={self.begin}, "
                f"end={self.end}, latest={self.latest}"
            )

    def __call__(
        self, logits: Float[Array, "R V"], tokens: Int[Array, "R M"], t: Int[Array, ""]
    ) -> Float[Array, "R V"]:
        """Forbid what would break the rules after the first `t` tokens.

        After a time comes text, or the same time or a later one if it ends a text; a time is taken where all of them
        together are more probable than any other token.
        """
        token = jnp.arange(logits.shape[-1])
        is_time = token >= self.begin

        def hide(logits, which):
            return jnp.where(which, -jnp.inf, logits)

        def at(i):
            return jnp.take(tokens, jnp.maximum(i, 0), axis=1)[:, None] >= self.begin

        after_time, closed = (t >= 1) & at(t - 1), (t < 2) | at(t - 2)
        logits = hide(logits, (token == self.begin - 1) | (after_time & closed & is_time))
        logits = hide(logits, after_time & ~closed & (token < self.end))
        written = (tokens >= self.begin) & (jnp.arange(tokens.shape[1]) < t)
        place = tokens.shape[1] - 1 - jnp.argmax(written[:, ::-1], axis=1)[:, None]
        last = jnp.take_along_axis(tokens, place, axis=1) + ~(after_time & ~closed)
        logits = hide(logits, is_time & (token < jnp.where(written.any(1, keepdims=True), last, self.begin)))
        late = (token > self.begin + self.latest) if self.latest is not None else False
        logits = hide(logits, (t == 0) & (~is_time | late))
        times = jax.nn.logsumexp(hide(logits, ~is_time), axis=-1, keepdims=True)
        words = jnp.max(hide(logits, is_time), axis=-1, keepdims=True)
        return hide(logits, ~is_time & (times > words))
