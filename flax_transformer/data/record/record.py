"""What every form of records has in common: random access, names of columns, where a record lies."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from flax_transformer.listing import listed


class Records(ABC):
    """Records of a file or folder; record i is a mapping from the names of columns to values, read when asked for.

    Columns of a form without names, as tab-separated lines, are called "1", "2" and so on.
    """

    named: bool = True
    """Whether the form has names of columns."""
    chosen: tuple[str, ...] | None = None
    """The columns that are read; None: all."""

    def __init__(self, path: Path):
        self.path = path
        self.classes: dict[str, tuple[str, ...]] = {}
        """What the numbers of a column stand for, where a schema says so."""

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self.read(range(len(self))[index])

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return map(self.read, range(len(self)))

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> Mapping[str, Any]:
        """Read record `index`, from 0 on.

        Raises:
          ValueError: a damaged record; names the file and its line or row.
        """

    @abstractmethod
    def where(self, index: int) -> str:
        """Return the file, and the line or row in it, of a record, for messages."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name the columns: those of the first record where no schema says more."""
        return tuple(self[0])

    def select(self, *names: str) -> "Records":
        """Return the records with some columns, of which the others need not be read."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__, chosen=tuple(dict.fromkeys(name.partition(".")[0] for name in names)))
        return found

    def __reduce__(self) -> tuple:
        """Go to other processes as what is to be opened there."""
        return _reopened, (type(self), self.path, self.chosen)

    def has(self, name: str) -> bool:
        """Whether there is a column of a name, or, where it has a dot, the field behind it of the column before."""
        return name in self.names or ("." in name and _lookup(self[0], name)[0])

    def values(self, *names: str) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield where each record lies, and its values in some columns; `a.b` is the field b of the column a.

        Raises:
          ValueError: a record without one of them; names the file and its line or row.
        """
        chosen = self.select(*names)
        for index, record in enumerate(chosen):
            found = [_lookup(record, name) for name in names]
            missing = next((name for name, (there, _) in zip(names, found, strict=True) if not there), None)
            if missing is not None:
                raise ValueError(
                    f"{self.where(index)} must have a field {missing!r}, it has {listed(self.read(index))}"
                )
            yield self.where(index), tuple(value for _, value in found)


def _reopened(kind: type[Records], path: Path, chosen: tuple[str, ...] | None) -> Records:
    records = kind(path)
    return records if chosen is None else records.select(*chosen)


def _lookup(record: Mapping[str, Any], name: str) -> tuple[bool, Any]:
    """Return whether a record has a column, or a field of one behind a dot, and its value."""
    if name in record:
        return True, record[name]
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False, None
        value = value[part]
    return True, value


def texts_of(where: str, **values: Any) -> tuple[str, ...]:
    """Return values that must be texts, by the names of their columns.

    Raises:
      ValueError: one that is no text, or that no file in UTF-8 can hold; names it.

    >>> texts_of("a.csv, line 2", text=5)
    Traceback (most recent call last):
    ...
    ValueError: a.csv, line 2: text must be a text, got 5
    """
    for name, value in values.items():
        if not isinstance(value, str):
            raise ValueError(f"{where}: {name} must be a text, got {value!r:.60}")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{where}: {name} must be a text of Unicode, got half a surrogate pair in {value!r:.60}")
    return tuple(values.values())


def label_of(where: str, value: Any, classes: Sequence[str] = ()) -> str:
    """Return the label of a record as a text.

    Args:
      classes: what numbers stand for.

    Raises:
      ValueError: neither a text, a whole number nor true or false, or a number that stands for no class.

    >>> label_of("x, row 1", 1, ("negative", "positive")), label_of("x, row 1", True)
    ('positive', 'true')
    """
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        if classes and not 0 <= value < len(classes):
            last = len(classes) - 1
            raise ValueError(f"{where}: a label must be from 0 to {last}, for {listed(classes)}, got {value}")
        return classes[value] if classes else str(value)
    if not isinstance(value, str):
        raise ValueError(f"{where}: a label must be a text or a whole number, got {value!r:.60}")
    return texts_of(where, label=value)[0]
