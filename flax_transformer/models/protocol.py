"""What models of any kind have in common, Transformers or not: decoding loops, `bench` and `plan` ask no more.

Axes: B batch, R rows (B times the hypotheses of each), D width, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.decode import Decoded, Parallel
from flax_transformer.ops import Mask


@runtime_checkable
class SourceEncoder(Protocol):
    """An encoder that a `Seq2Seq` can have: its output, [*B, S, D], is what the decoder looks at."""

    def __call__(self, source: Any, *, mask: Mask | None = None, key: PRNGKeyArray | None = None) -> Array:
        """Encode a source.

        Args:
          source: tokens, images, recordings, whatever this encoder takes.
          mask: what of it is padding.
          key: for dropout; None means none.
        """

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return what of the output is padding, given what of the source is."""


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


@runtime_checkable
class ParallelWriter(Protocol):
    """A model that decodes all tokens of a target at once, in a fixed number of passes."""

    def write(self, source: Any, lengths: Int[Array, "B"] | None, config: Parallel) -> Decoded:
        """Translate a source, whose rows have those lengths, as `decode.Parallel` says."""


class Described(NamedTuple):
    """What a batch is to a model."""

    sizes: Mapping[str, int]
    """What decides how long it takes: `rows` first; positions are called `length`, or `source` and `target`."""
    items: int
    """How many of what the model is for come out of a call: tokens, images."""
    unit: str
    """What these are."""


class Measurable(Protocol):
    """A model's class that says how the model is fed, so that it can be measured, planned for and tested like any.

    Batches are numpy's: `inputs` that `hidden_states` takes by name, `labels`, `weights`, and what the objective takes.
    """

    use: ClassVar[str]
    """What it can do, in the words of `hub.registration.USES`; `objective.OBJECTIVES` has what trains it for that."""

    @classmethod
    def example_batch(cls, config: Any, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch for models of this config, of so many positions a row where rows have any."""

    @classmethod
    def describe_batch(cls, config: Any, batch: dict[str, Any]) -> Described:
        """Count a batch, one of the data's own too."""
