"""Documents with summaries: records with names of the data's own, as JSON lines, one document a line."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flax_transformer.data.record import FORMS, named_records, open_records, texts_of
from flax_transformer.data.split import SPLITS, split_of
from flax_transformer.data.table import Table
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed

_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])|(?<=[。！？])(?![。！？」』）])")


@frozen
class Documents:
    """A folder of documents with summaries: a file of JSON lines, CSV, Parquet or Arrow, or a folder that `datasets`
    wrote, for each split, see `data.record.named_records`.

    Which split a file is of, a word in its name says: train, validation (val, dev), test. Fields have the names given
    here.
    """

    root: str = ""
    """The folder."""
    source: str = "document"
    """The field of a document."""
    summary: str = "summary"
    """The field of its summary: a text, or a list of several, of which the first is learned."""
    others: tuple[str, ...] = ()
    """Fields of further summaries by other people, which a line may have or lack: scores take them as references."""
    query: str = ""
    """The field of a question that the summary answers; empty: there is none."""

    def read(self, split: str) -> Table:
        """Read a split into columns `document`, `query`, `summary` and `references`, a tuple with the summary first.

        A line whose document or summary is empty is left out and counted in `skipped`.

        Raises:
          FileNotFoundError: no such folder, or no file of the split.
          ValueError: several files of a split, a line that is no JSON object or lacks a field; names file and line.
        """
        if split not in SPLITS:
            raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
        if not self.root:
            raise ValueError("no data: give --data.root FOLDER with JSON lines of documents and summaries")
        return self.read_file(document_file(Path(self.root), split))

    def read_file(self, path: Path) -> Table:
        """Read a file, or a folder of one split, as `read` does.

        Raises:
          FileNotFoundError, ValueError: as `read`.
        """
        columns: dict[str, list] = {name: [] for name in ("document", "query", "summary", "references")}
        skipped = Counter()
        for where, said in self._records(path):
            document, query = _text(said, self.source, where), _text(said, self.query, where) if self.query else ""
            first, *rest = _texts(said, self.summary, where)
            others = [text for name in self.others if said.get(name) for text in _texts(said, name, where)]
            fault = next((name for name, text in (("document", document), ("summary", first)) if not text.strip()), "")
            if fault:
                skipped[f"empty {fault}"] += 1
                continue
            references = tuple(text for text in (first, *rest, *others) if text.strip())
            for name, value in zip(columns, (document, query, first, references), strict=True):
                columns[name].append(value)
        if not columns["document"]:
            raise ValueError(f"{path} must have a document with a summary, got none")
        return Table(columns, dict(skipped))

    def _records(self, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
        records = open_records(path)
        wanted = (self.source, self.summary, *filter(None, (self.query,)), *self.others)
        for index, said in enumerate(records.select(*wanted)):
            yield records.where(index), said


def document_file(root: Path, split: str) -> Path:
    """Find the file of a split in a folder.

    Raises:
      FileNotFoundError: no such folder, or no such file in it.
      ValueError: several files of the split.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root} must be a folder of documents with summaries, there is none")
    present = named_records(root, FORMS[1:])
    found = [path for name, path in present if split_of(name) == split]
    if not found:
        have = listed([path.name for _, path in present]) if present else "no JSON lines, nor such records"
        raise FileNotFoundError(f"{root} must have a file of JSON lines named {split}, it has {have}")
    if len(found) > 1:
        raise ValueError(f"a split must have one file of documents, got {found[0]} and {found[1]}")
    return found[0]


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences: at the ends of lines, after . ! ? before a capital letter or a number, after 。！？.

    >>> split_sentences("It rains. We stay at 3.5 miles.\\nRegards, Ann")
    ['It rains.', 'We stay at 3.5 miles.', 'Regards, Ann']
    >>> split_sentences("雨です。家にいます。")
    ['雨です。', '家にいます。']
    """
    parts = (part.strip() for line in text.splitlines() for part in _END.split(line))
    return [part for part in parts if part]


def _texts(said: Mapping[str, Any], name: str, where: str) -> list[str]:
    value = said.get(name)
    several = value if isinstance(value, list) else [value]
    if not several or not all(isinstance(each, str) for each in several):
        raise ValueError(f"{where} must have a text {name!r}, got {value!r:.60}, fields {listed(list(said))}")
    texts_of(where, **{name: "".join(several)})
    return several


def _text(said: Mapping[str, Any], name: str, where: str) -> str:
    texts = _texts(said, name, where)
    if len(texts) > 1 or isinstance(said[name], list):
        raise ValueError(f"{where} must have one text {name!r}, got a list of {len(texts)}")
    return texts[0]
