"""Skeletons, for classifiers of clips."""

from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float, Int

from flax_transformer.data import each_once, shuffled
from flax_transformer.data.examples import Chain, Transform
from flax_transformer.data.label import check_classes
from flax_transformer.data.video.frame_sampling import evenly_spaced_frames
from flax_transformer.data.video.pose import CentreBody, MoveBody, PoseRows, ResampleFrames
from flax_transformer.data.video.skeleton import Skeletons
from flax_transformer.frozen import frozen
from flax_transformer.report.sample import sheet
from flax_transformer.task.example.image import named_classes
from flax_transformer.task.example.opened import Context, Opened, check_rows, stream
from flax_transformer.task.spec import Spec

SHOWN, SIDE = 8, 64
"""Frames of a sequence that a report shows, and pixels of both sides of each."""


@frozen
class HeldSkeletons:
    """Held-out sequences, and what is done to them before they are laid out."""

    skeletons: Skeletons
    transforms: tuple[Transform, ...]

    what: ClassVar[str] = "sequences"

    @property
    def labels(self) -> Int[np.ndarray, " B"]:
        """The numbers of their classes."""
        return self.skeletons.labels

    def name(self, index: int) -> str:
        """Say where a sequence comes from."""
        return self.skeletons.names[index]

    def seen(self, index: int) -> Any:
        """Draw the joints in some frames on a sheet, of Pillow, from the front."""
        joints = Chain(self.transforms)(self.skeletons[index], np.random.default_rng(0))["joints"]
        chosen = joints[evenly_spaced_frames(min(SHOWN, len(joints)), len(joints))]
        return sheet([dots(frame[:, :2]) for frame in chosen])

    def told(self, index: int) -> dict[str, Any]:
        """Say nothing else."""
        return {}


def dots(places: Float[np.ndarray, "J 2"]) -> Any:
    """Draw points, right and down, those within 2.5 of the middle, black on white."""
    import PIL.Image

    pixels = np.full((SIDE, SIDE), 255, np.uint8)
    columns, rows = np.clip(((places / 5 + 0.5) * SIDE).astype(np.int64), 1, SIDE - 2).T
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            pixels[rows + down, columns + across] = 0
    return PIL.Image.fromarray(pixels)


@frozen
class LabelledSkeletons:
    """Lay out a sequence a row, as a clip of which every joint is a pixel of three channels."""

    rows: int = 32
    """Sequences a batch."""
    frames: int = 32
    """Frames of each, made of those there are."""
    least: float = 0.8
    """The least share of a training sequence that they are made of."""
    warp: float = 0.3
    """How much the pace of a training sequence is changed."""
    move: MoveBody = MoveBody()
    """What else is changed in training sequences."""

    def __post_init__(self):
        check_rows(self.rows, self.frames)
        self._drawn()

    def open(self, data: Any, context: Context) -> Opened:
        """Open the sequences; held out are the test's `HeldSkeletons`.

        Args:
          data: has `open()`, which gives a `SkeletonSet`.
        """
        found = data.open()
        for split, each in found.splits.items():
            check_classes(each.labels, found.classes, f"{split} skeletons")
        counts = ", ".join(f"{len(each):,} {split}" for split, each in found.splits.items())
        print(
            f"skeletons: {counts}; {len(found.classes)} classes; left out: {found.dropped[0]} frames, "
            f"{found.dropped[1]} sequences", flush=True,
        )  # fmt: skip
        fixed, rows = (ResampleFrames(count=self.frames), CentreBody()), PoseRows()
        once = lambda split: each_once(found.splits[split], *fixed, rows=context.held_rows(self.rows), collate=rows)  # noqa: E731
        joints = found.splits["train"].frames.shape[1]
        return Opened(
            spec=Spec(uses=("classify",), classes=found.classes, image=(joints, 1, 3), frames=self.frames),
            batches=stream(shuffled(found.splits["train"], *self._drawn(), seed=context.seed), rows, self.rows),
            validation=partial(once, "validation"),
            test=partial(once, "test"),
            held=HeldSkeletons(skeletons=found.splits["test"], transforms=fixed),
            fields=named_classes(found.classes),
        )

    def _drawn(self) -> tuple[Any, ...]:
        return ResampleFrames(count=self.frames, least=self.least, warp=self.warp), CentreBody(), self.move
