"""Skeletons as a model sees them: so many frames, a body of one size in the middle; changed at random in training.

A transform is `transform(example, rng)` of an example with `joints` [I, J, 3]: right, down and away.

Axes: B sequences, I frames, J joints.
"""

from collections.abc import Sequence

import numpy as np

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.image.geometry import check_share
from flax_transformer.frozen import frozen


@frozen
class ResampleFrames:
    """Take so many frames, between which joints move on straight lines: evenly, or of a part at a changing pace."""

    count: int
    """I."""
    least: float | None = None
    """The least share of the sequence that the part takes; None: all of it, without chance."""
    warp: float = 0.0
    """How much the pace changes: the standard deviation of its logarithm."""

    def __post_init__(self) -> None:
        check_share("least", self.least or 0.0)
        if self.count < 1 or self.warp < 0:
            raise ValueError(f"frames must be at least 1, and warp not negative, got {self.count} and {self.warp}")

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Resample one example."""
        joints = example["joints"]
        where = np.linspace(0, 1, self.count)
        if self.least is not None:
            pace = np.exp(np.interp(np.linspace(0, 3, self.count), range(4), rng.normal(0, self.warp, 4)))
            steps = np.concatenate([[0], np.cumsum(pace[1:])])
            part = rng.uniform(self.least, 1)
            where = rng.uniform(0, 1 - part) + part * steps / max(steps[-1], 1e-9)
        place = where * (len(joints) - 1)
        first = np.minimum(place.astype(np.int64), max(len(joints) - 2, 0))
        second = np.minimum(first + 1, len(joints) - 1)
        rest = (place - first).astype(np.float32)[:, None, None]
        return {**example, "joints": (1 - rest) * joints[first] + rest * joints[second]}


@frozen
class CentreBody:
    """Put the body into the middle, by the mean of all joints and frames, and make it one size: the median over frames
    of how far joints are from the middle of their frame becomes 1."""

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Move and scale one example."""
        joints = example["joints"]
        spread = np.sqrt(np.square(joints - joints.mean(1, keepdims=True)).sum(-1).mean(1))
        moved = (joints - joints.mean((0, 1))) / max(float(np.median(spread)), 1e-6)
        return {**example, "joints": moved.astype(np.float32)}


@frozen
class MoveBody:
    """Turn, stretch, mirror and shake a body at random, alike in all frames but for the shaking."""

    turn: float = 30.0
    """Degrees to either side about the vertical, at most."""
    tilt: float = 10.0
    """Degrees forwards or backwards, at most."""
    stretch: float = 0.1
    """How much it is longer or shorter along each axis, at most."""
    shake: float = 0.02
    """Standard deviation of what is added to every coordinate."""
    mirror: float = 0.0
    """Share of bodies that are mirrored, right to left."""
    pairs: tuple[tuple[int, int], ...] = ()
    """Joints of the left side and those of the right, which change places then."""

    def __post_init__(self) -> None:
        check_share("mirror", self.mirror)
        if min(self.turn, self.tilt, self.shake) < 0 or not 0 <= self.stretch < 1:
            raise ValueError(
                "turn, tilt and shake must not be negative, stretch in [0, 1), got "
                f"{self.turn}, {self.tilt}, {self.shake}, {self.stretch}"
            )

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Move one body."""
        joints = example["joints"]
        if rng.random() < self.mirror:
            order = np.arange(joints.shape[1])
            for one, other in self.pairs:
                order[[one, other]] = order[[other, one]]
            joints = joints[:, order] * np.array([-1, 1, 1])
        turn, tilt = np.radians(rng.uniform(-1, 1, 2) * (self.turn, self.tilt))
        about_y = np.array([[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]])
        about_x = np.array([[1, 0, 0], [0, np.cos(tilt), -np.sin(tilt)], [0, np.sin(tilt), np.cos(tilt)]])
        matrix = about_y @ about_x @ np.diag(rng.uniform(1 - self.stretch, 1 + self.stretch, 3))
        joints = joints @ matrix.T + rng.normal(0, self.shake, joints.shape)
        return {**example, "joints": joints.astype(np.float32)}


@frozen
class PoseRows:
    """Lay out skeletons as clips of one column, [B, I, J, 1, 3]: every joint is a pixel of three channels."""

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch; a row without an example is zero and has weight 0."""
        shape = next(each["joints"].shape for each in examples if each is not None)
        clips = np.zeros((len(examples), *shape[:2], 1, shape[2]), np.float32)
        for row, each in enumerate(examples):
            if each is not None:
                clips[row, :, :, 0] = each["joints"]
        labels = np.array([0 if each is None else each["label"] for each in examples], np.int32)
        weights = np.array([each is not None for each in examples], np.float32)
        return {"inputs": {"clips": clips}, "labels": labels, "weights": weights}
