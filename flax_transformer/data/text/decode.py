"""The text of a file: UTF-8, with or without a byte order mark, perhaps compressed."""

import codecs
import gzip
import zlib
from pathlib import Path


def decode(path: Path) -> str:
    """Read a whole file, unpacked if its name ends in .gz.

    Raises:
      ValueError: what is no whole gzip file, or no UTF-8; names file and line, counted from 1.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: not UTF-8 ({error.reason})") from error
