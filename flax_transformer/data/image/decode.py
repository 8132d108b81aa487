"""One picture, from a file or its bytes."""

import io
import os
from pathlib import Path
from typing import Any


def decode_image(source: str | os.PathLike | bytes) -> Any:
    """Decode a picture to Pillow's RGB, upright.

    Raises:
      FileNotFoundError: no such file.
      ValueError: no picture, or one that is damaged; names the file.
    """
    import PIL.Image
    import PIL.ImageOps

    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    name = "a picture" if isinstance(source, bytes) else os.fspath(source)
    try:
        return PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(content))).convert("RGB")
    except Exception as error:
        raise ValueError(f"{name} must be a picture: {error}") from error
