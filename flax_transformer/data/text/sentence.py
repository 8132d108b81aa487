"""Rows of texts that belong together, or not: pairs, triplets and scored pairs of files, or functions and what is said
of them in Python's own standard library.
"""

import ast
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.record import Records, choose_columns, open_records, require_split, texts_of
from flax_transformer.data.split import split_file
from flax_transformer.data.table import Table
from flax_transformer.data.text.plain import standard_library
from flax_transformer.frozen import frozen

LONGEST = 600
"""Characters of a function that are kept."""


@frozen
class SentenceData:
    """Rows of texts of a folder: `{root}/{split name}.tsv`, `.csv`, `.jsonl`, or Parquet and Arrow files and folders
    that `datasets` wrote, see `data.record.open_records`.

    A line of .tsv has texts with tabs between them, one of .jsonl is an array, or an object of which the values count,
    in their order, as those of all columns of the other forms do: a text, one that belongs to it, and perhaps others
    that do not. All rows have as many.

    Without a folder they are of Python's standard library: what a function's docstring says first, and the function.
    """

    root: str = ""
    """The folder; empty: there is none."""
    scored: bool = False
    """Whether lines end with a number that says how alike their two texts are."""
    columns: tuple[str, ...] = ()
    """Names of the columns of texts, and of a score, in their order; by default all that there are."""
    train: str = "train"
    """Name of the training file, without its suffix."""
    validation: str = "dev"
    """Name of the validation file."""
    test: str = "test"
    """Name of the test file."""

    def read(self, split: str) -> Table:
        """Read the `train`, `validation` or `test` rows: `texts`, a tuple each, and `label`, 1 where there is no score.

        Raises:
          FileNotFoundError: no such file.
          ValueError: a row of other than so many texts, an empty one, or a score that is no number; file, 1-based line
            or row, and rule are named.
        """
        name = split_file(self, split)
        if self.root:
            return read_rows(require_split(self.root, name), scored=self.scored, columns=self.columns)
        if self.scored:
            raise ValueError("scored pairs are read of a folder (--data.root), there is none")
        return documented_functions(split)


@frozen
class RepeatedTexts:
    """Texts to learn from alone, each twice a row: by dropout the model sees it in two ways (SimCSE, Gao et al. 2021,
    https://arxiv.org/abs/2104.08821). Validation and test have the rows that there are.
    """

    of: SentenceData = SentenceData()
    """Where texts come from; which belong together is not looked at in training."""

    def read(self, split: str) -> Table:
        """Read rows as `SentenceData.read` does; those to train on are every text once, beside itself.

        Raises:
          ValueError: rows to test on of other than two texts, and what `SentenceData.read` refuses.
        """
        found = self.of.read(split)
        count = len(found["texts"][0])
        if count != 2:
            raise ValueError(f"texts that stand beside themselves are tested by rows of two texts, got {count}")
        if split != "train":
            return found
        texts = dict.fromkeys(text for row in found["texts"] for text in row)
        return Table({"texts": [(text, text) for text in texts], "label": np.ones(len(texts), np.float32)})


def read_rows(path: Path, *, scored: bool = False, columns: Sequence[str] = ()) -> Table:
    """Read records of texts into columns `texts` and `label`; errors as `SentenceData.read`."""
    rows: list[tuple[str, ...]] = []
    labels: list[float] = []
    for where, values in _rows(open_records(path), columns):
        if scored:
            labels.append(_score(where, values[-1:]))
            values = values[:-1]
        if not all(isinstance(text, str) and text.strip() for text in values):
            raise ValueError(f"{where}: texts must not be empty, got {values!r:.80}")
        least, most = (2, 2) if scored else (2, 100)
        if not least <= len(values) <= most or (rows and len(values) != len(rows[0])):
            rule = "two texts and a score" if scored else "at least two texts, as many as the first line"
            raise ValueError(f"{where}: a line must have {rule}, got {len(values)} texts")
        rows.append(texts_of(where, **{str(number): text for number, text in enumerate(values, start=1)}))
    return Table({"texts": rows, "label": np.asarray(labels if scored else [1.0] * len(rows), np.float32)})


def _rows(records: Records, columns: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield where each record is, and its values of some columns in their order, or of all."""
    if columns:
        names = choose_columns(records, (columns,), columns)
        yield from ((where, [*values]) for where, values in records.values(*names))
    else:
        yield from ((records.where(index), [*record.values()]) for index, record in enumerate(records))


def _score(where: str, last: list[Any]) -> float:
    try:
        (value,) = map(float, last)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{where}: a line must end with a number, got {str(last)[1:-1]:.60}")
    return value


def documented_functions(split: str) -> Table:
    """Find the functions of the standard library that have a docstring: its first paragraph, and the function without.

    No two have the same docstring. 80 % are for training and 10 % each for validation and test; which functions there
    are depends on the version of Python.
    """
    found: dict[str, str] = {}
    for document in standard_library():
        for node in ast.walk(ast.parse(document)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (said := ast.get_docstring(node)):
                first = " ".join(said.split("\n\n")[0].split())
                if len(first.split()) >= 4 and len(node.body) > 1:
                    code = ast.unparse(ast.FunctionDef(**{**vars(node), "body": node.body[1:], "decorator_list": []}))
                    found.setdefault(first, code[:LONGEST])
    pairs = sorted(found.items())
    random.Random(0).shuffle(pairs)
    cuts = {"train": (0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1)}
    begin, end = (round(len(pairs) * share) for share in cuts[split])
    return Table({"texts": pairs[begin:end], "label": np.ones(end - begin, np.float32)})
