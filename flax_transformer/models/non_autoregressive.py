"""Encoder-decoders that write all tokens of a target at once, in a fixed number of passes."""

from typing import Any

from flax_transformer.models.seq2seq import Seq2Seq

NO_CACHE = "a model that writes all tokens at once has no cache: it is searched by ParallelSearch, not token by token"


class NonAutoregressive(Seq2Seq):
    """An encoder-decoder whose decoder sees no tokens one by one: a subclass has `write`, as `ParallelWriter` says."""

    front = ()
    """Names of positions that the encoder has before those of the source, for those who draw it."""
    shifted = False
    """Whether the decoder reads a target one position to the right, and sees no future."""

    def init_cache(self, *arguments: Any, **options: Any) -> Any:
        """Refuse: there is none."""
        raise ValueError(NO_CACHE)

    def step(self, *arguments: Any, **options: Any) -> Any:
        """Refuse: there is no cache to go on from."""
        raise ValueError(NO_CACHE)
