"""Images with the segments that they are parted into: a map of each, changed alike, and batches of both.

Axes: B images, H W height and width in pixels, C channels, M places for segments.
"""

from collections.abc import Sequence

import numpy as np

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.image.class_map import NONE
from flax_transformer.frozen import frozen


@frozen
class ClassSegments:
    """Take all pixels of a class, by the `map` of an example, for one segment: `segments`, as `SegmentFiles` gives."""

    reduce: bool = False
    """Whether 0 in a map is no class, and 1 the first. 255 is none in any case."""

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Number the classes that are seen, from 1 on."""
        numbers = np.asarray(example["map"]).astype(np.int32)
        ids = np.where(numbers == NONE, 0, numbers + 1 - self.reduce)
        seen = np.setdiff1d(ids, [0])
        said = {"ids": seen, "classes": seen - 1, "crowd": np.zeros(len(seen), bool)}
        return {**example, "segments": {"numbers": ids, **said}}


@frozen
class SegmentMap:
    """Make of the `segments` of an example a `map`, so that `ResizeMap` and others change it as they do the image.

    It is an image of Pillow's of whole numbers: of each pixel the place of its segment among `classes` and `crowd`,
    from 1 on, and 0 for none.
    """

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Number the segments by their places."""
        import PIL.Image

        segments = example["segments"]
        known = np.append(0, segments["ids"])
        order = np.argsort(known)
        places = order[np.searchsorted(known[order], segments["numbers"])].astype(np.int32)
        said = {name: segments[name] for name in ("classes", "crowd")}
        return {"image": example["image"], "map": PIL.Image.fromarray(places), **said}


@frozen
class SegmentRows:
    """Lay out images of one size [B, H, W, C] in bytes, with their segments.

    The labels are those of `MaskSetLoss`: `segments` [B, H, W], of each pixel the place of its segment, −1 for none,
    their `classes` and `weights` [B, M], 0 of a place without a segment, and of one that is not seen or is a crowd,
    of which nothing is learned; and `crowd` [B, M], true of these.
    """

    segments: int
    """M: room for so many segments of an image."""

    def __post_init__(self) -> None:
        if self.segments < 1:
            raise ValueError(f"segments must be at least 1, got {self.segments}")

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch; a row without an example is black, has no segments and weight 0.

        Raises:
          ValueError: an image and a map of several sizes, or an image of more segments.
        """
        first = np.asarray(next(each for each in examples if each is not None)["image"])
        images, places = np.zeros((len(examples), *first.shape), np.uint8), (len(examples), self.segments)
        labels = {
            "segments": np.full(images.shape[:3], -1, np.int32), "classes": np.zeros(places, np.int32),
            "weights": np.zeros(places, np.float32), "crowd": np.zeros(places, bool),
        }  # fmt: skip
        for row, each in enumerate(examples):
            if each is None:
                continue
            pixels, numbers, count = np.asarray(each["image"]), np.asarray(each["map"]) - 1, len(each["classes"])
            if pixels.shape != first.shape or numbers.shape != pixels.shape[:2]:
                raise ValueError(
                    f"images of a batch and their maps must have one size, got {pixels.shape[:2]} and {numbers.shape} "
                    f"beside {first.shape[:2]}"
                )
            if count > self.segments:
                raise ValueError(f"an image must not have more than {self.segments} segments, got {count}")
            seen = np.isin(np.arange(count), numbers)
            images[row], labels["segments"][row] = pixels, numbers
            labels["classes"][row, :count] = each["classes"]
            labels["weights"][row, :count] = seen & ~each["crowd"]
            labels["crowd"][row, :count] = seen & each["crowd"]
        weights = np.array([each is not None for each in examples], np.float32)
        return {"inputs": {"images": images}, "labels": labels, "weights": weights}
