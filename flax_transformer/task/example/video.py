"""Clips, for classifiers."""

from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from flax_transformer.data import shuffled
from flax_transformer.data.examples import Chain, Transform
from flax_transformer.data.image import DecodedRows, MixupCutmix, Normalise, each_image_once
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.label import check_classes
from flax_transformer.data.video import ChannelsToFrames, LabelledClips, PerFrame, SampleFrames, VideoRows, VideoSet
from flax_transformer.data.video.frame_sampling import check_frame_count
from flax_transformer.frozen import frozen
from flax_transformer.report.sample import sheet
from flax_transformer.task.example.image import Sized, image_stream, named_classes, normalised, processor_of
from flax_transformer.task.example.opened import Context, Opened
from flax_transformer.task.spec import Spec


@frozen
class HeldClips:
    """Held-out clips, and how a model sees them."""

    clips: LabelledClips
    transforms: tuple[Transform, ...]
    """Before they are laid out."""

    what: ClassVar[str] = "clips"

    @property
    def labels(self) -> Int[np.ndarray, " B"]:
        """The numbers of their classes."""
        return self.clips.labels

    def name(self, index: int) -> str:
        """Say where a clip comes from."""
        return self.clips.clips.name(index)

    def seen(self, index: int) -> Any:
        """Return the frames that a model sees in the size in which it sees them, on a sheet, of Pillow."""
        return sheet(Chain(self.transforms)(self.clips[index], np.random.default_rng(0))["images"])

    def told(self, index: int) -> dict[str, Any]:
        """Say how many frames are on the sheet."""
        return {"frames": self.transforms[0].count}


@frozen
class LabelledVideos(Sized):
    """Lay out a clip a row, some frames of it, resized so that their middle fills a square."""

    rows: int = 32
    """Clips a batch."""
    frames: int = 8
    """Frames of each that the model sees; evenly spread over those held out."""
    least: float = 0.75
    """The least share of a training clip that they are drawn from."""

    def __post_init__(self):
        super().__post_init__()
        SampleFrames(count=self.frames, least=self.least)

    def open(self, data: Any, context: Context) -> Opened:
        """Open the clips; held out are the test's `HeldClips`.

        Args:
          data: has `open()`, which gives a `VideoSet`.
        """
        found = data.open()
        for split, clips in found.splits.items():
            check_classes(clips.labels, found.classes, f"{split} clips")
        counts = ", ".join(f"{len(clips):,} {split}" for split, clips in found.splits.items())
        print(f"clips: {counts}; {len(found.classes):,} classes", flush=True)
        return self._settled(context, found.channels)._open(found, context)

    def _open(self, found: VideoSet, context: Context) -> Opened:
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
                uses=("classify",), classes=found.classes, image=(height, width, found.channels), frames=self.frames
            ),
            batches=image_stream(
                source, *before, folded, *after, unfold, rows=self.rows, seed=context.seed,
                pairs=any(isinstance(change, MixupCutmix) for change in after),
            ),
            validation=partial(once, found.splits["validation"], *fixed),
            test=partial(once, found.splits["test"], *fixed),
            held=HeldClips(clips=found.splits["test"], transforms=fixed),
            processor=processor_of([each.transform for each in fixed[1:]], normalise, "VideoMAE"),
            fields=named_classes(found.classes),
        )  # fmt: skip

    def _drawn(self, size: tuple[int, int]) -> tuple[Transform, ...]:
        """Return what makes training clips: frames by chance, and changes that are the same for all of them."""
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


def check_videos(found: VideoSet, frames: int, size: int | None) -> tuple[int, int]:
    """Return the height and width that clips get.

    Raises:
      ValueError: a clip of fewer frames than are asked for, or clips of several sizes, where none is said; names them.
    """
    known: tuple[str, int, int] | None = None
    for labelled in found.splits.values():
        for i in range(len(labelled)):
            count, height, width = labelled.clips.size(i)
            try:
                check_frame_count(count, frames)
            except ValueError as error:
                raise ValueError(f"{labelled.clips.name(i)}: {error}; ask for fewer by --frames") from error
            known = known or (labelled.clips.name(i), height, width)
            if size is None and known[1:] != (height, width):
                raise ValueError(
                    f"clips must have one size, or get it by --size: {known[0]} has {known[2]} × {known[1]}, "
                    f"{labelled.clips.name(i)} {width} × {height}"
                )
    return known[1:] if size is None else (size, size)
