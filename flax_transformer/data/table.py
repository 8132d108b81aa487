"""Splits of a data set as tables: rows with named columns, of which files are read when a row is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from flax_transformer.data.identity import digest, name_data


@runtime_checkable
class Source(Protocol):
    """A column whose values are read, decoded or generated when they are asked for."""

    @property
    def fingerprint(self) -> str:
        """Name which values they are."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any:
        """Read one."""
        ...

    def name(self, index: int) -> str:
        """Return where one comes from."""
        ...

    def take(self, indices: Int[np.ndarray, "_"]) -> "Source":
        """Pick some."""
        ...


@dataclass(frozen=True, eq=False)
class Table(Sequence[Any]):
    """Rows, of which row i is a mapping from the names of columns to their values i.

    A column is an array, a sequence or a `Source`. `table["label"]` is a column, `table[3]` a row.

    Raises:
      ValueError: no columns, or columns of several lengths.

    >>> table = Table({"text": ["one", "two", "three"], "label": np.array([0, 1, 0])})
    >>> table.take(np.array([2, 1]))[0]
    {'text': 'three', 'label': 0}
    """

    columns: Mapping[str, Any]
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many rows their reader left out, by reason."""

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"a table must have columns, all of one length, got {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int | str) -> Any:
        if isinstance(index, str):
            return self.columns[index]
        return {name: _plain(column[index]) for name, column in self.columns.items()}

    @cached_property
    def fingerprint(self) -> str:
        """Name the values of all columns."""
        return digest(*(f"{name} {_fingerprint(column)}\n" for name, column in self.columns.items()))

    def take(self, indices: Int[np.ndarray, "_"]) -> "Table":
        """Pick some rows."""
        return replace(self, columns={name: _take(column, indices) for name, column in self.columns.items()})

    def with_columns(self, **columns: Any) -> "Table":
        """Return the table with other columns, in place of those of the same names or beside them."""
        return replace(self, columns={**self.columns, **columns})


@dataclass(frozen=True, eq=False)
class Names(Sequence[str]):
    """A column that says where the values of another come from."""

    source: Source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> str:
        return self.source.name(index)

    @property
    def fingerprint(self) -> str:
        """Add nothing: the values are in a column of their own, wherever they lie."""
        return ""

    def take(self, indices: Int[np.ndarray, "_"]) -> "Names":
        """Pick some."""
        return Names(self.source.take(indices))


@dataclass(frozen=True, eq=False)
class Numbers(Sequence[int]):
    """A column that numbers the rows of a table; those that are taken of it are numbered anew."""

    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return range(self.count)[index]

    @property
    def fingerprint(self) -> str:
        """Add nothing."""
        return ""

    def take(self, indices: Int[np.ndarray, "_"]) -> "Numbers":
        """Number so many."""
        return Numbers(len(indices))


@dataclass(frozen=True, eq=False)
class Gathered(Sequence[Any]):
    """A column of which several rows share a value of a source."""

    source: Any
    of: Int[np.ndarray, " B"]
    """Which one each row has."""

    def __len__(self) -> int:
        return len(self.of)

    def __getitem__(self, index: int) -> Any:
        return self.source[int(self.of[index])]

    def name(self, index: int) -> str:
        """Return where a value comes from."""
        return self.source.name(int(self.of[index]))

    @property
    def fingerprint(self) -> str:
        """Name the values and which row has which."""
        return digest(self.source.fingerprint, self.of.astype(np.int64))

    def take(self, indices: Int[np.ndarray, "_"]) -> "Gathered":
        """Pick some rows, of all values."""
        return Gathered(self.source, self.of[indices])


@dataclass(frozen=True)
class DataSet:
    """What to train on and what is held out."""

    splits: Mapping[str, Any]
    """`train`, `validation` and `test`: tables, or what gives rows as they do."""
    classes: tuple[str, ...] = ()
    """What the classes are called, in the order of their numbers."""
    kind: str = "classes"
    """What is known of each row: classes, boxes, captions, questions, pairs or texts."""
    channels: int = 3
    """Of images and videos."""
    class_ids: tuple[int, ...] = ()
    """The numbers of the classes in the data set's own files, where they have any."""
    note: str = ""
    """What else there is to say of it when it is opened."""


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _take(column: Any, indices: Int[np.ndarray, "_"]) -> Any:
    if isinstance(column, np.ndarray):
        return column[indices]
    if hasattr(column, "fingerprint"):
        return column.take(indices)
    return [column[index] for index in indices]


def _fingerprint(column: Any) -> str:
    if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
        return digest(f"{column.dtype} {column.shape}", column)
    return name_data(column)
