"""Image to image: examples of pairs, of two sets, of colours and of sizes.

Axes: B images, H W height and width in pixels, C channels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, UInt8

from flax_transformer.data.examples import Arrays, Transform
from flax_transformer.data.image import CenterCrop, Normalise, Resize
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.image.stack import ImageStacks, StackRows, each_stack_once
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen
from flax_transformer.task.image_input import Sized, image_stream, normalised, opened, shape_of
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.spec import Spec

Split = Callable[[UInt8[np.ndarray, "B H W C"]], tuple[np.ndarray, np.ndarray]]
"""`split(images) -> (inputs, targets)` of stacked images, in bytes."""


@frozen
class HeldTranslations:
    """Images of the test, each with the one that it is to become."""

    batches: Callable[[], Iterable[Arrays]]
    """Gives batches as the model is given them."""
    normalise: Normalise
    """How values of three channels come from bytes."""
    known: bool
    """Whether labels are what the inputs are to become, and not just other images."""
    name: Callable[[int], str]
    """Where an image comes from."""


@frozen
class Halve:
    """Part the channels of every image into what goes in and what is to come out."""

    split: Split
    normalise: tuple[float, float]
    """Mean and standard deviation of the values between 0 and 1."""

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Return `images` to be translated, and as `labels` what they are to become."""
        inputs, targets = map(self._floats, self.split(batch["inputs"]["images"]))
        return {"inputs": {"images": inputs}, "labels": targets, "weights": batch["weights"]}

    def _floats(self, images: np.ndarray) -> Float[np.ndarray, "B H W C"]:
        mean, std = self.normalise
        return (images.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(std)


def halves(images: UInt8[np.ndarray, "B H W C"]) -> tuple[np.ndarray, np.ndarray]:
    """Return both of two images that lie behind each other."""
    half = images.shape[-1] // 2
    return images[..., :half], images[..., half:]


def grey_and_colour(images: UInt8[np.ndarray, "B H W 3"]) -> tuple[np.ndarray, np.ndarray]:
    """Return images in grey, as Pillow makes them (ITU-R 601: 0.299 R + 0.587 G + 0.114 B), and as they are."""
    weights = np.array([19595, 38470, 7471], np.uint32)
    return ((images.astype(np.uint32) @ weights + 0x8000) >> 16).astype(np.uint8)[..., None], images


@frozen
class SmallAndLarge:
    """Return images made smaller, by the mean of the pixels that become one, and as they are."""

    scale: int

    def __call__(self, images: UInt8[np.ndarray, "B H W C"]) -> tuple[np.ndarray, np.ndarray]:
        """Make both."""
        B, H, W, C = images.shape
        r = self.scale
        means = images.reshape(B, H // r, r, W // r, r, C).mean(axis=(2, 4))
        return np.round(means).astype(np.uint8), images


@frozen
class PairedImages(Sized):
    """Lay out the image of a pair and the other, which it is to become; both are changed at random alike.

    Values are between -1 and 1, unless `mean` and `std` say otherwise, of all channels alike.
    """

    backward: bool = False
    """Whether the other is to become the image."""

    kinds: ClassVar[tuple[str, ...]] = ("pairs",)
    """What may be known of the data's images."""
    columns: ClassVar[tuple[str, ...]] = ("image", "other")

    def __post_init__(self):
        super().__post_init__()
        changed = ("area", "jitter", "operations", "erase", "mixup", "cutmix")
        if given := [f"augment.{name}" for name in changed if getattr(self.augment, name)]:
            raise ValueError(f"images to be translated are moved and mirrored alone, got {', '.join(given)}")
        if max(len(self.mean), len(self.std)) > 1:
            raise ValueError(f"mean and std must be one number for all channels, got {self.mean} and {self.std}")

    @property
    def values(self) -> tuple[float, float]:
        """Mean and standard deviation of values between 0 and 1."""
        return (self.mean or (0.5,))[0], (self.std or (0.5,))[0]

    def split(self) -> Split:
        """Return what parts a row into what goes in and what is to come out."""
        return backwards if self.backward else halves

    def sizes(self, shape: tuple[int, int, int]) -> tuple[tuple[int, int, int], Mapping[str, int]]:
        """Return the shape of what goes in, and the model's other sizes, of images of a shape."""
        return shape, {"output_channels": shape[2], "scale": 1}

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images; held out are `HeldTranslations`.

        Args:
          data: has `open()`, which gives a `DataSet` of this kind.
        """
        found = opened(data, *self.kinds)
        stacks = {split: self._stack(table) for split, table in found.splits.items()}
        for stack in stacks.values():
            if found.kind == "pairs":
                stack.check()
        shape, sizes = self.sizes(_shape(found, self.columns, self.size))
        halve = Halve(split=self.split(), normalise=self.values)
        before, _ = self.augment.batches(0)
        held = {split: partial(self._once, stacks[split], halve, context) for split in ("validation", "test")}
        test = found.splits["test"]["image"]
        return Opened(
            spec=Spec(uses=("image-to-image",), image=shape, sizes=sizes),
            batches=image_stream(self._rows(found, stacks, context), *before, halve, rows=self.rows, seed=context.seed),
            validation=held["validation"],
            test=held["test"],
            held=HeldTranslations(
                batches=held["test"],
                normalise=normalised((self.values[0],), (self.values[1],), 3),
                known=found.kind != "sets",
                name=test.name,
            ),
        )

    def _stack(self, table: Table, columns: tuple[str, ...] = ()) -> ImageStacks:
        return ImageStacks(table, columns or self.columns, self._sized())

    def _sized(self) -> tuple[Transform, ...]:
        if self.size is None:
            return ()
        resample = self.resample or "bicubic"
        return Resize(size=round(self.size / self.keep), resample=resample), CenterCrop(size=self.size)

    def _rows(self, found: DataSet, stacks: Mapping[str, ImageStacks], context: Context) -> StackRows:
        return StackRows((stacks["train"],), context.seed)

    def _once(self, stack: ImageStacks, halve: Halve, context: Context) -> Iterator[Arrays]:
        return map(halve, each_stack_once(stack, context.held_rows(self.rows)))


def backwards(images: UInt8[np.ndarray, "B H W C"]) -> tuple[np.ndarray, np.ndarray]:
    """Return both of two images that lie behind each other, the second first."""
    return halves(images)[::-1]


@frozen
class UnpairedImages(PairedImages):
    """Lay out images of two sets, each in an order of its own: nothing is known of which belong together.

    Where the data have pairs, the model does not see them in training, and the test tells how far what it makes is
    from the other of each.
    """

    kinds: ClassVar[tuple[str, ...]] = ("pairs", "sets")

    def _rows(self, found: DataSet, stacks: Mapping[str, ImageStacks], context: Context) -> StackRows:
        train = found.splits["train"]
        return StackRows(tuple(self._stack(train, (name,)) for name in self.columns), context.seed)


@frozen
class ColourImages(PairedImages):
    """Lay out images in grey, and in the colours that they are to get."""

    kinds: ClassVar[tuple[str, ...]] = ("images", "classes")
    columns: ClassVar[tuple[str, ...]] = ("image",)

    def split(self) -> Split:
        """Return what parts a row."""
        if self.backward:
            raise ValueError("colours are not taken away by a model, got backward")
        return grey_and_colour

    def sizes(self, shape: tuple[int, int, int]) -> tuple[tuple[int, int, int], Mapping[str, int]]:
        """Return the shape of what goes in, and the model's other sizes."""
        if shape[2] != 3:
            raise ValueError(f"images to be coloured must have 3 channels, got {shape[2]}")
        return (*shape[:2], 1), {"output_channels": 3, "scale": 1}


@frozen
class UpscaleImages(PairedImages):
    """Lay out images made smaller, and in the size that they are to get."""

    scale: int = 2
    """How many times higher and wider they become."""

    kinds: ClassVar[tuple[str, ...]] = ("images", "classes")
    columns: ClassVar[tuple[str, ...]] = ("image",)

    def __post_init__(self):
        super().__post_init__()
        if self.scale < 2 or self.backward:
            raise ValueError(
                f"images are made larger by at least 2, not backward, got scale={self.scale}, backward={self.backward}"
            )

    def split(self) -> Split:
        """Return what parts a row."""
        return SmallAndLarge(scale=self.scale)

    def sizes(self, shape: tuple[int, int, int]) -> tuple[tuple[int, int, int], Mapping[str, int]]:
        """Return the shape of what goes in, and the model's other sizes."""
        high, wide, channels = shape
        if high % self.scale or wide % self.scale:
            raise ValueError(f"height and width must be multiples of the scale, got {high}×{wide} and {self.scale}")
        return (high // self.scale, wide // self.scale, channels), {"output_channels": channels, "scale": self.scale}


def _shape(found: DataSet, columns: tuple[str, ...], size: int | None) -> tuple[int, int, int]:
    """Return the height, width and channels that all images get.

    Raises:
      ValueError: images of several sizes, where none is said.
    """
    sides = [
        replace(found, splits={split: Table({"image": table[name]}) for split, table in found.splits.items()})
        for name in columns
    ]
    shape, *others = (shape_of(side, size) for side in sides)
    for other in others:
        if other != shape:
            one, two = (f"{wide} × {high}" for high, wide, _ in (shape, other))
            raise ValueError(f"images of both sets must have one size, or get it by --size, got {one} and {two}")
    return shape
