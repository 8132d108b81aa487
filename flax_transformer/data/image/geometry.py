"""Where things are in an image: resizing, cropping and mirroring, with the boxes of what is to be seen.

A transform is `transform(example, rng)`, as Grain's `random_map` takes it. An example has an `image`, Pillow's, and
may have `boxes` [M, 4], left, top, right and bottom in pixels, with their `classes` [M], which go along: a box is cut
off at the edge of a crop, and dropped with its class if less than a pixel of its width or height is left.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from flax_transformer.data.examples import Example, Transform
from flax_transformer.data.image.decode import MAX_PIXELS
from flax_transformer.frozen import frozen

Resample = Literal["nearest", "bilinear", "bicubic", "lanczos"]


def new_size(size: Mapping[str, int], height: int, width: int) -> tuple[int, int]:
    """Return the height and width that an image is resized to, rounded down as `transformers` does.

    >>> new_size({"shortest_edge": 224}, 300, 400), new_size({"shortest_edge": 800, "longest_edge": 1333}, 500, 1000)
    ((224, 298), (666, 1333))
    """
    if "height" in size:
        return size["height"], size["width"]
    if "max_height" in size:
        scale = min(size["max_height"] / height, size["max_width"] / width)
        return int(height * scale), int(width * scale)
    short, long = sorted((height, width))
    edge = end = size["shortest_edge"]
    if "longest_edge" in size:
        if long / short * edge > size["longest_edge"]:
            edge = size["longest_edge"] * short / long
            end = round(edge)
        if end == short:
            return height, width
    other = int(edge * long / short)
    return (end, other) if height <= width else (other, end)


@frozen
class Resize:
    """Make the shorter side so long, and the longer one in proportion; or both sides what is said.

    The image processors of `transformers` compute the same sizes, and the pixels are Pillow's.
    """

    size: int | tuple[int, int]
    """Pixels of the shorter side, or height and width."""
    longest: int | None = None
    """Pixels of the longer side at most, for a shorter side alone."""
    resample: Resample = "bicubic"

    def __post_init__(self) -> None:
        check_size("size", self.size)
        if self.longest is not None and (not isinstance(self.size, int) or self.longest < self.size):
            raise ValueError(f"longest goes with a shorter side of at most as much, got {self.longest}, {self.size}")

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Resize one image."""
        return resized(example, self.shape(*example["image"].size), self.resample)

    def shape(self, width: int, height: int) -> tuple[int, int]:
        """Return the height and width that an image gets."""
        if not isinstance(self.size, int):
            return self.size
        longest = {} if self.longest is None else {"longest_edge": self.longest}
        sides = new_size({"shortest_edge": self.size, **longest}, height, width)
        # Theirs leaves an image whose shorter side stays as it is, though its longer one is a pixel too long.
        high, wide = (max(1, side if self.longest is None else min(side, self.longest)) for side in sides)
        return high, wide


@frozen
class RandomResize:
    """Make the shorter side one of several lengths, as DETR is trained."""

    sizes: tuple[int, ...]
    longest: int | None = None
    resample: Resample = "bilinear"

    def __post_init__(self) -> None:
        for size in self.sizes:
            Resize(size=size, longest=self.longest)
        if not self.sizes:
            raise ValueError("sizes must be at least one, got none")

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Resize one image."""
        size = self.sizes[rng.integers(len(self.sizes))]
        return Resize(size=size, longest=self.longest, resample=self.resample)(example, rng)


@frozen
class CenterCrop:
    """Take the middle, as the image processors of `transformers` do; black where the image is smaller."""

    size: int | tuple[int, int]
    """Pixels of both sides, or height and width."""

    def __post_init__(self) -> None:
        check_size("size", self.size)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Crop one image."""
        height, width = pair(self.size)
        image = example["image"]
        return cropped(example, (image.width - width) // 2, (image.height - height) // 2, width, height)


@frozen
class RandomResizedCrop:
    """Take a rectangle of random area and shape, and make it one size (Szegedy et al. 2015,
    https://arxiv.org/abs/1409.4842).
    """

    size: int | tuple[int, int]
    """Pixels of both sides, or height and width."""
    area: tuple[float, float] = (0.08, 1.0)
    """The least and the most of the image's area."""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """The least and the most of width over height."""
    resample: Resample = "bicubic"

    def __post_init__(self) -> None:
        check_size("size", self.size)
        if not 0 < self.area[0] <= self.area[1] <= 1 or not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"area must be a range in (0, 1], aspect a positive range, got {self.area}, {self.aspect}")

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Crop and resize one image."""
        left, top, width, height = self._draw(*example["image"].size, rng)
        return resized(cropped(example, left, top, width, height), pair(self.size), self.resample)

    def _draw(self, width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
        low, high = map(math.log, self.aspect)
        for _ in range(10):
            area, aspect = width * height * rng.uniform(*self.area), math.exp(rng.uniform(low, high))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                return int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1)), w, h
        w = min(width, max(1, round(height * self.aspect[1])))  # the image is too long or too high: its middle
        h = min(height, max(1, round(width / self.aspect[0])))
        return (width - w) // 2, (height - h) // 2, w, h


@frozen
class RandomCrop:
    """Take a rectangle at random whose sides are random shares of the image's, as DETR is trained."""

    least: float = 0.5
    """The least share of each side."""

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ValueError(f"least must be in (0, 1], got {self.least}")

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Crop one image."""
        sides = example["image"].size
        width, height = (max(1, round(side * rng.uniform(self.least, 1))) for side in sides)
        left, top = (int(rng.integers(side - own + 1)) for side, own in zip(sides, (width, height), strict=True))
        return cropped(example, left, top, width, height)


@frozen
class Flip:
    """Mirror a share of all images."""

    share: float = 0.5
    axis: Literal["width", "height"] = "width"
    """Left to right, or top to bottom."""

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Mirror one image, or not."""
        return flipped(example, self.axis) if rng.random() < self.share else example


@frozen
class RandomApply:
    """Apply transforms to a share of all examples, one after the other."""

    transforms: tuple[Transform, ...]
    share: float = 0.5

    def __post_init__(self) -> None:
        check_share("share", self.share)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Transform one example, or not."""
        if rng.random() < self.share:
            for transform in self.transforms:
                example = transform(example, rng)
        return example


def resized(example: Example, size: tuple[int, int], resample: Resample) -> Example:
    """Make an image of one height and width."""
    import PIL.Image

    image, (height, width) = example["image"], size
    if image.size == (width, height):
        return example
    if height * width > MAX_PIXELS:
        raise ValueError(
            f"a resized image must have at most {MAX_PIXELS:,} pixels, got {width} × {height} of {image.width} × "
            f"{image.height}"
        )
    scale = np.array([width / image.width, height / image.height] * 2, np.float32)
    filter = PIL.Image.Resampling[resample.upper()]
    return _moved(example, image.resize((width, height), filter), lambda boxes: boxes * scale)


def cropped(example: Example, left: int, top: int, width: int, height: int) -> Example:
    """Take a rectangle of an image, black where there is none."""
    image = example["image"]
    if (left, top, width, height) == (0, 0, *image.size):
        return example
    shift = np.array([left, top, left, top], np.float32)
    example = _moved(example, image.crop((left, top, left + width, top + height)), lambda boxes: boxes - shift)
    if "boxes" not in example:
        return example
    boxes = np.clip(example["boxes"], 0, np.array([width, height, width, height], np.float32))
    kept = (boxes[:, 2:] - boxes[:, :2] >= 1).all(1)
    return {**example, "boxes": boxes[kept], "classes": example["classes"][kept]}


def flipped(example: Example, axis: Literal["width", "height"] = "width") -> Example:
    """Mirror an image, left to right or top to bottom."""
    import PIL.Image

    image = example["image"]
    sides, order, how = {
        "width": ([image.width, 0, image.width, 0], [2, 1, 0, 3], PIL.Image.Transpose.FLIP_LEFT_RIGHT),
        "height": ([0, image.height, 0, image.height], [0, 3, 2, 1], PIL.Image.Transpose.FLIP_TOP_BOTTOM),
    }[axis]
    mirror = np.array(sides, np.float32)

    def move(boxes: Float[np.ndarray, "M 4"]) -> Float[np.ndarray, "M 4"]:
        return np.abs(mirror - boxes)[:, order]

    return _moved(example, image.transpose(how), move)


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return the height and width of a size, a number for both or the two."""
    return (size, size) if isinstance(size, int) else size


def check_size(name: str, size: int | tuple[int, int]) -> None:
    """Check that a size has pixels; raise ValueError if not."""
    if min(pair(size)) < 1:
        raise ValueError(f"{name} must be at least 1 pixel, got {size}")


def check_share(name: str, share: float) -> None:
    """Check that a share is in [0, 1]; raise ValueError if not."""
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {share}")


def _moved(example: Example, image: Any, move: Callable[[Any], Any]) -> Example:
    moved = {"boxes": move(example["boxes"])} if "boxes" in example else {}
    return {**example, "image": image, **moved}
