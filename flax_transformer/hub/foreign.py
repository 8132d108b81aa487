"""Addresses and files that are no checkpoints: one sentence says what each is."""

import os
import re
from pathlib import Path

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
"""How an address begins; `pathlib` makes one slash of two."""


def refuse_address(path: str | os.PathLike) -> None:
    """Refuse an address, or a file, in the place of a checkpoint's folder or id.

    Raises:
      ValueError: says what the id is, where it stands in the address.
    """
    name = os.fspath(path)
    if URL.match(name):
        found = re.match(r"https?:/+(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)", name)
        hint = f"; hub.load({found[1]!r}) takes its id" if found else ""
        raise ValueError(f"a checkpoint is a folder or a hub id, OWNER/NAME, and no address, got {name:.120}{hint}")
    if Path(name).is_file():
        raise ValueError(f"a checkpoint is a folder, got the file {name}; it lies in {Path(name).parent}")


def check_file(path: str | os.PathLike, what: str) -> None:
    """Refuse an address, a folder, or nothing in the place of a file.

    Args:
      what: the file is to be, such as "an image".

    Raises:
      ValueError: an address or a folder.
      FileNotFoundError: no such file.
    """
    name = os.fspath(path)
    if URL.match(name) and not Path(name).exists():
        raise ValueError(f"{what} is a file, its bytes or an array, and nothing is downloaded, got {name:.120}")
    if Path(name).is_dir():
        raise ValueError(
            f"{what} is one file, got the folder {name}; sorted(pathlib.Path({name!r}).iterdir()) are many"
        )
    if not Path(name).exists():
        raise FileNotFoundError(f"{what} is a file, its bytes or an array, there is no file {name:.200}")
