"""Labelled texts, and pairs of texts: a folder of files, or lines of Python's own standard library."""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from flax_transformer.data.split import split_file
from flax_transformer.data.table import Table
from flax_transformer.data.text.plain import read_text, standard_library
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed

FEW = 100
"""Lines from which on a file must have more than two a label."""
_BLOCK_STRING = re.compile(r'("""|\'\'\').*?\1', re.DOTALL)


@frozen
class LabelledText:
    """Labelled texts of a folder: ``{root}/{split name}.tsv``, a text, a tab and a label a line; or a text, a tab, a
    second text, a tab and a label, as premises and hypotheses or queries and passages have it.

    Without a folder they are lines of Python's standard library: code or comment.
    """

    root: str = ""
    labels: tuple[str, ...] = ()
    """In the order of the classes; by default those of the training file, sorted, as numbers if they all are."""
    names: tuple[str, ...] = ()
    """What the classes are called, in the order of ``labels``; as the labels by default."""
    train: str = "train"
    validation: str = "dev"
    test: str = "test"

    def __post_init__(self) -> None:
        if self.labels and (len(set(self.labels)) != len(self.labels) or len(self.labels) < 2):
            raise ValueError(f"labels must be at least two and differ, got {listed(self.labels)}")
        if self.names and self.labels:
            self._check_names(self.labels)

    def _check_names(self, labels: Sequence[str]) -> None:
        if len(self.names) != len(labels):
            raise ValueError(f"names must be as many as labels, got {listed(self.names)} for {listed(labels)}")

    def read(self, split: str) -> Table:
        """Read the ``train``, ``validation`` or ``test`` texts; columns and errors as ``read_labelled``."""
        path = self._path(split)
        return read_labelled(path, self._labels()) if self.root else code_or_comment(split)

    def classes(self) -> tuple[str, ...]:
        """Name the classes: class i is the i-th."""
        labels = self._labels() if self.root else ("code", "comment")
        if self.names:
            self._check_names(labels)
        return self.names or labels

    def _path(self, split: str) -> Path:
        return Path(self.root) / f"{split_file(self, split)}.tsv"

    def _labels(self) -> tuple[str, ...]:
        return self.labels or find_labels(self._path("train"))


def find_labels(path: str | Path) -> tuple[str, ...]:
    """Find the labels that a file of labelled texts has, sorted, as numbers if they all are.

    Raises:
        FileNotFoundError, ValueError: as ``read_labelled``; also a file with one label alone.
    """
    rows = [row[-1] for _, row in _lines(Path(path))]
    labels = set(rows)
    if len(rows) >= FEW and 2 * len(labels) > len(rows):
        raise ValueError(
            f"{path} must have few classes for its {len(rows):,} lines of text TAB label, got {len(labels):,} labels: "
            f"{listed(sorted(labels))}; a column of ids or texts is no label"
        )
    if len(labels) < 2:
        raise ValueError(f"{path} must have texts of at least two classes, all are labelled {min(labels)!r}")
    numbers = all(re.fullmatch("[0-9]{1,9}", label) for label in labels)
    return tuple(sorted(labels, key=int if numbers else None))


def read_labelled(path: str | Path, labels: Sequence[str]) -> Table:
    r"""Read lines of a text, a tab and a label into columns `text` and `label`; class i is ``labels[i]``.

    Where lines have a second text before the label, it is in the column `pair`. Only ``\n`` or ``\r\n`` ends a line.

    Raises:
        FileNotFoundError, ValueError: as ``read_text``; also a line of other than two columns, or than the first has,
            without text, or with a label that is none of ``labels``. File, 1-based line and rule are named.
    """
    number_of = {label: number for number, label in enumerate(labels)}
    rows, numbers = [], []
    for line, (*texts, label) in _lines(Path(path)):
        if label not in number_of:
            raise ValueError(f"{path}, line {line}: the label must be one of {listed(labels)}, got {label!r:.60}")
        rows.append(texts)
        numbers.append(number_of[label])
    columns = dict(zip(("text", "pair"), map(list, zip(*rows, strict=True)), strict=False))
    return Table({**columns, "label": numbers})


def code_or_comment(split: str, size: int = 10_000) -> Table:
    """Draw lines of the standard library, half of them code (label 0), half comments (1) without their marks.

    All lines differ and have three words or more; of ``size``, 80 % are for training and 10 % each for validation and
    test. Which lines there are depends on the version of Python.
    """
    kinds: tuple[dict[str, None], ...] = {}, {}
    for document in standard_library():
        for line in _BLOCK_STRING.sub("", document).splitlines():
            comment = line.lstrip().startswith("#")
            text = line.strip(" \t#")
            if len(re.findall(r"\w+", text)) > 2:
                kinds[comment][text] = None
    draw = random.Random(0)
    found = [(text, label) for label, lines in enumerate(kinds) for text in draw.sample(list(lines), size // 2)]
    draw.shuffle(found)
    cuts = {"train": (0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1)}
    begin, end = (round(size * share) for share in cuts[split])
    texts, labels = zip(*found[begin:end], strict=True)
    return Table({"text": texts, "label": labels})


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Split a file into lines: number, and one text or two before a label."""
    count = None
    for line, row in enumerate(read_text(path).removesuffix("\n").split("\n"), start=1):
        columns = row.removesuffix("\r").split("\t")
        if len(columns) not in (2, 3) or len(columns) != (count or len(columns)):
            rule = "text TAB label" if count != 3 else "text TAB text TAB label"
            raise ValueError(f"{path}, line {line}: a line must be {rule}, got {len(columns)} columns")
        count = len(columns)
        if not all(text.strip() for text in columns[:-1]):
            raise ValueError(f"{path}, line {line}: the text must not be empty")
        yield line, columns
