"""Files that appear whole or not at all."""

import os
from pathlib import Path


def write_file(path: str | os.PathLike, content: str | bytes) -> Path:
    """Write a file in the place of what is there, whole or not at all, also where several processes write it.

    A link is replaced and not followed. Text is written as UTF-8.
    """
    path = Path(path)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with partial.open("xb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    partial.replace(path)
    return path
