"""Models of images as sequences: bits a pixel beside what simpler models take, and halves of images completed.

Axes: B images, T pixels of an image, V colours.
"""

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Int, UInt8

from flax_transformer.data.image.palette import Palette
from flax_transformer.frozen import frozen
from flax_transformer.report.sample import save_image
from flax_transformer.task.evaluate import tested
from flax_transformer.task.evaluator.evaluator import Evaluator, Finished, Shown
from flax_transformer.text_table import align

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


def strip(pictures: UInt8[np.ndarray, "R B H W C"], *, edge: int = 64, gap: int = 2) -> UInt8[np.ndarray, "_ _ C"]:
    """Lay R rows of images on a white page, each pixel a square, so large that sides have `edge` pixels or more."""
    scale = -(-edge // max(pictures.shape[2:4]))
    pictures = pictures.repeat(scale, axis=2).repeat(scale, axis=3)
    R, B, H, W, C = pictures.shape
    page = np.full((R, H + gap, B, W + gap, C), 255, np.uint8)
    page[:, :H, :, :W] = pictures.transpose(0, 2, 1, 3, 4)
    return page.reshape(R * (H + gap), B * (W + gap), C)[:-gap, :-gap]


def save_pixels(page: UInt8[np.ndarray, "H W C"], path: Path) -> None:
    """Save a page as a png."""
    import PIL.Image

    PIL.Image.fromarray(page[..., 0] if page.shape[-1] == 1 else page).save(path, optimize=True)
