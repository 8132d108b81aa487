"""Opening records by the name of a file or folder, and finding those of a split."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from flax_transformer.data.file import require_file, suffix_of
from flax_transformer.data.json_line import SUFFIXES as JSON_LINES
from flax_transformer.data.record.arrow import ArrowRecords, ParquetRecords, ShardRecords, classes_of
from flax_transformer.data.record.line import CsvRecords, JsonRecords, TabRecords
from flax_transformer.data.record.record import Records
from flax_transformer.data.split import is_split_name, split_of
from flax_transformer.listing import listed

_LINES = {".tsv": TabRecords, ".csv": CsvRecords, **dict.fromkeys((*JSON_LINES, ".ndjson"), JsonRecords)}
_TABLES = {".parquet": ParquetRecords, ".arrow": ArrowRecords}
_SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(?:-[0-9a-f]+)?\.(parquet|arrow)")
_STATE, _INFO = "state.json", "dataset_info.json"
FORMS = (*_LINES, *_TABLES)
"""How the names of files of records end; those of text perhaps with .gz or .xz behind."""


def open_records(path: str | Path) -> Records:
    """Open the records of a file or folder; a form is told by the name.

    Files are tab-separated lines (`.tsv`, and what ends otherwise), CSV, JSON lines (`.jsonl`), each perhaps with `.gz`
    or `.xz` behind, Arrow or Parquet; the first of several shards, `…-00000-of-00003.parquet`, stands for all. A folder
    is what `save_to_disk` of the `datasets` library wrote, or holds Parquet files, or Arrow files.

    Raises:
      FileNotFoundError: no such file or folder.
      ValueError: an empty or damaged file, columns of one name, shards that are missing or differ; names the file.
    """
    path = Path(path)
    if path.is_dir():
        return _open_all(path, _files_of(path))
    shard = _SHARD.fullmatch(path.name)
    if shard and int(shard[3]) > 1 and path.is_file() and (int(shard[2]) == 0 or path in _first_shards(path.parent)):
        return _open_all(path, _shards(path, shard))
    suffix = suffix_of(path.name)
    return {**_LINES, **_TABLES}.get(suffix, TabRecords)(path)


def find_split(root: str | Path, name: str, forms: Sequence[str] = FORMS) -> Path | None:
    """Find the records of a split below a folder, as `open_records` takes them; None where there are none.

    A name that says a split alone, as dev, stands for its other names too where it is not there.

    Args:
      name: of the split, as `named_records` has it, or that of a file with its suffix.
      forms: suffixes of files that are taken.

    Raises:
      ValueError: several files for a split; names them.
    """
    root = Path(root)
    if suffix_of(name) in forms and (root / name).is_file():
        return root / name
    known = named_records(root, forms) if root.is_dir() else []
    for each in (name, *_other_names(name)):
        found = [path for called, path in known if called == each]
        if len(found) > 1:
            raise ValueError(f"a split must have one file, got {found[0]} and {found[1]}; name one with its suffix")
        if found:
            return found[0]
    return None


def named_records(root: Path, forms: Sequence[str] = FORMS) -> list[tuple[str, Path]]:
    """Find all records of a folder: what they are called, and the path by which `open_records` takes them.

    They are files `{name}.csv` and so on, folders `{name}` that `datasets` wrote, and shards
    `{name}-00000-of-00003.parquet`, in the folder itself or in `data` below it, as repositories of the hub have it.
    """
    tables = any(form in forms for form in _TABLES)
    found = [(_json(root / _STATE).get("_split") or "train", root)] if tables and (root / _STATE).is_file() else []
    for place in (root, root / "data"):
        first = _first_shards(place)
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            shard, suffix = _SHARD.fullmatch(path.name), suffix_of(path.name)
            if path.name.startswith(".") or (not path.is_dir() and suffix not in forms):
                continue
            if path.is_dir():
                found += [(path.name, path)] if tables and holds_tables(path) else []
            elif shard:
                found += [(shard[1], path)] if path in first else []
            else:
                found.append((path.name[: path.name.lower().rindex(suffix)], path))
    return found


def require_split(root: str | Path, name: str, forms: Sequence[str] = FORMS) -> Path:
    """Find the records of a split as `find_split` does.

    Raises:
      FileNotFoundError: there are none; says what there is.
      ValueError: several files for a split.
    """
    found = find_split(root, name, forms)
    if found is None:
        if not Path(root).is_dir():
            raise FileNotFoundError(f"no folder {root}")
        try:
            require_file(Path(root) / f"{name}{forms[0]}")
        except FileNotFoundError as error:
            rule = f", nor one of {', '.join(forms[1:])}" if len(forms) > 1 else ""
            raise FileNotFoundError(f"{error}{rule}") from None
    return found


def _other_names(name: str) -> tuple[str, ...]:
    if not is_split_name(name) or not name.isalpha():
        return ()
    names = ("train", "training", "validation", "valid", "val", "dev", "test", "testing")
    return tuple(each for each in names if split_of(each) == split_of(name) and each != name)


def _first_shards(folder: Path) -> set[Path]:
    """Find the first of all shards that belong together, whether or not it is the very first of them."""
    first: dict[tuple[str, ...], Path] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if shard := _SHARD.fullmatch(path.name):
            first.setdefault((shard[1], shard[3], shard[4]), path)
    return {*first.values()}


def holds_tables(folder: Path) -> bool:
    """Whether a folder has Arrow or Parquet files, or is a saved data set of them."""
    return folder.is_dir() and ((folder / _STATE).is_file() or any(each.suffix in _TABLES for each in folder.iterdir()))


def _files_of(folder: Path) -> list[Path]:
    """Name the files of a folder: those that its state.json names, or all of the one form that there is."""
    if (folder / _STATE).is_file():
        return _saved_files(folder)
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(path.name for path in folder.iterdir() if (path / _STATE).is_file())
        raise ValueError(f"{folder} has several splits, {listed(splits)}; name the folder of one")
    for form in _TABLES:
        if files := sorted(path for path in folder.iterdir() if path.suffix == form):
            shards = [each for path in files if (each := _SHARD.fullmatch(path.name))]
            splits = sorted({shard[1] for shard in shards})
            if len(splits) > 1:
                raise ValueError(f"{folder} has several splits, {listed(splits)}; name the first file of one")
            return _shards(files[0], shards[0]) if len(shards) == len(files) else files
    raise ValueError(f"{folder} must hold Arrow or Parquet files, it has none")


def _saved_files(folder: Path) -> list[Path]:
    listed_files = _json(folder / _STATE).get("_data_files")
    names = [each.get("filename") if isinstance(each, dict) else None for each in _items(listed_files)]
    for name in names:
        if not isinstance(name, str) or not name or Path(name).name != name or "\0" in name or name == "..":
            raise ValueError(f"{folder / _STATE} must name files of its folder, got {name!r:.60}")
    if not names or len({*names}) < len(names):
        raise ValueError(f"{folder / _STATE} must name files of its folder, each once, got {names!r:.60}")
    return [folder / name for name in names]


def _items(value: object) -> list:
    return value if isinstance(value, list) else []


def _json(path: Path) -> dict:
    try:
        found = json.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got {found!r:.60}")
    return found


def _shards(first: Path, shard: re.Match) -> list[Path]:
    """Find all shards that belong to one."""
    count = int(shard[3])
    there = {}
    for path in sorted(first.parent.iterdir()):
        each = _SHARD.fullmatch(path.name)
        if each and (each[1], each[3], each[4]) == (shard[1], shard[3], shard[4]):
            if int(each[2]) in there:
                raise ValueError(f"a shard must be there once, got {there[int(each[2])]} and {path}")
            there[int(each[2])] = path
    if sorted(there) != [*range(count)]:
        raise ValueError(f"{first} must have all of its {count} shards beside it, got {len(there)}")
    return [there[number] for number in range(count)]


def _open_all(path: Path, files: list[Path]) -> Records:
    shards = []
    for file in files:
        if file.suffix not in _TABLES:
            raise ValueError(f"{path} must hold Arrow or Parquet files, got {file.name}")
        shards.append(_TABLES[file.suffix](file))
    records = shards[0] if len(shards) == 1 else ShardRecords(path, shards)
    if not records.classes and (path / _INFO).is_file():
        records.classes = classes_of(_json(path / _INFO).get("features"), path / _INFO)
    return records
