"""Which frames of a video a model sees, and the same change for all of them.

A transform is `transform(example, rng)`, as those of images are. `SampleFrames` makes the frames of an example
`images`, a list of Pillow's; what comes after it changes these.

Axes: B videos, I frames, H W height and width in pixels, C channels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.examples import Arrays, Example, Transform
from flax_transformer.data.image.batch import Draw, image_batch
from flax_transformer.data.image.decode import MODES
from flax_transformer.data.image.geometry import check_share
from flax_transformer.frozen import frozen


def evenly_spaced_frames(count: int, length: int) -> Int[np.ndarray, " I"]:
    """Choose so many of a video's frames: the middle of each of as many equal parts.

    >>> evenly_spaced_frames(4, 9).tolist(), evenly_spaced_frames(1, 9).tolist()
    ([1, 3, 5, 7], [4])
    """
    return ((2 * np.arange(count) + 1) * length // (2 * count)).astype(np.int64)


@frozen
class SampleFrames:
    """Read some frames of a video: evenly, or in a random part of it each a random one of its share of that."""

    count: int
    """I."""
    least: float | None = None
    """The least share of the video that the part takes; None: evenly over all of it, without chance."""

    def __post_init__(self) -> None:
        check_share("least", self.least or 0.0)
        if self.count < 1:
            raise ValueError(f"frames must be at least 1, got {self.count}")

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Read the frames of one example.

        Raises:
          ValueError: a video of fewer frames, or a damaged one.
        """
        frames = example["frames"]
        images = frames.read(self.choose(len(frames), rng).tolist())
        rest = {name: value for name, value in example.items() if name != "frames"}
        return {**rest, "images": images}

    def choose(self, length: int, rng: np.random.Generator) -> Int[np.ndarray, " I"]:
        """Choose frames of a video of so many.

        Raises:
          ValueError: fewer than are asked for.
        """
        check_frame_count(length, self.count)
        if self.least is None:
            return evenly_spaced_frames(self.count, length)
        part = max(self.count, round(length * rng.uniform(self.least, 1)))
        start = int(rng.integers(length - part + 1))
        edges = np.arange(self.count + 1) * part // self.count
        return start + rng.integers(edges[:-1], edges[1:])


def check_frame_count(length: int, count: int) -> None:
    """Raise ValueError for a video of fewer frames than are asked for."""
    if length < count:
        raise ValueError(f"a video must have the {count} frames that are asked for, it has {length}")


@frozen
class PerFrame:
    """Change all frames of a video by the same transform of images, with the same draws."""

    transform: Transform

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Change one example."""
        seed = int(rng.integers(1 << 62))
        images = [self.transform({"image": image}, np.random.default_rng(seed))["image"] for image in example["images"]]
        return {**example, "images": images}


@frozen
class VideoRows:
    """Lay out videos of one size as images of I · C channels, frame after frame, which are changed as images are.

    `ChannelsToFrames` makes videos of them in the end.
    """

    channels: int = 3
    """C."""

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch; a row without an example is black and has weight 0.

        Raises:
          ValueError: videos of different sizes.
        """
        rows = [None if each is None else self._folded(each["images"]) for each in examples]
        first = next(row for row in rows if row is not None)
        images = np.zeros((len(rows), *first.shape), np.uint8)
        for row, array in enumerate(rows):
            if array is not None:
                if array.shape != first.shape:
                    raise ValueError(
                        f"videos of a batch must have one size, got {first.shape[:2]} and {array.shape[:2]}; say a size"
                        " to resize them to"
                    )
                images[row] = array
        return image_batch(images, np.array([0 if each is None else each["label"] for each in examples], np.int32),
                        np.array([each is not None for each in examples], np.float32))  # fmt: skip

    def _folded(self, images: Sequence[Any]) -> np.ndarray:
        arrays = [np.asarray(image.convert(MODES[self.channels])) for image in images]
        return np.concatenate([array[..., None] if array.ndim == 2 else array for array in arrays], axis=-1)


@frozen
class ChannelsToFrames:
    """Make videos [B, I, H, W, C], an input, of images with as many channels as frames have together."""

    channels: int = 3

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Unfold the images of a batch."""
        inputs = dict(batch["inputs"])
        images = inputs.pop("images")
        B, H, W, _ = images.shape
        videos = np.moveaxis(images.reshape(B, H, W, -1, self.channels), 3, 1)
        return {**batch, "inputs": {**inputs, "videos": np.ascontiguousarray(videos)}}
