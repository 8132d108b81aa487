"""Records of Arrow and Parquet files, and of folders of them, as the `datasets` library writes them.

Arrow files are mapped from disk; of Parquet the row group that is asked for is read, and the latest are kept. Both are
read by `pyarrow`, which takes no code from files.
"""

import bisect
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from flax_transformer.data.file import require_file
from flax_transformer.data.record.record import Records
from flax_transformer.listing import listed

KEPT = 2**28
"""Bytes of a Parquet file's row groups that are kept; the latest one in any case."""
BATCH = 1_024
"""Rows that are turned into Python's values together where all are read in order."""
_ENDS = b"\xff\xff\xff\xff\0\0\0\0"
"""What a stream of Arrow ends with."""

Found = TypeVar("Found")


class ArrowRecords(Records):
    """Records of an Arrow file, in the format of streams or of files (https://arrow.apache.org/docs/format).

    Raises:
      FileNotFoundError: no such file.
      ValueError: a damaged file, one without rows, columns of one name, or `pyarrow` is not there; names the file.
    """

    def __init__(self, path: Path):
        super().__init__(path)
        require_file(path)
        self.open()
        if twice := [name for at, name in enumerate(self.schema.names) if name in self.schema.names[:at]]:
            raise ValueError(f"{path}: columns must differ, got {twice[0]!r} twice")
        if not len(self):
            raise ValueError(f"{path} must have at least one record, got none")
        self.classes = class_names(self.schema.metadata or {}, path)

    def open(self) -> None:
        """Map the file and check all that it says of where its values are."""
        self.table = _guard(self.path, lambda: _mapped(self.path))
        self.schema = self.table.schema
        self.bounds = [0]
        for batch in self.table.to_batches():
            self.bounds.append(self.bounds[-1] + len(batch))

    def __len__(self) -> int:
        return self.bounds[-1]

    def where(self, index: int) -> str:
        """Return the file and the row, counted from 1."""
        return f"{self.path}, row {index + 1}"

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Name the columns, as the schema does."""
        return tuple(self.schema.names)

    def part(self, number: int) -> Any:
        """Return part `number` of the table, of the columns that are read."""
        part = self.table.slice(self.bounds[number], self.bounds[number + 1] - self.bounds[number])
        return part.select(self.columns())

    def columns(self) -> list[str]:
        """Name the columns that are read."""
        return [*self.names] if self.chosen is None else [name for name in self.names if name in self.chosen]

    def read(self, index: int) -> Mapping[str, Any]:
        """Read a row; see `Records.read`."""
        number = bisect.bisect_right(self.bounds, index) - 1
        (row,) = self._rows(self.part(number), index - self.bounds[number], 1, index)
        return row

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for number, begin in enumerate(self.bounds[:-1]):
            part = self.part(number)
            for at in range(0, len(part), BATCH):
                yield from self._rows(part, at, BATCH, begin + at)

    def _rows(self, part: Any, begin: int, count: int, index: int) -> list[dict[str, Any]]:
        return _guard(self.where(index), lambda: part.slice(begin, count).to_pylist())


class ParquetRecords(ArrowRecords):
    """Records of a Parquet file (https://parquet.apache.org/docs/file-format), read row group by row group."""

    def open(self) -> None:
        """Read what the file says of itself."""
        file = _guard(self.path, lambda: _parquet(self.path))
        self.schema = _guard(self.path, lambda: file.schema_arrow)
        self.bounds = _guard(self.path, lambda: _bounds(file))
        self.file = file
        self.kept: dict[tuple, Any] = {}

    def part(self, number: int) -> Any:
        """Read a row group, of the columns that are read."""
        columns = self.columns()
        key = (number, *columns)
        group = self.kept.pop(key, None)
        if group is None:
            rows = self.bounds[number + 1] - self.bounds[number]
            group = _guard(self.path, lambda: _row_group(self.file, number, columns, rows))
        self.kept[key] = group
        while len(self.kept) > 1 and sum(each.nbytes for each in self.kept.values()) > KEPT:
            self.kept.pop(next(iter(self.kept)))
        return group


class ShardRecords(Records):
    """Records of several files of one form, one after another."""

    def __init__(self, path: Path, shards: list[Records]):
        super().__init__(path)
        first = shards[0]
        for shard in shards[1:]:
            if shard.names != first.names:
                raise ValueError(
                    f"shards must have the same columns, got {listed(first.names)} in {first.path}, "
                    f"{listed(shard.names)} in {shard.path}"
                )
        self.shards, self.classes, self.names = shards, first.classes, first.names
        self.bounds = [0]
        for shard in shards:
            self.bounds.append(self.bounds[-1] + len(shard))

    def __len__(self) -> int:
        return self.bounds[-1]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for shard in self.shards:
            yield from shard

    def __reduce__(self) -> tuple:
        """Go to other processes as what is to be opened there."""
        return ShardRecords, (self.path, self.shards)

    def _shard(self, index: int) -> tuple[Records, int]:
        number = bisect.bisect_right(self.bounds, index) - 1
        return self.shards[number], index - self.bounds[number]

    def where(self, index: int) -> str:
        """Return the shard, and the row in it."""
        shard, at = self._shard(index)
        return shard.where(at)

    def read(self, index: int) -> Mapping[str, Any]:
        """Read a row; see `Records.read`."""
        shard, at = self._shard(index)
        return shard.read(at)

    def select(self, *names: str) -> "ShardRecords":
        """Return the records with some columns alone."""
        return ShardRecords(self.path, [shard.select(*names) for shard in self.shards])


def class_names(metadata: Mapping[bytes, bytes], path: Path) -> dict[str, tuple[str, ...]]:
    """Return what the numbers of columns stand for, by the features that `datasets` writes into a schema.

    Raises:
      ValueError: as `classes_of`.
    """
    try:
        known = json.loads(metadata.get(b"huggingface", b"{}"))
        features = known.get("info", {}).get("features")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} must have the features of a data set in its schema: {error}") from error
    return classes_of(features, path)


def classes_of(features: Any, path: Path) -> dict[str, tuple[str, ...]]:
    """Return what the numbers of columns stand for, by the features of a data set (`ClassLabel`).

    Raises:
      ValueError: features of another form, or names that are no texts or not all different; names the file.
    """
    if features is None:
        return {}
    if not isinstance(features, Mapping):
        raise ValueError(f"{path}: features must be an object, got {features!r:.60}")
    try:
        found = {name: _names(feature) for name, feature in features.items()}
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return {name: tuple(each) for name, each in found.items() if each}


def _names(feature: Any) -> list[str]:
    """Return the names of a feature's classes, or those of the items of its lists."""
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, Mapping):
        raise ValueError(f"a feature must be an object, got {feature!r:.60}")
    if feature.get("_type") in ("Sequence", "List", "LargeList") and isinstance(feature.get("feature"), Mapping):
        return _names(feature["feature"])
    if feature.get("_type") != "ClassLabel":
        return []
    names = feature.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len({*names}) < len(names):
        raise ValueError(f"names of classes must be texts that differ, got {names!r:.60}")
    return names


def _guard(where: Any, read: Callable[[], Found]) -> Found:
    """Read by `pyarrow`, whose errors are of many kinds."""
    try:
        return read()
    except ImportError as error:
        raise ValueError(
            f'{where}: Arrow and Parquet files take pyarrow: pip install "flax-transformer[arrow]"'
        ) from error
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise ValueError(f"{where} is damaged, or no such file: {said[:300] or type(error).__name__}") from error


def _mapped(path: Path) -> Any:
    import pyarrow

    file = pyarrow.memory_map(str(path))
    in_files = file.read(6) == b"ARROW1"
    if not in_files:
        file.seek(max(file.size() - len(_ENDS), 0))
        if file.read(len(_ENDS)) != _ENDS:
            raise ValueError("it is cut off, or no stream of Arrow")
    file.seek(0)
    table = (pyarrow.ipc.open_file if in_files else pyarrow.ipc.open_stream)(file).read_all()
    table.validate(full=True)
    return table


def _parquet(path: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True)


def _bounds(file: Any) -> list[int]:
    rows = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    if min(rows, default=0) < 0 or sum(rows) >= 2**62:
        raise ValueError(f"row groups must have at least 0 rows, and fewer than 2^62 in all, got {listed(rows)}")
    return [*itertools.accumulate(rows, initial=0)]


def _row_group(file: Any, number: int, columns: list[str], rows: int) -> Any:
    table = file.read_row_group(number, columns=columns, use_threads=False)
    if len(table) != rows:
        raise ValueError(f"row group {number} must have {rows} rows, got {len(table)}")
    table.validate(full=True)
    return table
