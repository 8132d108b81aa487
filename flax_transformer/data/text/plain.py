"""Plain text: files, the standard library's own sources, and a tokenizer of characters."""

import codecs
import sysconfig
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from flax_transformer.data.file import require_file, suffix_of, unpacked
from flax_transformer.data.record import FORMS, choose_columns, open_records, texts_of
from flax_transformer.data.text.batch import Ragged, ragged
from flax_transformer.data.text.tokenizer import SPECIAL, UNK, Tokenizer
from flax_transformer.frozen import frozen

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})

TEXT_COLUMNS = (("text",), ("sentence",), ("content",))
"""Columns that are taken for that of texts where no other is named: the first that is there."""
_BLOCK = 1 << 16  # characters encoded at a time, so that a tokenizer never holds a whole corpus


@frozen
class PlainText:
    """A corpus of running text: a file, or the Python standard library's own sources if ``text`` is empty.

    CSV, JSON lines, Parquet and Arrow files and folders that `datasets` wrote hold a document a record, in a column of
    texts, see `data.record.open_records`; each other file is one document. The last ``holdout`` of all characters is
    the validation split.
    """

    text: str = ""
    holdout: float = 0.1
    column: str = ""
    """Name of the column of texts; by default `text`, `sentence` or `content`."""

    def __post_init__(self) -> None:
        if not 0 < self.holdout < 1:
            raise ValueError(f"holdout must be a share in (0, 1), got {self.holdout}")

    def read(self, split: str) -> list[str]:
        """Read the documents of ``train`` or ``validation``; a document on the border is cut in two."""
        if split not in ("train", "validation"):
            raise ValueError(f"split must be one of train, validation, got {split!r}")
        documents = read_running(self.text, self.column) if self.text else standard_library()
        return split_text(documents, self.holdout)[split == "validation"]


@runtime_checkable
class TextEncoder(Protocol):
    """What is asked of a tokenizer: one of this package, or a checkpoint's."""

    vocab_size: int

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Turn texts into token ids without marks."""


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file, plain, ``.gz`` or ``.xz``, line ends as they are.

    Raises:
        FileNotFoundError: no such file; says which names there come nearest.
        ValueError: an empty file, or a line that is not UTF-8; names file and 1-based line.
    """
    path = Path(path)
    require_file(path)
    text = decode(path)
    if not text.strip():
        raise ValueError(f"{path} is empty")
    return text


def read_running(path: str | Path, column: str = "") -> list[str]:
    """Read documents of running text: one of a file of text, one a record of others, each ending with a line.

    Raises:
        FileNotFoundError: no such file.
        ValueError: as ``read_text`` and ``read_column``; also where there is no text at all.
    """
    if not has_columns(path):
        return [read_text(path)]
    found = [text if text.endswith("\n") else f"{text}\n" for text in read_column(path, column)]
    if not any(text.strip() for text in found):
        raise ValueError(f"{path} must have texts, all of its {len(found):,} are empty")
    return found


def has_columns(path: str | Path) -> bool:
    """Whether a file or folder, by its name, has records with names of columns."""
    path = Path(path)
    return path.is_dir() or suffix_of(path.name) in FORMS[1:]


def read_column(path: str | Path, column: str = "") -> list[str]:
    """Read the texts of a column, by default the first of some usual ones.

    Raises:
        FileNotFoundError, ValueError: as ``data.record.open_records`` and ``choose_columns``; also what is no text.
    """
    records = open_records(path)
    (name,) = choose_columns(records, TEXT_COLUMNS, (column,) if column else ())
    return [texts_of(where, **{name: text})[0] for where, (text,) in records.values(name)]


def standard_library() -> list[str]:
    """Read the ``.py`` files of this Python's standard library, in order of their paths, tests left out.

    About 12 MB in 700 files; which text it is depends on the version of Python.

    Raises:
        FileNotFoundError: a Python whose library is not there as files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = {path.relative_to(root).parts: path for path in root.rglob("*.py")}
    documents = []
    for parts in sorted(files):
        if not _NOT_LIBRARY & set(parts[:-1]):
            with tokenize.open(files[parts]) as file:  # some declare another encoding
                documents.append(file.read())
    if not documents:
        raise FileNotFoundError(f"no sources of the standard library in {root}")
    return [document for document in documents if document]


def split_text(documents: Sequence[str], holdout: float) -> tuple[list[str], list[str]]:
    """Part documents so that the second list has the last ``holdout`` of all characters.

    >>> split_text(["abcdef", "ghij"], 0.5)
    (['abcde'], ['f', 'ghij'])
    """
    left = int(sum(map(len, documents)) * (1 - holdout))
    train, validation = [], []
    for document in documents:
        for part, kept in ((document[:left], train), (document[left:], validation)):
            if part:
                kept.append(part)
        left = max(left - len(document), 0)
    return train, validation


def encode_documents(documents: Iterable[str], tokenizer: TextEncoder) -> Ragged:
    """Encode documents without marks, long ones in blocks of whole lines; ``flat`` is all of them as one stream."""
    kind = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.int32
    rows = []
    for document in documents:
        parts = [np.array(tokenizer.encode([block])[0], kind) for block in _blocks(document)]
        rows.append(np.concatenate(parts) if parts else np.empty(0, kind))
    return ragged(rows, kind)


def train_characters(texts: Iterable[str]) -> Tokenizer:
    r"""Make a token of each character of the texts, in order of code points, behind the four special ones.

    Lossless on those characters; any other becomes ``<unk>``.

    >>> tokenizer = train_characters(["ab\n"])
    >>> tokenizer.encode(["ba\n?"]), tokenizer.decode([[6, 5, 4]])
    ([[6, 5, 4, 3]], ['ba\n'])
    """
    import tokenizers

    characters = sorted({character for text in texts for character in text})
    if not characters:
        raise ValueError("the texts to take characters from are empty")
    vocab = {token: id for id, token in enumerate([*SPECIAL, *characters])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], unk_token=SPECIAL[UNK]))
    inner.decoder = tokenizers.decoders.Fuse()
    inner.add_special_tokens(list(SPECIAL))
    return Tokenizer(inner)


def _blocks(text: str) -> Iterator[str]:
    """Cut behind the first line end after each block; where a text has none, it stays whole."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + _BLOCK)
        end = len(text) if end < 0 else end + 1
        yield text[begin:end]
        begin = end


def decode(path: Path) -> str:
    """Read a whole file, unpacked if its name ends in .gz or .xz.

    Raises:
      ValueError: what is no whole compressed file, or no UTF-8; names file and line, counted from 1.
    """
    data = unpacked(path).removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason})") from error
