"""Parallel text: two files of equally many lines, line i of one translating line i of the other."""

import difflib
from collections import Counter
from pathlib import Path

from flax_transformer.data.split import split_file
from flax_transformer.data.table import Table
from flax_transformer.data.text.pair import PairSource
from flax_transformer.data.text.plain import decode
from flax_transformer.data.text.tfds import tfds_pairs
from flax_transformer.frozen import frozen


@frozen
class ParallelText:
    """Where a parallel corpus lies: ``{root}/{split name}.{language}``, each file optionally with ``.gz`` behind.

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
        """Read the ``train``, ``validation`` or ``test`` pairs; errors as ``read_parallel`` and ``parallel_files``."""
        files = parallel_files(self.root, split_file(self, split), self.source, self.target)
        return read_parallel(*files, max_length=self.max_length, strict=self.strict)


def parallel_files(root: str | Path, name: str, source: str, target: str) -> tuple[Path, Path]:
    """Find ``{root}/{name}.{source}`` and ``{root}/{name}.{target}``, plain or gzipped.

    Raises:
        FileNotFoundError: no such folder or file; says which names the folder has that come nearest.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder} to read parallel text from")
    return _find(folder, f"{name}.{source}"), _find(folder, f"{name}.{target}")


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    present = sorted(path.name for path in folder.iterdir() if path.is_file())
    nearest = difflib.get_close_matches(name, present, n=3, cutoff=0.3) or present[:10]
    have = f"nearest names there: {', '.join(nearest)}" if nearest else "the folder has no files"
    raise FileNotFoundError(f"no file {name} in {folder}; {have}")


def read_parallel(
    source_file: str | Path, target_file: str | Path, *, max_length: int = 1000, strict: bool = False
) -> Table:
    r"""Read two UTF-8 files, plain or ``.gz``, into sentence pairs.

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
    skipped, kept = Counter(), []
    for number, pair in enumerate(zip(sources, targets, strict=True), start=1):
        reason = _fault(pair, max_length)
        if reason is None:
            kept.append(pair)
        elif strict:
            side = next(i for i, line in enumerate(pair) if _fault((line,), max_length) == reason)
            size = f", {len(pair[side])} characters where {max_length} are allowed" if reason == "too long" else ""
            raise ValueError(f"{files[side]}, line {number}: {reason}{size}")
        else:
            skipped[reason] += 1
    if not kept:
        raise ValueError(f"no usable pair in {files[0]} and {files[1]}: {_counts(skipped)}")
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
