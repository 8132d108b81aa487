"""What encoders and encoder-decoders of any kind have in common, Transformers or not: decoding loops ask no more.

Axes: B batch, R rows (B times the hypotheses of each), D width, V vocabulary.
"""

from typing import Any, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.ops import Mask


@runtime_checkable
class SourceEncoder(Protocol):
    """An encoder that a `Seq2Seq` can have: its output, [*B, S, D], is what the decoder looks at."""

    def __call__(self, source: Any, *, mask: Mask | None = None, key: PRNGKeyArray | None = None) -> Array:
        """Encode a source.

        Args:
          source: tokens, images, sounds, whatever this encoder takes.
          mask: what of it is padding.
          key: for dropout; None means none.
        """

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Say what of the output is padding, given what of the source is."""


@runtime_checkable
class EncoderDecoder(Protocol):
    """A model that decodes one token at a time from a source, by attention or by a state that recurs.

    Its cache is a pytree. One that needs room for every token has `grow(length)`, which makes it; one whose leaves do
    not all have a row a hypothesis in front has `reorder(rows)`, after which row i continues what row `rows[i]` was.
    """

    def encode(self, source: Any, lengths: Int[Array, "B"] | Mask | None = None, *, key: Any = None) -> Any:
        """Encode a source, whose rows have those lengths, into a memory."""

    def init_cache(self, memory: Any, lengths: Any, length: int, *, beams: int = 1) -> Any:
        """Prepare to decode up to `length` tokens of each row, with `beams` hypotheses that share its memory."""

    def step(self, cache: Any, token: Int[Array, "R"]) -> tuple[Float[Array, "R V"], Any]:
        """Decode one token a row: the logits of the next one, and the cache with this one in it."""
