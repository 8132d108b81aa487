"""Rows of texts that belong together, or not: pairs, triplets and scored pairs of files, or functions and what is said
of them in Python's own standard library.
"""

import ast
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.json_line import parse_json_lines
from flax_transformer.data.split import split_file
from flax_transformer.data.table import Table
from flax_transformer.data.text.plain import read_text, standard_library
from flax_transformer.frozen import frozen

LONGEST = 600
"""Characters of a function that are kept."""


@frozen
class SentenceData:
    r"""Rows of texts of a folder: `{root}/{split name}.tsv` or `.jsonl`.

    A line of .tsv has texts with tabs between them, one of .jsonl is an array, or an object of which the values count,
    in their order: a text, one that belongs to it, and perhaps others that do not. All lines have as many.

    Without a folder they are of Python's standard library: what a function's docstring says first, and the function.
    """

    root: str = ""
    """The folder; empty: there is none."""
    scored: bool = False
    """Whether lines end with a number that says how alike their two texts are."""
    train: str = "train"
    """Name of the training file, without its suffix."""
    validation: str = "dev"
    """Name of the validation file."""
    test: str = "test"
    """Name of the test file."""

    def read(self, split: str) -> Table:
        """Read the `train`, `validation` or `test` rows: `texts`, a tuple each, and `label`, 1 where there is no score.

        Raises:
          FileNotFoundError: no such file, neither of .tsv nor of .jsonl.
          ValueError: a line of other than so many texts, an empty one, or a score that is no number; file, 1-based line
            and rule are named.
        """
        name = split_file(self, split)
        if self.root:
            paths = [Path(self.root) / f"{name}.{kind}" for kind in ("tsv", "jsonl")]
            path = next((path for path in paths if path.is_file()), None)
            if path is None:
                raise FileNotFoundError(f"no {paths[0].name} and no {paths[1].name} in {self.root}")
            return read_rows(path, scored=self.scored)
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


def read_rows(path: Path, *, scored: bool = False) -> Table:
    """Read lines of texts into columns `texts` and `label`; errors as `SentenceData.read`."""
    rows: list[tuple[str, ...]] = []
    labels: list[float] = []
    for where, columns in _lines(path):
        if scored:
            labels.append(_score(where, columns[-1:]))
            columns = columns[:-1]
        if not all(isinstance(text, str) and text.strip() for text in columns):
            raise ValueError(f"{where}: texts must not be empty, got {columns!r:.80}")
        least, most = (2, 2) if scored else (2, 100)
        if not least <= len(columns) <= most or (rows and len(columns) != len(rows[0])):
            rule = "two texts and a score" if scored else "at least two texts, as many as the first line"
            raise ValueError(f"{where}: a line must have {rule}, got {len(columns)} texts")
        rows.append(tuple(columns))
    return Table({"texts": rows, "label": np.asarray(labels if scored else [1.0] * len(rows), np.float32)})


def _score(where: str, last: list[Any]) -> float:
    try:
        (value,) = map(float, last)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{where}: a line must end with a number, got {str(last)[1:-1]:.60}")
    return value


def _lines(path: Path) -> Iterator[tuple[str, list[Any]]]:
    text = read_text(path)
    if path.suffix == ".tsv":
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            yield f"{path}, line {number}", line.removesuffix("\r").split("\t")
        return
    for _, where, said in parse_json_lines(path, text):
        if not isinstance(said, list | dict):
            raise ValueError(f"{where} must be an array or an object of texts, got {said!r:.60}")
        yield where, list(said.values() if isinstance(said, dict) else said)


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
