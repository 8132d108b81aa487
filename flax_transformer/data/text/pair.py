"""Sentence pairs with random access, the form in which every source of parallel text reaches the tokenizer.

Every task as text in, text out, told apart by a prefix, is a pair too (Raffel et al. 2020,
https://arxiv.org/abs/1910.10683).
"""

from collections.abc import Sequence
from typing import Protocol, SupportsIndex, runtime_checkable

import numpy as np

from flax_transformer.data.examples import Example
from flax_transformer.data.identity import digest
from flax_transformer.frozen import frozen


@runtime_checkable
class PairSource(Protocol):
    """Anything with a length whose items are ``{"source": str, "target": str}``, such as a `Table` of these columns."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex) -> dict[str, str]: ...


@runtime_checkable
class TextTokenizer(Protocol):
    """What is asked of a tokenizer; ``data.Tokenizer`` has it."""

    eos: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Turn texts into token ids without marks."""

    def fingerprint(self) -> str:
        """Return a fingerprint of the tokenizer."""


@frozen
class TextToText:
    """Encode ``{"source": str, "target": str}`` with the task's prefix before the source and an end mark on both.

    A prefix is text like any other, such as ``"translate English to German: "``. For several tasks in one model, mix
    their examples: ``mixture({"translate": shuffled(pairs, TextToText(...), seed=0), ...}, weights)``.
    """

    tokenizer: TextTokenizer
    prefix: str = ""

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Encode one pair of texts."""
        writer = getattr(self.tokenizer, "target", None) or self.tokenizer
        (source,), (target,) = (
            self.tokenizer.encode([self.prefix + example["source"]]),
            writer.encode([example["target"]]),
        )
        end = self.tokenizer.eos
        return {"source": np.array([*source, end], np.int32), "target": np.array([*target, end], np.int32)}

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of prefix and tokenizer in hexadecimal."""
        return digest(f"TextToText {self.prefix!r}", self.tokenizer.fingerprint())
