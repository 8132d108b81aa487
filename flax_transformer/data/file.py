"""Files: that they are there, and what they hold: bytes, unpacked where gzip or xz compressed them, or arrays."""

import difflib
import gzip
import io
import lzma
import zlib
from pathlib import Path

import numpy as np

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


def load_arrays(source: Path | bytes, name: str = "") -> dict[str, np.ndarray]:
    """Read all arrays of an .npz, without pickles.

    Args:
      source: the file, or its content.
      name: what messages call it; by default its path.

    Raises:
      FileNotFoundError: no such file.
      ValueError: what is no whole .npz, or has an array that is none of numbers, texts or times; names it.
    """
    try:
        with np.load(io.BytesIO(source) if isinstance(source, bytes) else source, allow_pickle=False) as arrays:
            return {each: np.asarray(arrays[each]) for each in arrays.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # of zip files, of their compression, of the headers of arrays
        raise ValueError(f"{name or source} must be a file of arrays (.npz): {error}") from error
