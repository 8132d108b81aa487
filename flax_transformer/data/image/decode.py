"""One image, from a file or its bytes: refused before it is decoded if it is too large, turned upright, made RGB.

What an image's values become does not depend on its kind: 1-bit images are black and white, palettes are looked up,
CMYK, YCbCr and LAB are converted by Pillow, what is transparent lies on white (as image processors of checkpoints have
it: below it may be any colour), grey of 16 bits is scaled to 8, not cut off. Of an animation it is the first image.
"""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

MAX_PIXELS = 89_478_485
"""Pixels of an image at most, 256 MiB as RGB; Pillow warns of more."""

SUFFIXES = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "BMP": (".bmp", ".dib"),
    "GIF": (".gif",),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
}
"""The formats that are read, and the suffixes of their files."""

MODES = {1: "L", 3: "RGB"}
"""Pillow's name for images of one channel, grey, and of three."""

_FORMAT_OF = {suffix: name for name, suffixes in SUFFIXES.items() for suffix in suffixes}
_UPRIGHT = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270",
            7: "TRANSVERSE", 8: "ROTATE_90"}  # fmt: skip
_ORIENTATION = 0x0112  # the EXIF tag


def is_image_name(name: str) -> bool:
    """Whether a file of this name is taken for an image, by its suffix in any case."""
    return os.path.splitext(name)[1].lower() in _FORMAT_OF


def decode_image(
    source: str | os.PathLike | bytes,
    *,
    channels: int = 3,
    name: str | None = None,
    size: tuple[int, int] | None = None,
) -> Any:
    """Decode an image to Pillow's RGB, or with `channels=1` to its grey (L), 8 bits a value.

    Args:
      source: a file, or the bytes of one.
      channels: 3 or 1.
      name: what messages call it, for bytes.
      size: width and height that are known of it. An image that has them only as it is stored, lying on its side,
          is left so; one that has others is refused.

    Raises:
      FileNotFoundError: no such file.
      ValueError: empty, truncated, damaged, larger than `MAX_PIXELS`, of another format than its suffix says, of
          values without a known range, or not an image at all.
    """
    import PIL.Image

    name = _name_of(source, name)
    image = _open(source, name)
    try:
        image.load()
        turn = _UPRIGHT.get(_orientation(image))
        image = on_white(image)
    except Exception as error:
        raise ValueError(f"{name} is a damaged or truncated image: {_line(error)}") from error
    quarter = turn is not None and _turned_size(image, turn) != image.size
    if turn is not None and not (quarter and size == image.size):
        image = image.transpose(getattr(PIL.Image.Transpose, turn))
    if size is not None and image.size != size:
        raise ValueError(f"{name} must be {size[0]} × {size[1]} pixels, as its annotation says, got {_spell(image)}")
    return _eight_bits(image, name, MODES[channels])


def on_white(image: Any) -> Any:
    """Put what is transparent in an image of Pillow's on white; an image without transparency is left as it is."""
    import PIL.Image

    if not {"A", "a"} & set(image.getbands()) and image.info.get("transparency") is None:
        return image
    whole = image.convert({"La": "LA"}.get(image.mode, "RGBA")).convert("RGBA")
    return PIL.Image.alpha_composite(PIL.Image.new("RGBA", whole.size, (255, 255, 255, 255)), whole).convert("RGB")


def image_size(source: str | os.PathLike | bytes, *, name: str | None = None) -> tuple[int, int]:
    """Read the width and height of an image turned upright, from its header alone; a TIFF is decoded.

    Raises:
      FileNotFoundError, ValueError: as `decode_image`, for what can be seen without decoding.
    """
    image = _open(source, _name_of(source, name))
    if image.format == "TIFF":  # Pillow turns these itself, some when they are opened and some when they are decoded
        return decode_image(source, name=name).size
    return _turned_size(image, _UPRIGHT.get(_orientation(image), ""))


def _name_of(source: str | os.PathLike | bytes, name: str | None) -> str:
    return name or ("the bytes" if isinstance(source, bytes) else os.fspath(source))


def _open(source: str | os.PathLike | bytes, name: str) -> Any:
    """Read the header of an image of one of the formats."""
    import PIL.Image

    content = source if isinstance(source, bytes) else Path(source).read_bytes()
    if not content:
        raise ValueError(f"{name} must be an image, it is empty")
    try:
        image = PIL.Image.open(io.BytesIO(content), formats=list(SUFFIXES))
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise ValueError(f"{name} must have at most {MAX_PIXELS:,} pixels, it has more") from error
    except PIL.UnidentifiedImageError as error:
        raise ValueError(f"{name} must be an image ({', '.join(SUFFIXES)}), it is none or damaged") from error
    except Exception as error:
        raise ValueError(f"{name} is a damaged image: {_line(error)}") from error
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{name} must have at most {MAX_PIXELS:,} pixels, got {_spell(image)}")
    expected = _FORMAT_OF.get(os.path.splitext(name)[1].lower())
    found = "JPEG" if image.format == "MPO" else image.format
    if expected is not None and found != expected:
        raise ValueError(f"{name} must be a {expected} image, as its name says, it is {found}")
    return image


def _orientation(image: Any) -> int:
    """Read how an image lies, from its header; one whose EXIF data are damaged is taken to stand upright."""
    import PIL.Image

    try:
        return int(PIL.Image.Image.getexif(image).get(_ORIENTATION, 1))
    except Exception:
        return 1


def _turned_size(image: Any, turn: str) -> tuple[int, int]:
    return image.size[::-1] if turn in ("TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90") else image.size


def _eight_bits(image: Any, name: str, mode: str) -> Any:
    import PIL.Image

    if image.mode == "F":
        raise ValueError(f"{name} must have whole numbers as values, got 32-bit floats, whose range nobody knows")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65_535:
            raise ValueError(f"{name} must have values of at most 16 bits, got {values.min()} to {values.max()}")
        image = PIL.Image.fromarray(((values * 255 + 32_767) // 65_535).astype(np.uint8))
    if image.mode == mode:
        return image
    return image.convert(mode) if image.mode in ("L", "1") else image.convert("RGB").convert(mode)


def _spell(image: Any) -> str:
    return f"{image.width} × {image.height}"


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
