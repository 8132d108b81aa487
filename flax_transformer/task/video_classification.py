"""Video classification: examples of labelled videos and of skeletons, and `classify_videos`."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from flax_transformer.data import each_once, shuffled
from flax_transformer.data.examples import Transform
from flax_transformer.data.image import DecodedRows, MixupCutmix, Normalise, each_image_once
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.image.decode import MODES
from flax_transformer.data.label import check_classes
from flax_transformer.data.table import DataSet
from flax_transformer.data.video import (
    ChannelsToFrames,
    PerFrame,
    SampleFrames,
    VideoFiles,
    VideoRows,
)
from flax_transformer.data.video.frame_sampling import check_frame_count, evenly_spaced_frames
from flax_transformer.data.video.skeleton import CentreBody, MoveBody, PoseRows, ResampleFrames
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.report.sample import sheet
from flax_transformer.task.checkpoint import image_processor_of, require_use
from flax_transformer.task.classification import Label, ranked
from flax_transformer.task.held_out import HeldSeen
from flax_transformer.task.image_input import Sized, image_stream, named_classes, normalised, processor_of
from flax_transformer.task.opened import Context, Opened, check_rows, stream
from flax_transformer.task.spec import Spec


@frozen
class HeldVideos(HeldSeen):
    """Held-out videos, and how a model sees them."""

    what: ClassVar[str] = "videos"

    def seen(self, index: int) -> Any:
        """Return the frames that a model sees in the size in which it sees them, on a sheet, of Pillow."""
        return sheet(self.example(index)["images"])

    def facts(self, index: int) -> dict[str, Any]:
        """Return how many frames are on the sheet."""
        return {"frames": self.transforms[0].count}


@frozen
class LabelledVideos(Sized):
    """Lay out a video a row, some frames of it, resized so that their middle fills a square."""

    rows: int = 32
    """Videos a batch."""
    frames: int = 8
    """Frames of each that the model sees; evenly spread over those held out."""
    least: float = 0.75
    """The least share of a training video that they are drawn from."""

    def __post_init__(self):
        super().__post_init__()
        SampleFrames(count=self.frames, least=self.least)

    def open(self, data: Any, context: Context) -> Opened:
        """Open the videos; held out are the test's `HeldVideos`.

        Args:
          data: has `open()`, which gives a `DataSet` of labelled videos.
        """
        found = data.open()
        for split, videos in found.splits.items():
            check_classes(videos["label"], found.classes, f"{split} videos")
        counts = ", ".join(f"{len(videos):,} {split}" for split, videos in found.splits.items())
        print(f"videos: {counts}; {len(found.classes):,} classes", flush=True)
        return self._settled(context, found.channels)._open(found, context)

    def _open(self, found: DataSet, context: Context) -> Opened:
        height, width = check_videos(found, self.frames, self.size)
        normalise = normalised(self.mean, self.std, found.channels)
        folded = Normalise(mean=normalise.mean * self.frames, std=normalise.std * self.frames)
        fixed = (SampleFrames(count=self.frames), *(PerFrame(transform=each) for each in self._fixed()))
        rows, unfold = VideoRows(channels=found.channels), ChannelsToFrames(channels=found.channels)
        once = partial(
            each_image_once, rows=context.held_rows(self.rows), collate=rows, normalise=_Chain(changes=(folded, unfold))
        )
        before, after = self.augment.batches(len(found.classes))
        source = DecodedRows(shuffled(found.splits["train"], *self._drawn((height, width)), seed=context.seed), rows)
        return Opened(
            spec=Spec(
                uses=("classification",), classes=found.classes, image=(height, width, found.channels),
                frames=self.frames
            ),
            batches=image_stream(
                source, *before, folded, *after, unfold, rows=self.rows, seed=context.seed,
                pairs=any(isinstance(change, MixupCutmix) for change in after),
            ),
            validation=partial(once, found.splits["validation"], *fixed),
            test=partial(once, found.splits["test"], *fixed),
            held=HeldVideos(table=found.splits["test"], transforms=fixed),
            processor=processor_of([each.transform for each in fixed[1:]], normalise, "VideoMAE"),
            fields=named_classes(found.classes),
        )  # fmt: skip

    def _drawn(self, size: tuple[int, int]) -> tuple[Transform, ...]:
        """Return what makes training videos: frames by chance, and changes that are the same for all of them."""
        each = () if self.augment.area else self._fixed()
        every = (*each, *self.augment.examples(size, self.resample))
        return SampleFrames(count=self.frames, least=self.least), *(PerFrame(transform=each) for each in every)


@frozen
class _Chain:
    """One change of a batch after the other, without chance."""

    changes: tuple[Any, ...]

    def __call__(self, batch: Any, draw: Draw | None = None) -> Any:
        for change in self.changes:
            batch = change(batch)
        return batch


def check_videos(found: DataSet, frames: int, size: int | None) -> tuple[int, int]:
    """Return the height and width that videos get.

    Raises:
      ValueError: a video of fewer frames than are asked for, or videos of several sizes, where none is said; names one.
    """
    known: tuple[str, int, int] | None = None
    for labelled in found.splits.values():
        for i in range(len(labelled)):
            count, height, width = labelled["frames"].size(i)
            try:
                check_frame_count(count, frames)
            except ValueError as error:
                raise ValueError(f"{labelled['name'][i]}: {error}; ask for fewer by --frames") from error
            known = known or (labelled["name"][i], height, width)
            if size is None and known[1:] != (height, width):
                raise ValueError(
                    f"videos must have one size, or get it by --size: {known[0]} has {known[2]} × {known[1]}, "
                    f"{labelled['name'][i]} {width} × {height}"
                )
    return known[1:] if size is None else (size, size)


SHOWN, SIDE = 8, 64
"""Frames of a sequence that a report shows, and pixels of both sides of each."""


@frozen
class HeldSkeletons(HeldSeen):
    """Held-out sequences, and what is done to them before they are laid out."""

    what: ClassVar[str] = "sequences"

    def seen(self, index: int) -> Any:
        """Draw the joints in some frames on a sheet, of Pillow, from the front."""
        joints = self.example(index)["joints"]
        chosen = joints[evenly_spaced_frames(min(SHOWN, len(joints)), len(joints))]
        return sheet([dots(frame[:, :2]) for frame in chosen])


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
    """Lay out a sequence a row, as a video of which every joint is a pixel of three channels."""

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
          data: has `open()`, which gives a `DataSet` of labelled skeletons.
        """
        found = data.open()
        for split, each in found.splits.items():
            check_classes(each["label"], found.classes, f"{split} skeletons")
        counts = ", ".join(f"{len(each):,} {split}" for split, each in found.splits.items())
        print(f"skeletons: {counts}; {len(found.classes)} classes; {found.note}", flush=True)
        fixed, rows = (ResampleFrames(count=self.frames), CentreBody()), PoseRows()

        def once(split):
            return each_once(found.splits[split], *fixed, rows=context.held_rows(self.rows), collate=rows)

        joints = found.splits["train"]["joints"][0].shape[1]
        return Opened(
            spec=Spec(uses=("classification",), classes=found.classes, image=(joints, 1, 3), frames=self.frames),
            batches=stream(shuffled(found.splits["train"], *self._drawn(), seed=context.seed), rows, self.rows),
            validation=partial(once, "validation"),
            test=partial(once, "test"),
            held=HeldSkeletons(table=found.splits["test"], transforms=fixed),
            fields=named_classes(found.classes),
        )

    def _drawn(self) -> tuple[Any, ...]:
        return ResampleFrames(count=self.frames, least=self.least, warp=self.warp), CentreBody(), self.move


def classify_videos(pretrained: Pretrained, videos: Sequence[str | os.PathLike | list[Any]]) -> list[list[Label]]:
    """Return what happens in videos: folders of frames, video files, or what `read_video` gives of them.

    Returns:
      For each video all classes, the most probable first, as `classify` gives them.

    Raises:
      ValueError: a checkpoint of another kind or without an image processor, or what is no video.
    """
    require_use(pretrained, "classification", "videos")
    processor = image_processor_of(pretrained)
    frames = (clip if isinstance(clip, list) else read_video(pretrained, clip) for clip in videos)
    logits = [pretrained(**processor(each)).logits for each in frames]
    by_video = [np.asarray(each.astype(np.float32)).mean(axis=0) for each in logits]  # a row a frame without time
    return ranked(pretrained, np.stack(by_video)) if by_video else []


def read_video(pretrained: Pretrained, clip: str | os.PathLike) -> list[Any]:
    """Decode as many frames of a video as the model sees, evenly spread, with as many channels as its frames have.

    Raises:
      ValueError: no such video, one of fewer frames or of several sizes, or a damaged one; names it.
    """
    path, count = Path(clip), pretrained.config.integer("num_frames", 8)
    if not path.exists():
        name = pretrained.config["architectures"][0]
        raise ValueError(
            f"a {name} reads videos, folders of frames or video files, and there is no {os.fspath(clip)[:200]!r}"
        )
    found = VideoFiles(path.parent, [path.name])
    length = found.size(0)[0]
    try:
        check_frame_count(length, count)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    mode = MODES[1 if pretrained.config.channels == 1 else 3]
    return [frame.convert(mode) for frame in found.read(0, evenly_spaced_frames(count, length).tolist())]
