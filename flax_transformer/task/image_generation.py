"""Images as sequences of colours, for language models of them."""

import json
import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Int, UInt8

from flax_transformer.data import shuffled
from flax_transformer.data.identity import digest, name_function
from flax_transformer.data.image import (
    DecodedRows,
    ImageRows,
    InMemoryImages,
    InMemoryRows,
    Resize,
    ShiftFlip,
    each_image_once,
    load_images,
)
from flax_transformer.data.image.geometry import Resample, check_share
from flax_transformer.data.image.palette import Palette, PaletteRows, find_palette
from flax_transformer.data.table import Table
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.image_input import FILTERS, HeldSplits, image_stream, opened, seen_by, shape_of
from flax_transformer.task.opened import Context, Opened, check_rows
from flax_transformer.task.spec import Spec
from flax_transformer.text_table import align

PALETTE = "palette.json"
"""File of a run's folder that has its colours."""


IMAGES, PIXELS = 1 << 12, 1 << 18
"""Images, and pixels of them, that colours are found by."""


@frozen
class HeldPixels(HeldSplits):
    """Images before they become sequences."""

    palette: Palette


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
          data: has `open()`, which gives a `DataSet` of labelled images.
        """
        found = opened(data, "classes")
        height, width, channels = shape_of(found, self.size)
        fixed = () if self.size is None else (Resize(size=(height, width), resample=self.resample),)
        held = {split: _held(images, fixed, self.memory << 20) for split, images in found.splits.items()}
        if (known := context.processor) is not None:
            palette = checkpoint_palette(known, (height, width), channels)
        else:
            palette = _palette(context.folder.root / PALETTE, held["train"], self.colours, context.seed)
        print(f"{len(palette)} colours, {height * width} pixels an image", flush=True)
        palette_rows = PaletteRows(palette=palette)
        rows = context.held_rows(self.rows)
        once = partial(each_image_once, rows=rows, collate=ImageRows())
        flips = (ShiftFlip(pad=0, flip=self.flip),) if self.flip else ()
        return Opened(
            spec=Spec(uses=("text-generation",), vocab=len(palette) + 1, length=height * width),
            batches=image_stream(
                _rows(*held["train"], seed=context.seed), *flips, palette_rows, rows=self.rows, seed=context.seed
            ),
            validation=partial(once, *held["validation"], normalise=palette_rows),
            test=partial(once, *held["test"], normalise=palette_rows),
            held=HeldPixels(images=held, palette=palette, rows=rows),
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


def _held(images: Table, fixed: tuple[Any, ...], limit: int) -> tuple[Any, ...]:
    """Return images and what is to be done to them: nothing where memory holds them as they will be."""
    kept = load_images(images, *fixed, limit=limit)
    return (images, *fixed) if kept is None else (kept,)


def _rows(images: Table, *fixed: Any, seed: int) -> Any:
    """Return rows to train on, in random order."""
    if fixed or not isinstance(images["image"], InMemoryImages):
        return DecodedRows(shuffled(images, *fixed, seed=seed), ImageRows())
    return InMemoryRows(images, seed)


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
    images, *fixed = train
    found_in = digest(images.fingerprint, *map(name_function, fixed), f"{colours} {seed}")
    known = json.loads(path.read_text()) if path.is_file() else {}
    if known.get("found_in") == found_in:
        return Palette(colours=tuple(map(tuple, known["colours"])))
    rng = np.random.default_rng(seed)
    kept = load_images(images.take(rng.permutation(len(images))[:IMAGES]), *fixed)
    if kept is None:
        raise ValueError("images must be small and of one size to be sequences; say a size to resize them to")
    pixels = kept["image"].pixels
    pixels = pixels.reshape(-1, pixels.shape[-1])
    palette = find_palette(pixels[rng.integers(len(pixels), size=PIXELS)], colours, seed=seed)
    path.write_text(json.dumps({"found_in": found_in, "colours": palette.colours}) + "\n")
    return palette


COMPLETIONS = "completions.png"
"""File of a run's folder."""


ROUNDS = 50
"""Of expectation and maximisation, for one number."""


class Pixels(NamedTuple):
    """How often each colour is at each place, and how often it is that of the pixel to its left."""

    all: Int[np.ndarray, "T V"]
    copied: Int[np.ndarray, "T V"]


@frozen
class PixelBits(Evaluator):
    """Measure the bits that a pixel of the test images takes, which are `HeldPixels`.

    Beside it two models with counts of the training images: what colours a place has, and a mixture of that with the
    colour of the pixel to the left, in the proportion that fits the training images best.
    """

    takes: ClassVar[type] = HeldPixels
    metric: ClassVar[str] = "bits_per_pixel"
    better: ClassVar[str] = "lower"

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held = finished.opened.held
        metrics = tested(finished.objective, finished.model, finished.opened.test())
        train, test = (count_pixels(held.batches(split), held.palette) for split in ("train", "test"))
        place, copy = place_and_copy_bits(train, test)
        bits = math.log2(metrics["perplexity"])
        rows = [("the model", f"{bits:.3f}"), ("copying the left one", f"{copy:.3f}"), ("by place", f"{place:.3f}")]
        line = f"{bits:.3f} bits a pixel of {len(held.palette)} colours (copying {copy:.3f}, by place {place:.3f})"
        return Shown(
            metrics={**metrics, "bits_per_pixel": bits, "bits_per_pixel_copy": copy, "bits_per_pixel_place": place},
            lines=("", align([("test images", "bits a pixel"), *rows], "lr"), "", line),
        )


def count_pixels(batches: Iterable[Any], palette: Palette) -> Pixels:
    """Count the colours of images by place; first pixels of lines have no left one, so none of them is copied."""
    counts = 0
    for batch in batches:
        width = batch["inputs"]["images"].shape[2]
        tokens = palette.tokens(batch["inputs"]["images"])[batch["weights"] > 0]
        numbers = tokens + len(palette) * np.arange(tokens.shape[1])
        copied = (tokens[:, 1:] == tokens[:, :-1]) & (np.arange(1, tokens.shape[1]) % width > 0)
        some = (numbers, numbers[:, 1:][copied])
        size = tokens.shape[1] * len(palette)
        counts = counts + np.stack([np.bincount(each.ravel(), minlength=size) for each in some])
    return Pixels(*counts.reshape(2, -1, len(palette)))


def place_and_copy_bits(train: Pixels, test: Pixels) -> tuple[float, float]:
    """Return the bits a pixel by the colours of its place, one more of each, and by these mixed with the left one."""
    probabilities = (train.all + 1) / (train.all + 1).sum(axis=1, keepdims=True)
    inner = train.copied.sum(axis=1, keepdims=True) > 0
    total, share = max(train.all[inner[:, 0]].sum(), 1), 0.5
    for _ in range(ROUNDS):
        share = np.sum(train.copied * share / (share + (1 - share) * probabilities)) / total
    share = np.where(inner, share, 0)
    different = (test.all - test.copied) * np.log2((1 - share) * probabilities)
    copied = test.copied * np.log2(share + (1 - share) * probabilities)
    count = test.all.sum()
    return -float(np.sum(test.all * np.log2(probabilities))) / count, -float(np.sum(different + copied)) / count


@frozen
class Completions(Evaluator):
    """Show a model the upper half of some test images, which are `HeldPixels`, and let it draw the lower one."""

    takes: ClassVar[type] = HeldPixels
    exported: ClassVar[bool] = True

    count: int = 8
    """Images."""
    draws_each: int = 3
    """Completions of each."""
    temperature: float = 1.0
    """Of what is drawn."""

    def __post_init__(self):
        if min(self.count, self.draws_each) < 1 or self.temperature <= 0:
            raise ValueError(
                f"count and draws_each must be at least 1, temperature above 0, got {self.count}, {self.draws_each}, "
                f"{self.temperature}"
            )

    def __call__(self, finished: Finished) -> Shown:
        """Draw, and save a strip of each image, and one page of all: given halves, completions, the images."""
        held, pretrained = finished.opened.held, finished.pretrained
        images = np.concatenate([b["inputs"]["images"][b["weights"] > 0] for b in held.batches("test", self.count)])
        true, height = held.palette.tokens(images), images.shape[1]
        half = (height // 2) * images.shape[2]
        prompt = np.pad(true[:, :half], ((0, 0), (1, 0)), constant_values=len(held.palette))
        options = {"temperature": self.temperature, "top_k": 0, "max_new_tokens": true.shape[1] - half}
        keys = jax.random.split(jax.random.key(finished.seed), self.draws_each)
        drawn = [np.asarray(pretrained.generate(prompt, do_sample=True, key=key, **options))[:, 1:] for key in keys]
        paint = partial(held.palette.pixels, height=height)
        given = paint(true)
        given[:, height // 2 :] = GREY
        pages = np.stack([given, *map(paint, drawn), paint(true)])
        root = finished.folder.root
        save_pixels(strip(pages), root / COMPLETIONS)
        samples = [
            {"picture": save_image(root, f"completion-{i}", strip(pages[:, i : i + 1].transpose(1, 0, 2, 3, 4))),
             "whole": save_image(root, f"whole-{i}", images[i]), "source": f"test image {i}", "caption": CAPTION}
            for i in range(len(true))
        ]  # fmt: skip
        return Shown(samples=samples, lines=("", f"{len(true)} halves completed: {root / COMPLETIONS}"))


GREY = 127
"""What is not given."""


CAPTION = "the half that is given, completions of it, and the image itself"


def in_rows(images: UInt8[np.ndarray, "N H W C"], columns: int) -> UInt8[np.ndarray, "R B H W C"]:
    """Put images into rows of so many, white ones where the last has fewer.

    >>> in_rows(np.zeros((3, 2, 2, 1), np.uint8), 2).shape
    (2, 2, 2, 2, 1)
    """
    blank = np.full((-len(images) % columns, *images.shape[1:]), 255, np.uint8)
    return np.concatenate([images, blank]).reshape(-1, columns, *images.shape[1:])


def strip(images: UInt8[np.ndarray, "R B H W C"], *, edge: int = 64, gap: int = 2) -> UInt8[np.ndarray, "_ _ C"]:
    """Lay R rows of images on a white page, each pixel a square, so large that sides have `edge` pixels or more."""
    scale = -(-edge // max(images.shape[2:4]))
    images = images.repeat(scale, axis=2).repeat(scale, axis=3)
    R, B, H, W, C = images.shape
    page = np.full((R, H + gap, B, W + gap, C), 255, np.uint8)
    page[:, :H, :, :W] = images.transpose(0, 2, 1, 3, 4)
    return page.reshape(R * (H + gap), B * (W + gap), C)[:-gap, :-gap]


def save_pixels(page: UInt8[np.ndarray, "H W C"], path: Path) -> None:
    """Save a page as a png."""
    import PIL.Image

    PIL.Image.fromarray(page[..., 0] if page.shape[-1] == 1 else page).save(path, optimize=True)
