"""What people call an image, as pixels: Pillow's images, files, bytes, and arrays with channels first or last.

Axes: C channels, H × W pixels.
"""

import os
from typing import Any

import numpy as np
from jaxtyping import Shaped

from flax_transformer.data.image.decode import decode_image, on_white
from flax_transformer.hub.foreign import check_file

CHANNELS = (1, 3, 4)


def read_images(images: Any) -> list[Any]:
    """Decode files, and lay lists and arrays of images out as one list of Pillow's images and arrays.

    Raises:
      FileNotFoundError: no such file.
      ValueError: no images at all, or what is none.
    """
    found = list(_images(images))
    if not found:
        raise ValueError("there must be at least one image, got none")
    return found


def split_videos(videos: Any) -> list[Any]:
    """Return whether it is one video, a list or array of images, or several."""
    several = (
        isinstance(videos, list | tuple) and videos and (isinstance(videos[0], list | tuple) or _axes(videos[0]) == 4)
    )
    return list(videos) if several or _axes(videos) == 5 else [videos]


def _axes(value: Any) -> int:
    return np.ndim(value) if hasattr(value, "__array__") and not _is_pillow(value) else 0


def read_pixels(image: Any, *, rgb: bool) -> Shaped[np.ndarray, "C H W"]:
    """Return the pixels of one image, in the type they are stored in; palettes as numbers, unless they are made RGB.

    Args:
      image: of Pillow, or an array: of two axes it is grey; of three, the first is channels if there can be so many.
      rgb: make it RGB: transparency over white, grey three times.

    Raises:
      ValueError: as many axes or channels as no image has.
    """
    if _is_pillow(image):
        return _of_pillow(image, rgb)
    if image.ndim == 2:
        image = image[None]
    elif image.shape[0] not in CHANNELS:
        if image.shape[2] not in CHANNELS:
            raise ValueError(f"an array must have 1, 3 or 4 channels, first or last, got shape {image.shape}")
        image = np.moveaxis(image, -1, 0)
    return _over_white(image) if rgb else image


def _images(images: Any) -> Any:
    if isinstance(images, str | os.PathLike | bytes):
        if not isinstance(images, bytes):
            check_file(images, "an image")
        yield decode_image(images)
    elif _is_pillow(images):
        if 0 in images.size:
            raise ValueError(f"an image must have pixels, got {images.width} × {images.height}")
        yield images
    elif isinstance(images, list | tuple):
        for image in images:
            yield from _images(image)
    elif hasattr(images, "__array__"):
        yield from _arrays(np.asarray(images))
    else:
        raise ValueError(f"an image must be Pillow's, a file, bytes or an array, got {type(images).__name__}")


def _arrays(array: np.ndarray) -> Any:
    if array.ndim not in (2, 3, 4) or not array.size or array.dtype.kind not in "buif":
        raise ValueError(f"an image must be an array [H, W], [H, W, C] or [C, H, W], got {array.dtype}{array.shape}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("an image must have finite values, got others")
    yield from array if array.ndim == 4 else [array]


def _is_pillow(image: Any) -> bool:
    return hasattr(image, "getbands")


def _of_pillow(image: Any, rgb: bool) -> np.ndarray:
    pixels = np.array(on_white(image).convert("RGB") if rgb else image)
    return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0)


def _over_white(image: np.ndarray) -> np.ndarray:
    if len(image) == 1:
        return np.repeat(image, 3, axis=0)
    if len(image) == 3:
        return image
    white = 255 if np.issubdtype(image.dtype, np.integer) else 1.0
    if white == 1 and (image.min() < 0 or image.max() > 1):
        raise ValueError(f"floats with transparency must be from 0 to 1, got {image.min():.6g} to {image.max():.6g}")
    alpha = image[3:] / white
    mixed = alpha * image[:3] + (1 - alpha) * white
    return (np.round(mixed) if white == 255 else mixed).astype(image.dtype)
