"""Parallel text: two files of equally many lines, line i of one translating line i of the other, or records of both."""

import difflib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from flax_transformer.data.file import COMPRESSED
from flax_transformer.data.record import find_split, open_records
from flax_transformer.data.split import split_file
from flax_transformer.data.table import Table
from flax_transformer.data.text.annotated import paired
from flax_transformer.data.text.pair import PairSource
from flax_transformer.data.text.plain import decode
from flax_transformer.data.text.tfds import tfds_pairs
from flax_transformer.frozen import frozen


@frozen
class ParallelText:
    """Where a parallel corpus lies: ``{root}/{split name}.{language}``, each file optionally with ``.gz`` or ``.xz``
    behind; or records of both languages, as `data.record.find_split` finds them: ``{root}/{split name}.tsv``, two texts
    with a tab between, or CSV, JSON lines, Parquet and Arrow files and folders that `datasets` wrote. Their columns are
    called as the languages are, perhaps within a column ``translation``, or ``source`` and ``target``.

    ``train="train.tok"`` selects ``train.tok.en`` and ``train.tok.de``. ``max_length`` counts characters of a line;
    a longer line is skipped, under ``strict`` it is an error, as is an empty one.
    """

    root: str
    source: str = "en"
    target: str = "de"
    train: str = "train"
    validation: str = "val"
    test: str = "test_2016_flickr"
    max_length: int = 1000
    strict: bool = False

    def __post_init__(self) -> None:
        if self.source == self.target:
            raise ValueError(f"source and target must be two languages, got {self.source!r} twice")
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1 character, got {self.max_length}")

    def read(self, split: str) -> Table:
        """Read the ``train``, ``validation`` or ``test`` pairs.

        Raises:
            FileNotFoundError, ValueError: as ``read_parallel``, ``parallel_files`` and ``read_parallel_records``.
        """
        name, how = split_file(self, split), {"max_length": self.max_length, "strict": self.strict}
        by_language = any(_there(Path(self.root), f"{name}.{side}") for side in (self.source, self.target))
        found = None if by_language else find_split(self.root, name)
        if found is not None:
            return read_parallel_records(found, self.source, self.target, **how)
        return read_parallel(*parallel_files(self.root, name, self.source, self.target), **how)


def parallel_files(root: str | Path, name: str, source: str, target: str) -> tuple[Path, Path]:
    """Find ``{root}/{name}.{source}`` and ``{root}/{name}.{target}``, plain or compressed.

    Raises:
        FileNotFoundError: no such folder or file; says which names the folder has that come nearest.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} to read parallel text from")
    return _find(folder, f"{name}.{source}"), _find(folder, f"{name}.{target}")


def _find(folder: Path, name: str) -> Path:
    found = _there(folder, name)
    if found is not None:
        return found
    present = sorted(path.name for path in folder.iterdir() if path.is_file())
    nearest = difflib.get_close_matches(name, present, n=3, cutoff=0.3) or present[:10]
    have = f"nearest names there: {', '.join(nearest)}" if nearest else "the folder has no files"
    raise FileNotFoundError(f"no file {name} in {folder}; {have}")


def _there(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{name}{end}" for end in ("", *COMPRESSED))
    return next((path for path in paths if path.is_file()), None)


def read_parallel(
    source_file: str | Path, target_file: str | Path, *, max_length: int = 1000, strict: bool = False
) -> Table:
    r"""Read two UTF-8 files, plain, ``.gz`` or ``.xz``, into sentence pairs.

    Only ``\n`` (or ``\r\n``) ends a line, so Unicode separators inside a sentence cannot shift the pairs. A pair with
    an empty side or a side of more than ``max_length`` characters is left out and counted in ``skipped`` under
    ``"empty"`` or ``"too long"``.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: an empty file, a line that is not UTF-8, unequal line counts, no usable pair, or, under
            ``strict``, the first pair that would be skipped. Files and 1-based lines are named.
    """
    files = Path(source_file), Path(target_file)
    sources, targets = (_lines(file) for file in files)
    if len(sources) != len(targets):
        raise ValueError(
            "parallel files must have equally many lines, "
            f"got {len(sources)} in {files[0]}, {len(targets)} in {files[1]}"
        )
    places = ((f"{files[0]}, line {n}", f"{files[1]}, line {n}") for n in range(1, len(sources) + 1))
    rows = zip(places, zip(sources, targets, strict=True), strict=True)
    return _usable(rows, f"{files[0]} and {files[1]}", max_length, strict)


def read_parallel_records(
    path: Path, source: str = "source", target: str = "target", *, max_length: int = 1000, strict: bool = False
) -> Table:
    """Read records of a sentence and its translation, of which pairs are left out as ``read_parallel`` does.

    Args:
        path: as ``data.record.open_records`` has it.
        source: the language, and name of the column.
        target: likewise.
        max_length: most characters of a side.
        strict: whether what would be left out is an error.

    Raises:
        FileNotFoundError: no such file.
        ValueError: as ``read_parallel``, and where no columns are called so; file and 1-based line or row are named.
    """
    inner = (f"translation.{source}", f"translation.{target}")
    rows = paired(open_records(path), ((source, target), inner, ("source", "target")))
    return _usable((((where, where), pair) for where, pair in rows), str(path), max_length, strict)


def _usable(
    rows: Iterable[tuple[tuple[str, str], tuple[str, str]]], where: str, max_length: int, strict: bool
) -> Table:
    """Keep the pairs that are neither empty nor too long, of rows that say where each side is."""
    skipped, kept = Counter(), []
    for places, pair in rows:
        reason = _fault(pair, max_length)
        if reason is None:
            kept.append(pair)
        elif strict:
            side = next(i for i, line in enumerate(pair) if _fault((line,), max_length) == reason)
            size = f", {len(pair[side])} characters where {max_length} are allowed" if reason == "too long" else ""
            raise ValueError(f"{places[side]}: {reason}{size}")
        else:
            skipped[reason] += 1
    if not kept:
        raise ValueError(f"no usable pair in {where}: {_counts(skipped)}")
    columns = {"source": [source for source, _ in kept], "target": [target for _, target in kept]}
    return Table(columns, dict(skipped))


def _fault(lines: tuple[str, ...], max_length: int) -> str | None:
    if not all(line.strip() for line in lines):
        return "empty"
    return "too long" if any(len(line) > max_length for line in lines) else None


def _counts(skipped: Counter) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(skipped.items()))


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} to read parallel text from")
    text = decode(path)
    if not text:
        raise ValueError(f"{path} is empty")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


@frozen
class TextCorpus(ParallelText):
    """Parallel text: the files of a folder, or a TFDS data set when `tfds` names one.

    `train`, `validation` and `test` are file names without the language, or splits of the data set.
    """

    root: str = ""
    tfds: str = ""
    data_dir: str | None = None
    """Where TFDS keeps its data; its own default if None."""

    def __post_init__(self):
        super().__post_init__()
        if self.tfds and self.root:
            raise ValueError(f"give data.root or data.tfds, not both, got {self.root!r} and {self.tfds!r}")

    def read(self, split: str) -> PairSource:
        """Open the pairs of a split."""
        if self.tfds:
            return tfds_pairs(
                self.tfds, getattr(self, split), source=self.source, target=self.target, data_dir=self.data_dir
            )
        if not self.root:
            raise ValueError("no data: give --data.root FOLDER with parallel text, or --data.tfds NAME")
        return super().read(split)
