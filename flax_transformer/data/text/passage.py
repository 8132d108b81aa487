"""Documents, and the passages that they are cut into.

Axes: T tokens.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flax_transformer.data.json_line import SUFFIXES, parse_json_lines
from flax_transformer.frozen import frozen


@frozen
class PassageConfig:
    """How a document is cut."""

    tokens: int = 128
    """Most tokens of a passage, without special tokens."""
    overlap: int = 32
    """Tokens that neighbouring passages share."""

    def __post_init__(self):
        if self.tokens < 1 or not 0 <= self.overlap < self.tokens:
            raise ValueError(
                f"a passage must have at least 1 token and share fewer than it has, got tokens={self.tokens}, "
                f"overlap={self.overlap}"
            )


@dataclass(frozen=True)
class Document:
    """A text and what it is called."""

    name: str
    text: str


@dataclass(frozen=True)
class Passage:
    """A stretch of a document, by characters: `text` is the document's `[start:end]`."""

    document: str
    start: int
    end: int
    text: str


def split_passages(
    document: Document, offsets: Sequence[tuple[int, int]], config: PassageConfig = PassageConfig()
) -> list[Passage]:
    """Cut a document into passages of so many tokens, which overlap; all but the last have as many.

    Args:
      offsets: where each token begins and ends in the text, in characters.

    >>> cut = split_passages(Document("d", "a b c"), [(0, 1), (2, 3), (4, 5)], PassageConfig(tokens=2, overlap=1))
    >>> [(each.start, each.text) for each in cut]
    [(0, 'a b'), (2, 'b c')]
    """
    real = [(begin, end) for begin, end in offsets if end > begin]
    passages = []
    for first in range(0, max(len(real) - config.overlap, min(len(real), 1)), config.tokens - config.overlap):
        last = min(first + config.tokens, len(real)) - 1
        start, end = real[first][0], real[last][1]
        text = document.text[start:end]
        start += len(text) - len(text.lstrip())
        passages.append(Passage(document.name, start, start + len(text.strip()), text.strip()))
    return passages


def read_documents(
    paths: Iterable[str | Path], refuse: Callable[[Path, Exception], None] | None = None
) -> Iterator[Document]:
    """Read documents: a file of text is one, and a line of a file of JSON lines, `{"id": …, "text": …}`, is one.

    Args:
      paths: files, and folders, of which all files that do not begin with a dot are read. A document is called by its
        path below the folder; one of a line by that, a colon, and its `id`, or the number of the line without one.
      refuse: is told of a file that cannot be read, which is left out; without it the first ends the reading.

    Raises:
      FileNotFoundError: no such file or folder.
      ValueError: a file that is not text in UTF-8, is empty, or has a line that is no such object; names it.
    """
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"documents must be files or folders, there is no {path}")
        files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
        for file in files:
            name = file.relative_to(path) if path.is_dir() else Path(file.name)
            if path.is_dir() and any(part.startswith(".") for part in name.parts):
                continue
            try:
                found = _documents(file, name.as_posix())
            except (OSError, ValueError) as error:
                if refuse is None:
                    raise
                refuse(file, error)
                continue
            yield from found


def read_document(path: Path) -> str:
    """Read the text of a document.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a file that is not text in UTF-8, or is empty; names it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8: {error.reason} at byte {error.start:,}") from error
    if "\0" in text:
        raise ValueError(f"{path} must be text, it has a byte 0 at {text.index(chr(0)):,}")
    if not text.strip():
        raise ValueError(f"{path} must not be empty")
    return text


def _documents(file: Path, name: str) -> list[Document]:
    text = read_document(file)
    if file.suffix not in SUFFIXES:
        return [Document(name, text)]
    documents = []
    for number, where, said in parse_json_lines(file, text):
        found = said.get("text") if isinstance(said, dict) else None
        if not isinstance(found, str) or not found.strip():
            raise ValueError(f"{where} must be an object with a text that is not empty, got {said!r:.60}")
        documents.append(Document(f"{name}:{said.get('id', number)}", found))
    return documents
