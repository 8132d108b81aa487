"""Images as sequences of colours, for language models of them."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data import shuffled
from flax_transformer.data.examples import Arrays
from flax_transformer.data.identity import digest, name_function
from flax_transformer.data.image import (
    DecodedRows,
    ImageRows,
    InMemoryRows,
    Pictures,
    Resize,
    ShiftFlip,
    each_image_once,
    load_images,
)
from flax_transformer.data.image.geometry import Resample, check_share
from flax_transformer.data.image.palette import Palette, PaletteRows, find_palette
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.task.example.image import FILTERS, image_stream, opened, seen_by, shape_of
from flax_transformer.task.example.opened import Context, Opened, check_rows
from flax_transformer.task.spec import Spec

PALETTE = "palette.json"
"""File of a run's folder that has its colours."""
PICTURES, PIXELS = 1 << 12, 1 << 18
"""Images, and pixels of them, that colours are found by."""


@frozen
class HeldPixels:
    """Images before they become sequences."""

    pictures: Mapping[str, tuple[Any, ...]]
    """Those of each split, then the transforms that make them one size."""
    palette: Palette
    rows: int
    """Images of a batch."""

    def batches(self, split: str, most: int | None = None) -> Iterator[Arrays]:
        """Return batches of `images`, in bytes, and the numbers of their classes: each once, or so many at random."""
        pictures, *fixed = self.pictures[split]
        if most is not None and most < len(pictures):
            pictures = pictures.take(np.random.default_rng(0).permutation(len(pictures))[:most])
        return each_image_once(pictures, *fixed, rows=self.rows, collate=ImageRows())


@frozen
class PixelSequences:
    """Lay out an image a row, line after line, every pixel the number of the nearest of a few colours.

    The colours are those of the checkpoint that training begins with, or found in the training images and kept in the
    run's folder.
    """

    rows: int = 64
    """Images a batch."""
    size: int | None = 14
    """Pixels of both sides, to which images are resized; None: as the images are, which must all have one size."""
    colours: int = 16
    """How many colours there are; of grey images, how many levels."""
    flip: float = 0.0
    """Share of training images that are mirrored."""
    resample: Resample = "bilinear"
    """How pixels are made where sizes change."""
    memory: int = 1024
    """MiB of images of a split at most that are decoded once and held in memory."""

    def __post_init__(self):
        check_rows(self.rows, self.size or 1)
        check_share("flip", self.flip)
        if not 2 <= self.colours <= 1 << 12:
            raise ValueError(f"colours must be 2 to {1 << 12}, got {self.colours}")

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images, find the colours or load the run's; held out is a `HeldPixels`.

        Args:
          data: has `open()`, which gives an `ImageSet` of classes.
        """
        found = opened(data, "classes")
        height, width, channels = shape_of(found, self.size)
        fixed = () if self.size is None else (Resize(size=(height, width), resample=self.resample),)
        held = {split: _held(pictures, fixed, self.memory << 20) for split, pictures in found.splits.items()}
        if (known := context.processor) is not None:
            palette = checkpoint_palette(known, (height, width), channels)
        else:
            palette = _palette(context.folder.root / PALETTE, held["train"], self.colours, context.seed)
        print(f"{len(palette)} colours, {height * width} pixels an image", flush=True)
        told = PaletteRows(palette=palette)
        rows = context.held_rows(self.rows)
        once = partial(each_image_once, rows=rows, collate=ImageRows())
        flips = (ShiftFlip(pad=0, flip=self.flip),) if self.flip else ()
        return Opened(
            spec=Spec(uses=("continue",), vocab=len(palette) + 1, length=height * width),
            batches=image_stream(
                _rows(*held["train"], seed=context.seed), *flips, told, rows=self.rows, seed=context.seed
            ),
            validation=partial(once, *held["validation"], normalise=told),
            test=partial(once, *held["test"], normalise=told),
            held=HeldPixels(pictures=held, palette=palette, rows=rows),
            processor=palette_processor(palette, (height, width), self.resample),
        )


def palette_processor(palette: Palette, size: tuple[int, int], resample: Resample) -> ImageProcessor:
    """Return the processor of a checkpoint, which makes sequences of images; it takes RGB, so grey is three times."""
    colours = np.repeat(palette.colours, 3, axis=1) if palette.channels == 1 else np.array(palette.colours)
    return ImageProcessor.of({
        "image_processor_type": "ImageGPTImageProcessor", "do_resize": True, "resample": FILTERS[resample],
        "size": {"height": size[0], "width": size[1]}, "do_normalize": True, "do_color_quantize": True,
        "clusters": colours.tolist(),
    })  # fmt: skip


def _held(pictures: Pictures, fixed: tuple[Any, ...], limit: int) -> tuple[Any, ...]:
    """Return images and what is to be done to them: nothing where memory holds them as they will be."""
    kept = load_images(pictures, *fixed, limit=limit)
    return (pictures, *fixed) if kept is None else (kept,)


def _rows(pictures: Pictures, *fixed: Any, seed: int) -> Any:
    """Return rows to train on, in random order."""
    if fixed or not hasattr(pictures.images, "pixels"):
        return DecodedRows(shuffled(pictures, *fixed, seed=seed), ImageRows())
    return InMemoryRows(pictures, seed)


def checkpoint_palette(processor: ImageProcessor, size: tuple[int, int], channels: int) -> Palette:
    """Take the colours of a checkpoint's image processor.

    Raises:
      ValueError: one that has none, other channels, or another size of images.
    """
    clusters = np.array(processor.config.get("clusters") or (), np.float64)
    if not clusters.size:
        raise ValueError("training begins with a checkpoint and its colours, its image processor has no clusters")
    if channels == 1 and np.any(clusters != clusters[:, :1]):
        raise ValueError("grey images take a checkpoint whose colours are grey, its clusters have others")
    if (own := seen_by(processor).get("size")) is not None and size != (own, own):
        raise ValueError(f"size must be that of the checkpoint, {own} × {own} pixels, got {size[0]} × {size[1]}")
    return Palette(colours=tuple(tuple(row) for row in clusters[:, :channels].tolist()))


def _palette(path: Path, train: tuple[Any, ...], colours: int, seed: int) -> Palette:
    """Load the run's colours, or find them in some training images and keep them."""
    pictures, *fixed = train
    found_in = digest(pictures.fingerprint, *map(name_function, fixed), f"{colours} {seed}")
    known = json.loads(path.read_text()) if path.is_file() else {}
    if known.get("found_in") == found_in:
        return Palette(colours=tuple(map(tuple, known["colours"])))
    rng = np.random.default_rng(seed)
    kept = load_images(pictures.take(rng.permutation(len(pictures))[:PICTURES]), *fixed)
    if kept is None:
        raise ValueError("images must be small and of one size to be sequences; say a size to resize them to")
    pixels = kept.images.pixels.reshape(-1, kept.images.pixels.shape[-1])
    palette = find_palette(pixels[rng.integers(len(pixels), size=PIXELS)], colours, seed=seed)
    path.write_text(json.dumps({"found_in": found_in, "colours": palette.colours}) + "\n")
    return palette
