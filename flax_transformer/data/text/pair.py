"""Sentence pairs with random access, the form in which every source of parallel text reaches the tokenizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, SupportsIndex, runtime_checkable


@runtime_checkable
class PairSource(Protocol):
    """Anything with a length whose items are ``{"source": str, "target": str}``."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: SupportsIndex) -> dict[str, str]: ...


@dataclass(frozen=True)
class TextPairs:
    """Sentence pairs held in memory; ``skipped`` counts by reason what its reader left out.

    >>> pairs = TextPairs(["one", "two"], ["eins", "zwei"])
    >>> len(pairs), pairs[-1]
    (2, {'source': 'two', 'target': 'zwei'})
    """

    sources: Sequence[str]
    targets: Sequence[str]
    skipped: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.sources) != len(self.targets):
            raise ValueError(
                "sources and targets must be equally many, "
                f"got {len(self.sources)} sources, {len(self.targets)} targets"
            )

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: SupportsIndex) -> dict[str, str]:
        return {"source": self.sources[index], "target": self.targets[index]}
