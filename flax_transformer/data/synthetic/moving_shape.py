"""Generated videos to classify: a shape that does something which no single frame shows.

Places lie on a torus and sizes on a circle: what leaves on one side comes in on the other, and what has grown as large
as can be is small again. So of every frame by itself place, size, shape and colours are distributed alike, whatever is
done, and a model that sees one frame only can do no better than chance.

Axes: B videos, I frames, H W height and width in pixels, C channels.
"""

from dataclasses import field

import numpy as np
from jaxtyping import Float, UInt8

from flax_transformer.data.split import SPLITS
from flax_transformer.data.synthetic.shape import SHAPES, draw_shape
from flax_transformer.data.table import DataSet
from flax_transformer.data.video.folder import VideoFolderData
from flax_transformer.data.video.video_set import InMemoryVideos, labelled_videos
from flax_transformer.frozen import frozen

ACTIONS = ("left", "right", "up", "down", "approach", "retreat", "clockwise", "anticlockwise")


DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
"""Rows and columns of a step."""


@frozen
class MovingShapes:
    """Videos of one shape, whose class is what it does; always the same ones of a seed."""

    train: int = 3_000
    """Videos to train on."""
    held_out: int = 400
    """Videos of validation, and as many of test."""
    size: int = 32
    """Pixels of both sides."""
    length: int = 12
    """Frames of a video."""
    noise: float = 20.0
    """Standard deviation of what is added to every value, of 255."""
    drawing_seed: int = 0
    """Which videos these are."""

    def __post_init__(self) -> None:
        small = min(self.train, self.held_out) < 1 or self.size < 16 or self.length < 3
        if small or min(self.noise, self.drawing_seed) < 0:
            raise ValueError(
                "at least 1 video a split is drawn, of at least 16 pixels and 3 frames, without negative noise or seed:"
                f" got {self.train}, {self.held_out}, {self.size}, {self.length}, {self.noise}, {self.drawing_seed}"
            )

    def open(self) -> DataSet:
        """Draw all videos."""
        splits = {}
        for number, split in enumerate(SPLITS):
            rng = np.random.default_rng((self.drawing_seed, number))
            count = self.train if split == "train" else self.held_out
            labels = rng.integers(len(ACTIONS), size=count).astype(np.int32)
            pixels = np.stack([self.draw(ACTIONS[label], rng) for label in labels])
            splits[split] = labelled_videos(InMemoryVideos(pixels, f"drawn {split} videos"), labels)
        return DataSet(splits, ACTIONS)

    def draw(self, action: str, rng: np.random.Generator) -> UInt8[np.ndarray, "I H W C"]:
        """Draw one video."""
        ground = rng.uniform(0, 256, 3)
        colour = (ground + rng.uniform(64, 192, 3)) % 256
        shape, sides = SHAPES[rng.integers(len(SHAPES))], rng.uniform(0.75, 1 / 0.75)
        places, sizes = self._path(action, rng)
        video = self.noise * rng.standard_normal((self.length, self.size, self.size, 3), np.float32)
        video += ground.astype(np.float32)
        for frame, (top, left), size in zip(video, places, sizes, strict=True):
            high, wide = (max(2, round(size * side)) for side in (sides**0.5, sides**-0.5))
            rows = (round(top) - high // 2 + np.arange(high)) % self.size
            columns = (round(left) - wide // 2 + np.arange(wide)) % self.size
            covered = draw_shape(shape, high, wide)[..., None]
            frame[np.ix_(rows, columns)] += np.where(covered, (colour - ground).astype(np.float32), np.float32(0))
        return np.clip(video, 0, 255, out=video).astype(np.uint8)

    def _path(self, action: str, rng: np.random.Generator) -> tuple[Float[np.ndarray, "I 2"], Float[np.ndarray, " I"]]:
        """Draw where the shape is in every frame, and how large; what is not part of the action stays."""
        time = np.arange(self.length)
        places = np.tile(rng.uniform(0, self.size, 2), (self.length, 1))
        low, high = self.size / 6, self.size / 2
        grown, speed = rng.uniform(), rng.uniform(0.045, 0.09)
        angle, turn = rng.uniform(-0.5, 0.5) - np.pi / 2, rng.uniform(0.25, 0.45)  # from the top of the circle
        radius = self.size * rng.uniform(0.2, 0.3)
        if action in DIRECTIONS:
            places = places + time[:, None] * speed * self.size * np.array(DIRECTIONS[action])
        if action in ("approach", "retreat"):
            grown = (grown + time * speed * (1 if action == "approach" else -1)) % 1
        if action in ("clockwise", "anticlockwise"):
            angle = angle + time * turn * (1 if action == "clockwise" else -1)
            places = places + radius * np.stack([np.sin(angle), np.cos(angle)], axis=-1)
        return places % self.size, np.broadcast_to(low * (high / low) ** grown, (self.length,))


@frozen
class VideoData(VideoFolderData):
    """Videos with classes: of a folder, or moving shapes where no folder is named."""

    root: str = ""
    """Folder of videos; empty: shapes are drawn."""
    shapes: MovingShapes = field(default_factory=MovingShapes)
    """Which ones."""

    def open(self) -> DataSet:
        """Open the folder, or draw."""
        return super().open() if self.root else self.shapes.open()
