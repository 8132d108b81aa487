"""Records of files of text: tab-separated lines, CSV (RFC 4180) and JSON lines, perhaps compressed.

A file is mapped from disk, and what is held of it is where each record begins; a compressed one is unpacked in memory.

Axes: B records.
"""

import codecs
import csv
import mmap
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.file import COMPRESSED, require_file, unpacked
from flax_transformer.data.json_line import parse_line
from flax_transformer.data.record.record import Records
from flax_transformer.listing import listed

Place = tuple[int, int, int]
"""Number of a line from 1 on, and where it begins and ends in bytes, its line end left out."""


class LineRecords(Records):
    """Records of a file of lines.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a file without records.
    """

    def __init__(self, path: Path):
        super().__init__(path)
        require_file(path)
        if not any(self.content[begin:end].strip() for _, begin, end in self.lines()):
            raise ValueError(f"{path} is empty")
        self.places = self.find()
        if not len(self):
            raise ValueError(f"{path} must have at least one record, got none")

    def __len__(self) -> int:
        return len(self.places)

    def where(self, index: int) -> str:
        """Return the file and the line at which a record begins."""
        return f"{self.path}, line {self.places[index, 0]}"

    @cached_property
    def content(self) -> bytes | mmap.mmap:
        """Map the file, or unpack it."""
        if self.path.suffix in COMPRESSED:
            return unpacked(self.path)
        with self.path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.path.stat().st_size else b""

    def lines(self) -> Iterator[Place]:
        r"""Find all lines, which end by \n alone."""
        content, number = self.content, 0
        begin = 3 if content[:3] == codecs.BOM_UTF8 else 0
        while begin < len(content):
            number += 1
            end = content.find(b"\n", begin)
            end = len(content) if end < 0 else end
            yield number, begin, end
            begin = end + 1

    def find(self) -> Int[np.ndarray, "B 3"]:
        """Find where records are: on every line that is not blank."""
        return _places(place for place in self.lines() if self.content[place[1] : place[2]].strip())

    def text(self, place: Place) -> str:
        """Decode a line.

        Raises:
          ValueError: what is no UTF-8; names the file and the line.
        """
        number, begin, end = place
        try:
            return self.content[begin:end].decode()
        except UnicodeDecodeError as error:
            number += self.content[begin:end].count(b"\n", 0, error.start)
            raise ValueError(f"{self.path}, line {number}: not UTF-8 ({error.reason})") from error

    def read(self, index: int) -> Mapping[str, Any]:
        """Read a record, with all of its values; see `Records.read`."""
        number, begin, end = self.places[index].tolist()
        return self.parse(self.text((number, begin, end)), self.where(index))

    @abstractmethod
    def parse(self, text: str, where: str) -> Mapping[str, Any]:
        """Parse a record."""


class TabRecords(LineRecords):
    r"""Lines with tabs between their values, which have no names; only \n or \r\n ends a line, and none is left out."""

    named = False

    def find(self) -> Int[np.ndarray, "B 3"]:
        """Find where records are: on every line."""
        return _places(self.lines())

    def parse(self, text: str, where: str) -> Mapping[str, str]:
        """Part a line at its tabs."""
        return _numbered(text.removesuffix("\r").split("\t"))


class JsonRecords(LineRecords):
    """A JSON object a line, or an array, whose values have no names."""

    def parse(self, text: str, where: str) -> Mapping[str, Any]:
        """Parse a line of JSON."""
        found = parse_line(where, text)
        if not isinstance(found, list | dict):
            raise ValueError(f"{where} must be an array or an object, got {found!r:.60}")
        return found if isinstance(found, dict) else _numbered(found)


class CsvRecords(LineRecords):
    """CSV by RFC 4180 with a first row of names: a field in quotes may have commas, line ends and quotes, twice each.

    Rows without any character are left out.
    """

    def find(self) -> Int[np.ndarray, "B 3"]:
        """Find where records are: what Python's own reader takes for rows, which may be of several lines."""
        places = self._rows()
        number, header = next(places)
        if twice := [name for at, name in enumerate(header) if name in header[:at]]:
            raise ValueError(f"{self.path}, line {number[0]}: columns must differ, got {twice[0]!r} twice")
        self.header = header
        return _places(place for place, _ in places)

    def _rows(self) -> Iterator[tuple[Place, list[str]]]:
        """Read all rows in order, and check that they are as long as the first."""
        lines: list[Place] = []

        def texts() -> Iterator[str]:
            for place in self.lines():
                lines.append(place)
                yield self.text(place) + "\n"

        reader, first = csv.reader(texts(), strict=True), None
        while True:
            lines.clear()
            row = _next_row(reader, lambda: f"{self.path}, line {lines[0][0]}")
            if row is None:
                return
            if not row:
                continue
            if first is not None and len(row) != len(first):
                rule = f"{len(first)} fields, {listed(first)}"
                raise ValueError(f"{self.path}, line {lines[0][0]}: a row must have {rule}, got {len(row)}")
            first = first or row
            yield (lines[0][0], lines[0][1], lines[-1][2]), row

    def parse(self, text: str, where: str) -> Mapping[str, str]:
        """Parse a row."""
        row = _next_row(csv.reader([text + "\n"], strict=True), lambda: where)
        return dict(zip(self.header, row or (), strict=True))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Name the columns, as the first row does."""
        return tuple(self.header)


def _places(places: Iterator[Place]) -> Int[np.ndarray, "B 3"]:
    return np.fromiter(places, np.dtype((np.int64, 3)))


def _numbered(values: list[Any]) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(values, start=1)}


def _next_row(reader: Any, where: Any) -> list[str] | None:
    """Read a row of fields of any length, which Python's reader limits for all that read by it."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        return next(reader, None)
    except csv.Error as error:
        raise ValueError(f"{where()} must be CSV: {error}") from error
    finally:
        csv.field_size_limit(before)
