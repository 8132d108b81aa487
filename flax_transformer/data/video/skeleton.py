"""Skeletons: the joints of a body in every frame of a sequence, with the class of what it does, and who does it.

As a model is given them, they have so many frames and a body of one size in the middle, and are changed at random in
training. A transform is `transform(example, rng)` of an example with `joints` [I, J, 3]: right, down and away.

Axes: N frames of all sequences, B sequences, I frames of one, J joints.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.file import load_arrays
from flax_transformer.data.image.geometry import check_share
from flax_transformer.data.split import hold_out
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen

REQUIRED_ARRAYS = ("frames", "lengths", "action", "subject")


LARGEST = 5_000.0
"""What no coordinate of a joint is beyond: larger ones are overflows."""


LEAST = 4
"""Frames that a sequence has left at least."""


def labelled_skeletons(
    frames: Float[np.ndarray, "N J 3"],
    lengths: Int[np.ndarray, " B"],
    labels: Int[np.ndarray, " B"],
    names: Sequence[str],
) -> Table:
    """Put sequences, which are given end to end, in a table: `joints` [I, J, 3], `label`, and `name`, their origin."""
    return Table({"joints": np.split(frames, np.cumsum(lengths)[:-1]), "label": labels, "name": list(names)})


@frozen
class SkeletonData:
    """Sequences of a file of arrays (.npz): `frames` [N, J, 3] of all sequences, and `lengths`, `action` (from 1 on)
    and `subject` [B] of each. Odd subjects are trained on and even ones test, as MSR Action3D is used (Li et al. 2010).
    """

    root: str
    """The file, or a folder with one."""
    names: tuple[str, ...] = ()
    """What the classes are called, in their order; by their numbers without."""
    focal: float = 285.0
    """Focal length of the camera in pixels, of which it has 320 × 240: the first two coordinates are in them, the third
    is the depth. 0: all three are of the world."""
    holdout: float = 0.05
    """Share of the training sequences, of each class, for validation."""
    split_seed: int = 0
    """Which ones."""

    def __post_init__(self) -> None:
        if self.focal < 0:
            raise ValueError(f"focal must not be negative, got {self.focal}")

    def open(self) -> DataSet:
        """Read the sequences.

        Raises:
          FileNotFoundError: no such file.
          ValueError: arrays that are missing, of other shapes, or no numbers, one class, or subjects of one side alone;
            names the file.
        """
        if not self.root:
            raise ValueError("skeletons are read from a file of arrays, of which none is named: --data.root FILE")
        path = Path(self.root).expanduser()
        found = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if len(found) != 1:
            raise ValueError(f"{path} must have one file of skeletons (.npz), got {len(found)}")
        if not found[0].is_file():
            raise FileNotFoundError(f"{path} must be a file of skeletons (.npz), there is none")
        arrays = load_arrays(found[0])
        try:
            return self._set(arrays, os.fspath(found[0]))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{found[0]}: {error}") from error

    def _set(self, arrays: Mapping[str, np.ndarray], origin: str) -> DataSet:
        frames, lengths, action, subject = checked(arrays)
        kinds = np.unique(action)
        if len(kinds) < 2 or (self.names and len(self.names) != kinds.max()):
            raise ValueError(
                f"actions must be at least two, each with a name, got {kinds.tolist()}, names {self.names}"
            )
        whole = is_complete(frames)
        left = np.add.reduceat(whole.astype(np.int64), np.cumsum(lengths) - lengths)
        labels = np.searchsorted(kinds, action).astype(np.int32)
        names = [f"{origin}, sequence {number}" for number in range(len(lengths))]
        world = to_camera_space(frames[whole], self.focal).astype(np.float32)
        every = labelled_skeletons(world, left, labels, names)
        kept, odd = left >= LEAST, subject % 2 == 1
        train, test = np.flatnonzero(kept & odd), np.flatnonzero(kept & ~odd)
        if not len(train) or not len(test):
            raise ValueError(f"subjects must be odd ones to train on and even ones to test, got {np.unique(subject)}")
        parts = hold_out(
            [names[i] for i in train],
            labels[train],
            ("validation",),
            share=self.holdout,
            seed=self.split_seed,
            what="videos",
        )
        splits = {part: every.take(train[indices]) for part, indices in parts.items()}
        called = self.names or tuple(map(str, range(1, int(kinds.max()) + 1)))
        return DataSet(
            {**splits, "test": every.take(test)},
            tuple(called[kind - 1] for kind in kinds),
            note=f"left out: {(~whole).sum()} frames, {(~kept).sum()} sequences",
        )


def checked(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return frames, lengths, actions and subjects; raise ValueError for what is missing or of another shape."""
    if missing := [name for name in REQUIRED_ARRAYS if name not in arrays]:
        raise ValueError(f"it must have {', '.join(REQUIRED_ARRAYS)}, it lacks {', '.join(missing)}")
    frames, *others = (arrays[name] for name in REQUIRED_ARRAYS)
    lengths = others[0]
    if (
        frames.ndim != 3
        or frames.shape[2] != 3
        or any(each.shape != lengths.shape or each.ndim != 1 for each in others)
    ):
        found = ", ".join(str(arrays[name].shape) for name in REQUIRED_ARRAYS)
        raise ValueError(f"{', '.join(REQUIRED_ARRAYS)} must be [N, J, 3] and [B] each, got {found}")
    if frames.dtype.kind not in "iuf":
        raise ValueError(f"frames must be numbers, got {frames.dtype}")
    if not all(np.issubdtype(each.dtype, np.integer) for each in others) or lengths.min(initial=1) < 1:
        raise ValueError("lengths, action and subject must be whole numbers, lengths of at least 1")
    if lengths.sum() != len(frames) or others[1].min(initial=1) < 1:
        raise ValueError(
            f"lengths must add up to the frames, actions count from 1, got {lengths.sum()} of {len(frames)}"
        )
    return frames, *others


def is_complete(frames: Float[np.ndarray, "N J 3"]) -> Bool[np.ndarray, " N"]:
    """Return which frames have a body: not all joints at zero, none beyond what coordinates can be.

    >>> is_complete(np.array([[[0.0, 0, 0]], [[1, 2, 3]], [[1, 2, 1e9]], [[1, np.nan, 3]]])).tolist()
    [False, True, False, False]
    """
    with np.errstate(invalid="ignore"):
        return (np.abs(frames) <= LARGEST).all((1, 2)) & (frames != 0).any((1, 2))


def to_camera_space(frames: Float[np.ndarray, "N J 3"], focal: float) -> Float[np.ndarray, "N J 3"]:
    """Turn columns and rows of a camera's pixels into lengths of the unit that depths have; right, down and away.

    >>> to_camera_space(np.array([[[160.0, 120 + 285, 10]]]), 285.0).tolist()
    [[[0.0, 10.0, 10.0]]]
    """
    if not focal:
        return frames
    depth = frames[..., 2:]
    return np.concatenate([(frames[..., :2] - (160, 120)) * depth / focal, depth], axis=-1)


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
    """Lay out skeletons as videos of one column, [B, I, J, 1, 3]: every joint is a pixel of three channels."""

    def __call__(self, examples: Sequence[Example | None]) -> Arrays:
        """Lay out one batch; a row without an example is zero and has weight 0."""
        shape = next(each["joints"].shape for each in examples if each is not None)
        videos = np.zeros((len(examples), *shape[:2], 1, shape[2]), np.float32)
        for row, each in enumerate(examples):
            if each is not None:
                videos[row, :, :, 0] = each["joints"]
        labels = np.array([0 if each is None else each["label"] for each in examples], np.int32)
        weights = np.array([each is not None for each in examples], np.float32)
        return {"inputs": {"videos": videos}, "labels": labels, "weights": weights}
