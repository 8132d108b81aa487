"""Batches of images: laid out, and changed as a whole.

A batch is `{"inputs": {"images": [B, H, W, C]}, "labels": …, "weights": [B]}`. What changes one is
`augment(batch, draw)`, with random numbers from a `Draw`: they are drawn for the rows of all processes and each
takes those of its own rows, so that batches do not depend on how many processes there are.

Axes: B images, H W height and width in pixels, C channels, E classes, M boxes of an image.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.image.geometry import check_share, check_size, pair
from flax_transformer.frozen import frozen


@dataclass(frozen=True, eq=False)
class Draw:
    """Random numbers for a batch, of which a process lays out some rows."""

    rng: np.random.Generator
    """For what the whole batch shares; in the same state in every process."""
    rows: int
    """Of the batch in all processes together."""
    own: Int[np.ndarray, " B"]
    """Numbers of the rows laid out here."""

    def uniform(self, low: float = 0.0, high: float = 1.0) -> Float[np.ndarray, " B"]:
        """Draw a number for each row."""
        return self.rng.uniform(low, high, self.rows)[self.own]

    def integers(self, high: int) -> Int[np.ndarray, " B"]:
        """Draw a whole number below `high` for each row."""
        return self.rng.integers(high, size=self.rows)[self.own]

    def seeds(self) -> Int[np.ndarray, " B"]:
        """Return a seed of a generator for each row."""
        return self.integers(1 << 62)


Augment = Callable[[Arrays, Draw], Arrays]


@frozen
class ImageRows:
    """Lay out images of one size [B, H, W, C] as they are, in bytes, with the numbers of their classes [B].

    Raises:
      ValueError: images of different sizes.
    """

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch; a row without an example is black and has weight 0."""
        arrays = [None if each is None else _pixels(each["image"]) for each in examples]
        first = next(array for array in arrays if array is not None)
        images = np.zeros((len(arrays), *first.shape), np.uint8)
        for row, array in enumerate(arrays):
            if array is not None:
                if array.shape != first.shape:
                    raise ValueError(
                        f"images of a batch must have one size, got {first.shape} and {array.shape}; say a size to "
                        "resize them to"
                    )
                images[row] = array
        return image_batch(images, np.array([0 if each is None else each["label"] for each in examples], np.int32),
                        np.array([each is not None for each in examples], np.float32))  # fmt: skip


@frozen
class SceneRows:
    """Lay out images of different sizes in the upper left corner of one size, with their boxes.

    `mask` [B, H, W], an input, is true where there is an image. The labels are `boxes` [B, M, 4], centre x and y,
    width and height as shares of the image's own, their `classes` and `weights` [B, M], 0 where there is none, and of
    each image its `numbers` in its split and the `sizes` [B, 2] (H, W) that it has as it is.
    """

    size: int | tuple[int, int]
    """Pixels of both sides, or height and width."""
    boxes: int = 100
    """M: room for so many boxes of an image."""

    def __post_init__(self) -> None:
        check_size("size", self.size)
        if self.boxes < 1:
            raise ValueError(f"boxes must be at least 1, got {self.boxes}")

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch; a row without an example has weight 0.

        Raises:
          ValueError: an image that is larger, or one of more boxes.
        """
        B, M, (height, width) = len(examples), self.boxes, pair(self.size)
        channels = len(next(each["image"] for each in examples if each is not None).getbands())
        images, mask = np.zeros((B, height, width, channels), np.uint8), np.zeros((B, height, width), bool)
        labels = {
            "boxes": np.zeros((B, M, 4), np.float32), "classes": np.zeros((B, M), np.int32),
            "weights": np.zeros((B, M), np.float32), "numbers": np.zeros(B, np.int32),
            "sizes": np.ones((B, 2), np.int32),
        }  # fmt: skip
        for row, each in enumerate(examples):
            if each is None:
                continue
            pixels = _pixels(each["image"])
            high, wide, count = *pixels.shape[:2], len(each["boxes"])
            if high > height or wide > width or count > M:
                raise ValueError(
                    f"{each['name']} must fit {width} × {height} pixels and {M} boxes, got {wide} × {high} and {count}"
                )
            images[row, :high, :wide], mask[row, :high, :wide] = pixels, True
            labels["boxes"][row, :count] = boxes_to_cxcywh(each["boxes"], wide, high)
            labels["classes"][row, :count], labels["weights"][row, :count] = each["classes"], 1
            labels["numbers"][row], labels["sizes"][row] = each["number"], each["size"]
        weights = np.array([each is not None for each in examples], np.float32)
        return {"inputs": {"images": images, "mask": mask}, "labels": labels, "weights": weights}


@frozen
class Normalise:
    """Make bytes float32: of each channel's values between 0 and 1 the mean is taken away, and the rest divided."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.std or min(self.std) <= 0:
            raise ValueError(f"mean and std must be as many, std positive, got {self.mean}, {self.std}")

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Normalise the images of a batch; what lies beside them, by a mask, becomes 0."""
        images, mask = batch["inputs"]["images"], batch["inputs"].get("mask")
        B, H, W, C = images.shape
        if len(self.mean) != C:
            raise ValueError(f"mean and std must be those of {C} channels, got {self.mean}, {self.std}")
        scale, shift = (np.tile(each, W) for each in self._line())  # whole lines at once are quicker than pixels
        values = np.multiply(images.reshape(B, H, W * C), scale, dtype=np.float32)
        values -= shift
        values = values.reshape(images.shape)
        return with_images(batch, values if mask is None else values * mask[..., None])

    def _line(self) -> tuple[Float[np.ndarray, " C"], Float[np.ndarray, " C"]]:
        mean, std = np.array(self.mean), np.array(self.std)
        return (1 / (255 * std)).astype(np.float32), (mean / std).astype(np.float32)


@frozen
class ShiftFlip:
    """Move each image by up to so many pixels, black coming in, and mirror a share of them, left to right."""

    pad: int = 4
    flip: float = 0.5

    def __post_init__(self) -> None:
        check_share("flip", self.flip)
        if self.pad < 0:
            raise ValueError(f"pad must not be negative, got {self.pad}")

    def __call__(self, batch: Arrays, draw: Draw) -> Arrays:
        """Move and mirror the images of a batch."""
        images = batch["inputs"]["images"]
        _, H, W, _ = images.shape
        p = self.pad
        padded = np.pad(images, ((0, 0), (p, p), (p, p), (0, 0)))
        tops, lefts = draw.integers(2 * p + 1).tolist(), draw.integers(2 * p + 1).tolist()
        mirrored = (draw.uniform() < self.flip).tolist()
        out = np.empty_like(images)
        for row, (top, left, mirror) in enumerate(zip(tops, lefts, mirrored, strict=True)):
            part = padded[row, top : top + H, left : left + W]
            out[row] = part[:, ::-1] if mirror else part
        return with_images(batch, out)


@frozen
class Erase:
    """Put noise in place of a rectangle, in a share of all images (Zhong et al. 2017,
    https://arxiv.org/abs/1708.04896); after `Normalise`, for the noise is standard normal.
    """

    share: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    """The least and the most of the image's area."""
    aspect: tuple[float, float] = (0.3, 1 / 0.3)
    """The least and the most of height over width."""

    def __post_init__(self) -> None:
        check_share("share", self.share)
        if not 0 < self.area[0] <= self.area[1] < 1 or not 0 < self.aspect[0] <= self.aspect[1]:
            raise ValueError(f"area must be a range in (0, 1), aspect a positive range, got {self.area}, {self.aspect}")

    def __call__(self, batch: Arrays, draw: Draw) -> Arrays:
        """Erase in the images of a batch."""
        images = batch["inputs"]["images"].copy()
        seeds = draw.seeds()
        for row in np.flatnonzero(draw.uniform() < self.share):
            self._erase(images[row], np.random.default_rng(seeds[row]))
        return with_images(batch, images)

    def _erase(self, image: Float[np.ndarray, "H W C"], rng: np.random.Generator) -> None:
        H, W, C = image.shape
        low, high = map(math.log, self.aspect)
        for _ in range(10):
            area, aspect = H * W * rng.uniform(*self.area), math.exp(rng.uniform(low, high))
            h, w = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < h < H and 0 < w < W:
                top, left = rng.integers(H - h + 1), rng.integers(W - w + 1)
                image[top : top + h, left : left + w] = rng.standard_normal((h, w, C), np.float32)
                return


@frozen
class MixupCutmix:
    """Mix each row of a batch with its neighbour, and their labels, which become [B, E] and sum to one.

    All of two images (mixup, Zhang et al. 2017, https://arxiv.org/abs/1710.09412), or a rectangle of one in the other
    (CutMix, Yun et al. 2019, https://arxiv.org/abs/1905.04899), drawn for each batch where both are asked for. Rows 2i
    and 2i + 1 are neighbours, at random since the order is: a process needs no rows but its own.
    """

    classes: int
    """E."""
    mixup: float = 0.8
    """α of the Beta distribution that the share is drawn from; 0: none."""
    cutmix: float = 1.0
    """The same for rectangles."""

    def __post_init__(self) -> None:
        if min(self.mixup, self.cutmix) < 0 or not self.mixup + self.cutmix or self.classes < 2:
            raise ValueError(
                f"mixup or cutmix must be positive, of at least 2 classes, got {self.mixup}, {self.cutmix}, "
                f"{self.classes}"
            )

    def __call__(self, batch: Arrays, draw: Draw) -> Arrays:
        """Mix the images and labels of a batch.

        Raises:
          ValueError: an odd number of rows.
        """
        images, labels = batch["inputs"]["images"], batch["labels"]
        if len(labels) % 2:
            raise ValueError(f"rows that are mixed must be even in number in each process, got {len(labels)}")
        cut = bool(draw.rng.random() < 0.5) if self.mixup and self.cutmix else self.cutmix > 0
        alpha = self.cutmix if cut else self.mixup
        own = float(draw.rng.beta(alpha, alpha))
        pairs = images.reshape(-1, 2, *images.shape[1:])
        if cut:
            (top, bottom, left, right), own = _rectangle(*images.shape[1:3], own, draw.rng)
            mixed = pairs.copy()
            mixed[:, :, top:bottom, left:right] = pairs[:, ::-1, top:bottom, left:right]
        else:
            mixed = np.multiply(pairs, np.float32(own), dtype=np.float32)
            mixed += np.float32(1 - own) * pairs[:, ::-1]
        hard = np.eye(self.classes, dtype=np.float32)[labels]
        soft = np.float32(own) * hard + np.float32(1 - own) * hard[np.arange(len(labels)) ^ 1]
        return {**with_images(batch, mixed.reshape(images.shape)), "labels": soft}


def image_batch(
    images: UInt8[np.ndarray, "B H W C"], labels: Int[np.ndarray, " B"], weights: Float[np.ndarray, " B"]
) -> Arrays:
    """Name the parts of a batch of images and classes."""
    return {"inputs": {"images": images}, "labels": labels, "weights": weights}


def with_images(batch: Arrays, images: Shaped[np.ndarray, "B H W C"]) -> Arrays:
    """Put other images into a batch."""
    return {**batch, "inputs": {**batch["inputs"], "images": images}}


def boxes_to_cxcywh(boxes: Float[np.ndarray, "M 4"], width: int, height: int) -> Float[np.ndarray, "M 4"]:
    """Turn left, top, right and bottom in pixels into centre x and y, width and height, as shares of the image's."""
    low, high = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([(low + high) / 2, high - low], axis=1) / np.array([width, height] * 2, np.float32)


def _pixels(image: Any) -> UInt8[np.ndarray, "H W C"]:
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _rectangle(
    height: int, width: int, own: float, rng: np.random.Generator
) -> tuple[tuple[int, int, int, int], float]:
    """Draw a rectangle that leaves about a share of the image, cut off at its edges; and the share it does leave."""
    side = math.sqrt(1 - own)
    h, w = int(height * side), int(width * side)
    y, x = int(rng.integers(height)), int(rng.integers(width))
    top, bottom = max(y - h // 2, 0), min(y + h // 2, height)
    left, right = max(x - w // 2, 0), min(x + w // 2, width)
    return (top, bottom, left, right), 1 - (bottom - top) * (right - left) / (height * width)
