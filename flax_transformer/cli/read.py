"""What commands read and print: folders and lines of text, lines of JSON."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tyro

Folder = Annotated[str, tyro.conf.Positional]
Options = Annotated[tuple[str, ...], tyro.conf.Positional]


def read_lines(path: Path | None = None) -> list[str]:
    """Read a file, or standard input, as UTF-8 lines.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a line that is not UTF-8; names it.
    """
    name = "standard input" if path is None else str(path)
    if path is not None and path.is_dir():
        raise ValueError(f"{path} must be a file of text, it is a folder")
    if path is not None and not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    data = sys.stdin.buffer.read() if path is None else path.read_bytes()
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: not UTF-8 ({error.reason})") from error
    return texts


def read_passage(context: str | None, file: Path | None) -> str:
    """Return a passage that is given, or read it from a file.

    Raises:
      ValueError: both, neither, or a file that is not UTF-8.
    """
    if (context is None) == (file is None):
        raise ValueError("the passage is given by either --context or --file")
    try:
        return file.read_text(encoding="utf-8") if context is None else context
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be text in UTF-8: {error}") from error


def put(record: Mapping[str, Any], *lines: str, jsonl: bool) -> None:
    """Print a result at once: the record as a line of JSON, or lines for people."""
    text = json.dumps(record, ensure_ascii=False) if jsonl else "\n".join(lines)
    if jsonl or lines:
        print(text, flush=True)
