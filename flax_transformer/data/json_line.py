"""Files that JSON lines tell of, and what is said of each: captions of images, questions, or what recordings say."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from flax_transformer.data.split import split_of
from flax_transformer.frozen import frozen

SUFFIXES = (".jsonl", ".jl")


@frozen
class JsonLineSchema:
    """What a line tells of."""

    one: str
    """What messages call a file."""
    many: str
    """And a folder of them with what is said."""
    names: tuple[str, ...]
    """What a line may call the file, the usual word first."""
    said: str
    """What messages call what is said of it."""
    texts: tuple[str, ...]
    """What a line may call that, the usual word first."""
    places: tuple[str, ...] = ("",)
    """Where files are, below the folder."""
    several: bool = True
    """Whether a line may say several things."""
    besides: str = ""
    """What else a line must have, in words."""


class FileTexts(NamedTuple):
    """The files of one split, and the texts of each."""

    root: Path
    names: list[str]
    """Paths below `root`."""
    texts: list[tuple[str, ...]]


class JsonLine(NamedTuple):
    """One line of a file."""

    number: int
    where: str
    """File and number, for messages."""
    name: str
    """What it calls the file that it tells of."""
    said: Mapping[str, Any]
    """All that it says."""


def open_json_lines(root: Path, kind: JsonLineSchema) -> dict[str, FileTexts]:
    """Find the files of a folder that its files of JSON lines tell of, by split: a line a file.

    Which split a file of lines is of, a word in its name says; a single one needs none.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no lines, a line without a file or a text, a file that is not there or told of twice; names the file
          of lines and the line.
    """
    root = root.expanduser()
    files = json_line_files(root, kind)
    splits = {split: _read(root, path, kind) for split, path in files.items()}
    check_disjoint(files, {split: each.names for split, each in splits.items()}, kind)
    return splits


def json_line_files(root: Path, kind: JsonLineSchema) -> dict[str, Path]:
    """Find the file of lines of each split.

    Raises:
      FileNotFoundError: no such folder.
      ValueError: no files, or several of one split.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of {kind.many}, there is none")
    paths = sorted(path for path in root.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))
    if not paths:
        raise ValueError(f"{root} must have {kind.said} in a file of JSON lines, such as train.jsonl, got none")
    files: dict[str, Path] = {}
    for path in paths:
        split = split_of(path.stem) or ("train" if len(paths) == 1 else None)
        if split is None:
            raise ValueError(f"{path} must name its split, train, validation or test, as there are several files")
        if split in files:
            raise ValueError(f"a split must have one file of {kind.said}, got {files[split]} and {path}")
        files[split] = path
    return files


def parse_json_lines(path: Path, text: str | bytes) -> Iterator[tuple[int, str, Any]]:
    """Parse the lines of a file that are not blank: number, file and number for messages, and what the line says.

    Raises:
      ValueError: a line that is no JSON; names file and line.
    """
    for number, line in enumerate(text.split("\n") if isinstance(text, str) else text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        yield number, where, parse_line(where, line)


def parse_line(where: str, line: str | bytes) -> Any:
    """Parse a line of JSON.

    Args:
      where: file and number, for messages.

    Raises:
      ValueError: what is no JSON in UTF-8, a key that is there twice with two values, or a number that is none.
    """
    try:
        return strict_json(line if isinstance(line, str) else line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} must be JSON: {error}") from error


def strict_json(text: str) -> Any:
    """Parse JSON as strictly as the standard says: nothing is guessed.

    Raises:
      ValueError: not JSON, a key twice with two values, or a number that is none.
      RecursionError: lists or objects too deep in each other.
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    twice = next((key for key, value in pairs if len(found) < len(pairs) and found[key] != value), None)
    if twice is not None:
        raise ValueError(f"a key must have one value, {twice!r} has several")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"numbers must be finite, got {name}")


def read_json_lines(path: Path, kind: JsonLineSchema) -> Iterator[JsonLine]:
    """Read a file line by line.

    Raises:
      ValueError: no lines, what is no JSON, or a line without a file within the folder; names file and line.
    """
    number = None
    for number, where, said in parse_json_lines(path, path.read_bytes()):
        if not isinstance(said, dict):
            keys = " and ".join(filter(None, (kind.names[0], kind.texts[0], kind.besides)))
            raise ValueError(f"{where} must be an object with {keys}, got {said!r:.60}")
        name = first_of(said, kind.names)
        if not isinstance(name, str) or not name or "\0" in name:
            raise ValueError(f"{where} must name its {kind.one} as {kind.names[0]}, got {name!r}")
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{where}: the {kind.one} must lie within the folder, got {name!r}")
        yield JsonLine(number, where, name, said)
    if number is None:
        raise ValueError(f"{path} must have at least one line, got none")


def first_of(said: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """Return what a line has under the first of some keys that it has; None where it has none."""
    return next((said[key] for key in keys if said.get(key) is not None), None)


def texts_of(said: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the text, or texts, that a line has under one of some keys; None where they are none, or empty."""
    texts = first_of(said, keys)
    texts = [texts] if isinstance(texts, str) else texts
    good = isinstance(texts, list) and texts and all(isinstance(each, str) and each.strip() for each in texts)
    return tuple(texts) if good else None


def find_files(root: Path, path: Path, names: Mapping[str, int], kind: JsonLineSchema) -> list[str]:
    """Find the folder that has the files, and all of them in it; `names` are told by these lines of `path`.

    Raises:
      ValueError: a file that is not there; names the line.
    """
    first = next(iter(names))
    place = next((place for place in kind.places if (root / place / first).is_file()), None)
    if place is None:
        raise ValueError(
            f"{path}, line {names[first]}: the {kind.one} {first} must be there, it is in no folder of {root}"
        )
    for name, number in names.items():
        if not (root / place / name).is_file():
            raise ValueError(f"{path}, line {number}: the {kind.one} {name} must be there, {root / place} lacks it")
    return [str(PurePosixPath(place) / name) for name in names]


def check_disjoint(files: Mapping[str, Path], names: Mapping[str, list[str]], kind: JsonLineSchema) -> None:
    """Refuse a file that is in two splits: a test on it would say nothing."""
    seen: dict[str, str] = {}
    for split, each in names.items():
        for name in each:
            if (other := seen.setdefault(name, split)) != split:
                raise ValueError(
                    f"splits must have different {kind.one}s, {name} is in {files[other]} and {files[split]}"
                )


def _read(root: Path, path: Path, kind: JsonLineSchema) -> FileTexts:
    names: dict[str, int] = {}
    texts_of_lines = []
    for number, where, name, said in read_json_lines(path, kind):
        texts = texts_of(said, kind.texts)
        if texts is None or (len(texts) > 1 and not kind.several):
            rule = "texts that are not empty" if kind.several else "one text that is not empty"
            got = first_of(said, kind.texts)
            raise ValueError(f"{where}: the {kind.one} {name} must have {kind.said}, {rule}, got {got!r:.60}")
        if name in names:
            raise ValueError(f"{path}: the {kind.one}s must differ, got {name} in lines {names[name]} and {number}")
        names[name] = number
        texts_of_lines.append(texts)
    return FileTexts(root, find_files(root, path, names, kind), texts_of_lines)
