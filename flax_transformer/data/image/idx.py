"""Images and labels as MNIST has them: idx files, packed by gzip or not."""

import gzip
import math
import re
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from flax_transformer.data.image.image_set import InMemoryImages, labelled_images
from flax_transformer.data.split import split_of
from flax_transformer.data.table import Table
from flax_transformer.listing import listed

MAX_BYTES = 1 << 32
"""Values that one file may have."""

_NAME = re.compile(r"(?P<split>.*)[-_.](?P<what>images|labels)[-_.]idx[1-4][-_.]ubyte(?P<packed>\.gz)?", re.IGNORECASE)


def find_idx(root: Path) -> dict[str, dict[str, Path]]:
    """Find the idx files of each split, those named `train-images-idx3-ubyte` and so on, `t10k` or `test`.

    Raises:
      ValueError: images without labels or labels without images, or two files of one kind.
    """
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(root.iterdir()):
        named = _NAME.fullmatch(path.name)
        split = named and split_of(named["split"])
        if split and path.is_file():
            files, what = found.setdefault(split, {}), named["what"].lower()
            if what in files and not (named["packed"] and files[what].name == path.name[:-3]):
                raise ValueError(f"a split must have one file of {what}, got {files[what]} and {path}")
            files.setdefault(what, path)
    for split, files in found.items():
        if len(files) < 2:
            (what,) = files
            raise ValueError(f"{split} must have idx files of images and of labels, got {files[what]} alone")
    return found


def open_idx(found: dict[str, dict[str, Path]]) -> tuple[dict[str, Table], tuple[str, ...]]:
    """Read the images of all splits, and name the classes by their numbers, those that `train` has.

    Raises:
      ValueError: damaged files, as many labels as images there are not, one class, or classes that differ.
    """
    if "train" not in found:
        raise ValueError(f"idx files must have a split train, got {', '.join(found)}")
    arrays = {split: _read_split(files) for split, files in found.items()}
    numbers = np.unique(arrays["train"][1])
    if len(numbers) < 2:
        path = found["train"]["labels"]
        raise ValueError(f"{path} must have at least two classes, got {listed(numbers)}")
    splits = {}
    for split, (pixels, labels) in arrays.items():
        differ = np.setxor1d(numbers, labels)
        if len(differ):
            path = found[split]["labels"]
            raise ValueError(f"all splits must have the same classes, {path} differs from train in {differ[0]}")
        origin = str(found[split]["images"])
        classes = np.searchsorted(numbers, labels).astype(np.int32)
        splits[split] = labelled_images(InMemoryImages(pixels, origin), classes)
    return splits, tuple(map(str, numbers))


def read_idx(path: Path) -> UInt8[np.ndarray, "..."]:
    """Read one idx file of bytes.

    Raises:
      ValueError: another kind of file, or one that does not have exactly the values that it says.
    """
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else open(path, "rb") as file:
            magic = file.read(4)
            if len(magic) != 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
                raise ValueError(f"{path} must be an idx file of bytes with 1 to 4 axes, it begins with {magic.hex()}")
            head = file.read(4 * magic[3])
            sizes = [int.from_bytes(head[place : place + 4]) for place in range(0, len(head), 4)]
            if len(head) < 4 * magic[3] or not 0 < math.prod(sizes) <= MAX_BYTES:
                raise ValueError(f"{path} must have 1 to {MAX_BYTES:,} values, it says {' × '.join(map(str, sizes))}")
            content = file.read(math.prod(sizes) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if len(content) != math.prod(sizes):
        raise ValueError(f"{path} must have the {math.prod(sizes):,} values it says, it has others")
    return np.frombuffer(content, np.uint8).reshape(sizes)


def _read_split(files: dict[str, Path]) -> tuple[np.ndarray, np.ndarray]:
    pixels, labels = read_idx(files["images"]), read_idx(files["labels"])
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    if pixels.ndim != 4 or pixels.shape[-1] not in (1, 3):
        raise ValueError(f"{files['images']} must have axes B H W or B H W C of 1 or 3 channels, got {pixels.shape}")
    if labels.shape != pixels.shape[:1]:
        raise ValueError(
            f"there must be a label for each image, got {labels.shape} in {files['labels']}, {len(pixels)} images"
        )
    return pixels, labels
