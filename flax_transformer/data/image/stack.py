"""Images that belong together, of one size, one behind the other in their channels: whatever is changed at random in
one is changed alike in the others.

Axes: B rows, H W height and width in pixels, C channels of all images of a row together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from flax_transformer.data.examples import Arrays, Chain, Transform
from flax_transformer.data.identity import name_function
from flax_transformer.data.image.batch import image_batch
from flax_transformer.data.image.stream import epoch_indices
from flax_transformer.data.table import Table

HELD_BYTES = 1 << 30
"""Images are kept once they are decoded, if all take at most this much."""


@dataclass(frozen=True, eq=False)
class ImageStacks:
    """Rows of one or several images."""

    table: Table
    columns: tuple[str, ...]
    """The columns of the table that have images."""
    transforms: tuple[Transform, ...] = ()
    """What makes images one size, without random numbers."""
    _kept: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def fingerprint(self) -> list[Any]:
        """Name the images, and what makes them one size."""
        named = [self.table[name].fingerprint for name in self.columns]
        return [*named, *map(name_function, self.transforms)]

    @cached_property
    def _change(self) -> Chain:
        return Chain(self.transforms)

    def read(self, indices: Int[np.ndarray, " B"]) -> UInt8[np.ndarray, "B H W C"]:
        """Decode rows, or look up those that are kept."""
        return np.stack([self._row(int(index)) for index in indices])

    def _row(self, index: int) -> UInt8[np.ndarray, "H W C"]:
        found = self._kept.get(index)
        if found is None:
            images = [self._image(self.table[name], index) for name in self.columns]
            found = np.concatenate(images, axis=-1)
            if found.nbytes * len(self) <= HELD_BYTES:
                self._kept[index] = found
        return found

    def _image(self, images: Sequence[Any], index: int) -> UInt8[np.ndarray, "H W C"]:
        image = self._change({"image": images[index]}, np.random.default_rng(0))["image"]
        pixels = np.asarray(image)
        return pixels[..., None] if pixels.ndim == 2 else pixels

    def check(self) -> None:
        """Check that all images of a row have one size, by their headers.

        Raises:
          ValueError: names the first two that have not.
        """
        first, *others = (self.table[name] for name in self.columns)
        for other in others:
            for index in range(len(self)):
                one, two = first.size(index), other.size(index)
                if one != two:
                    sizes = " and ".join(f"{name} has {w} × {h}" for name, (w, h) in (
                        (first.name(index), one), (other.name(index), two)))  # fmt: skip
                    raise ValueError(f"both images of a pair must have one size: {sizes}")


@dataclass(frozen=True, eq=False)
class StackRows:
    """Rows of stacks in random order, epoch after epoch; of several stacks, each in an order of its own."""

    stacks: tuple[ImageStacks, ...]
    """What lies behind each other in a row; rows of several stacks do not belong together."""
    seed: int

    @property
    def identity(self) -> dict[str, Any]:
        """Name images and order."""
        return {"data": [stack.fingerprint for stack in self.stacks], "seed": self.seed}

    def read(self, numbers: Int[np.ndarray, " B"]) -> Arrays:
        """Pick rows."""
        parts = [
            stack.read(epoch_indices(numbers, len(stack), self.seed + place)) for place, stack in enumerate(self.stacks)
        ]
        images = np.concatenate(parts, axis=-1)
        return image_batch(images, np.zeros(len(images), np.int32), np.ones(len(images), np.float32))


def each_stack_once(stack: ImageStacks, rows: int) -> Iterator[Arrays]:
    """Yield batches of every row once, in order; rows of the last that are left over are black and have weight 0."""
    for first in range(0, len(stack), rows):
        count = min(rows, len(stack) - first)
        images = stack.read(np.arange(first, first + count))
        images = np.pad(images, [(0, rows - count), (0, 0), (0, 0), (0, 0)])
        weights = (np.arange(rows) < count).astype(np.float32)
        yield image_batch(images, np.zeros(rows, np.int32), weights)
