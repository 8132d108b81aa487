"""Files: that they are there, and what they hold, unpacked where gzip or xz compressed them, as their names say."""

import difflib
import gzip
import lzma
import zlib
from pathlib import Path

COMPRESSED = (".gz", ".xz")
"""How the name of a compressed file ends."""


def require_file(path: Path) -> None:
    """Check that there is a file.

    Raises:
      FileNotFoundError: there is none; says which names there come nearest.
    """
    if path.is_file():
        return
    present = sorted(each.name for each in path.parent.iterdir()) if path.parent.is_dir() else []
    nearest = difflib.get_close_matches(path.name, present, n=3, cutoff=0.3)
    have = f"; nearest names there: {', '.join(nearest)}" if nearest else ""
    raise FileNotFoundError(f"no file {path}{have}")


def unpacked(path: Path) -> bytes:
    """Read a whole file, unpacked where its name ends in .gz or .xz.

    Raises:
      ValueError: what is no whole compressed file; names it.
    """
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not a whole gzip file: {error}") from error
    if path.suffix == ".xz":
        try:
            return lzma.decompress(data)
        except (lzma.LZMAError, EOFError) as error:
            raise ValueError(f"{path} is not a whole xz file: {error}") from error
    return data


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name, that of what is compressed where it is.

    >>> suffix_of("train.csv.gz"), suffix_of("train.TSV"), suffix_of("train")
    ('.csv', '.tsv', '')
    """
    path = Path(name)
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED else path).suffix.lower()
