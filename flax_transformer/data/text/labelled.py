"""Labelled texts, and pairs of texts: a folder of files, or lines of Python's own standard library."""

import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from flax_transformer.data.record import Records, choose_columns, label_of, open_records, require_split, texts_of
from flax_transformer.data.split import split_file
from flax_transformer.data.table import Table
from flax_transformer.data.text.plain import standard_library
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed

FEW = 100
"""Lines from which on a file must have more than two a label."""
COLUMNS = (
    ("text", "pair", "label"), ("sentence1", "sentence2", "label"), ("premise", "hypothesis", "label"),
    ("question1", "question2", "label"), ("question", "sentence", "label"), ("query", "passage", "label"),
    ("text", "label"), ("sentence", "label"), ("content", "label"), ("review", "label"),
)  # fmt: skip
"""Columns that are taken for those of labelled texts where no others are named: the first that are all there."""
_BLOCK_STRING = re.compile(r'("""|\'\'\').*?\1', re.DOTALL)


@frozen
class LabelledText:
    """Labelled texts of a folder: ``{root}/{split name}.tsv``, a text, a tab and a label a line; or a text, a tab, a
    second text, a tab and a label, as premises and hypotheses or queries and passages have it. CSV, JSON lines, Parquet
    and Arrow files and folders that `datasets` wrote have names of columns, see `data.record.open_records`.

    Without a folder they are lines of Python's standard library: code or comment.
    """

    root: str = ""
    labels: tuple[str, ...] = ()
    """In the order of the classes; by default those of the training file, sorted, as numbers if they all are."""
    names: tuple[str, ...] = ()
    """What the classes are called, in the order of ``labels``; as the labels by default."""
    columns: tuple[str, ...] = ()
    """Names of the columns of a text, perhaps a second text, and a label; by default those of `COLUMNS`."""
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
        if not self.root:
            split_file(self, split)
            return code_or_comment(split)
        return read_labelled(self._path(split), self._labels(), self.columns)

    def classes(self) -> tuple[str, ...]:
        """Name the classes: class i is the i-th."""
        labels = self._labels() if self.root else ("code", "comment")
        if self.names:
            self._check_names(labels)
        return self.names or labels

    def _path(self, split: str) -> Path:
        return require_split(self.root, split_file(self, split))

    def _labels(self) -> tuple[str, ...]:
        return self.labels or find_labels(self._path("train"), self.columns)


def find_labels(path: str | Path, columns: Sequence[str] = ()) -> tuple[str, ...]:
    """Find the labels that labelled texts have, sorted, as numbers if they all are; those of a schema in its order.

    Raises:
        FileNotFoundError, ValueError: as ``read_labelled``; also a file with one label alone.
    """
    rows, classes = _rows(Path(path), columns)
    if classes:
        if len(classes) < 2:
            raise ValueError(f"{path} must have texts of at least two classes, its schema has {listed(classes)}")
        return classes
    found = [row[-1] for _, row in rows]
    labels = set(found)
    if len(found) >= FEW and 2 * len(labels) > len(found):
        raise ValueError(
            f"{path} must have few classes for its {len(found):,} lines of text TAB label, got {len(labels):,} labels: "
            f"{listed(sorted(labels))}; a column of ids or texts is no label"
        )
    if len(labels) < 2:
        raise ValueError(f"{path} must have texts of at least two classes, all are labelled {min(labels)!r}")
    numbers = all(re.fullmatch("[0-9]{1,9}", label) for label in labels)
    return tuple(sorted(labels, key=int if numbers else None))


def read_labelled(path: str | Path, labels: Sequence[str], columns: Sequence[str] = ()) -> Table:
    r"""Read records of a text and a label into columns `text` and `label`; class i is ``labels[i]``.

    Where they have a second text before the label, it is in the column `pair`.

    Args:
        path: as `data.record.open_records` has it.
        columns: names of the columns, the label's last; by default as `COLUMNS`. Tab-separated lines need none.

    Raises:
        FileNotFoundError, ValueError: as ``open_records``; also a record of other than two columns, or than the first
            has, without text, or with a label that is none of ``labels``. File, 1-based line or row and rule are named.
    """
    number_of = {label: number for number, label in enumerate(labels)}
    rows, numbers = [], []
    for where, (*texts, label) in _rows(Path(path), columns)[0]:
        if label not in number_of:
            raise ValueError(f"{where}: the label must be one of {listed(labels)}, got {label!r:.60}")
        rows.append(texts)
        numbers.append(number_of[label])
    found = dict(zip(("text", "pair"), map(list, zip(*rows, strict=True)), strict=False))
    return Table({**found, "label": numbers})


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


def read_labels(path: str | Path, columns: Sequence[str] = ()) -> list[list[str]]:
    """Read records of a text, perhaps a second one, and a label, as texts; arguments and errors as `read_labelled`."""
    return [row for _, row in _rows(Path(path), columns)[0]]


def _rows(path: Path, columns: Sequence[str]) -> tuple[Iterator[tuple[str, Sequence[str]]], tuple[str, ...]]:
    """Open records: where each is, with one text or two before a label; and what its schema calls the classes."""
    records = open_records(path)
    if not records.named and not columns:
        return _by_tabs(records), ()
    names = choose_columns(records, COLUMNS, columns)
    classes = records.classes.get(names[-1], ())
    return _by_name(records, names, classes), classes


def _by_name(records: Records, names: Sequence[str], classes: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for where, (*texts, label) in records.values(*names):
        found = texts_of(where, **dict(zip(names, texts, strict=False)))
        yield where, [*_filled(where, found), label_of(where, label, classes)]


def _by_tabs(records: Records) -> Iterator[tuple[str, list[str]]]:
    count = None
    for index, record in enumerate(records):
        where, columns = records.where(index), list(record.values())
        if len(columns) not in (2, 3) or len(columns) != (count or len(columns)):
            rule = "text TAB label" if count != 3 else "text TAB text TAB label"
            raise ValueError(f"{where}: a line must be {rule}, got {len(columns)} columns")
        count = len(columns)
        yield where, [*_filled(where, columns[:-1]), columns[-1]]


def _filled(where: str, texts: Sequence[str]) -> Sequence[str]:
    if not all(text.strip() for text in texts):
        raise ValueError(f"{where}: the text must not be empty")
    return texts
