"""What all tasks on images share: how images are sized, normalised, augmented, streamed and shown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float, UInt8
from numpy.typing import ArrayLike

from flax_transformer.data.examples import Arrays, Transform
from flax_transformer.data.image import (
    CenterCrop,
    ColourJitter,
    Erase,
    ImageRows,
    ImageStream,
    MixupCutmix,
    Normalise,
    RandAugment,
    RandomResizedCrop,
    Resize,
    ShiftFlip,
    decode_image,
    each_image_once,
)
from flax_transformer.data.image.geometry import Resample, pair
from flax_transformer.data.image.image_set import images_of
from flax_transformer.data.label import check_boxes, check_classes
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor import image_step
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.task.checkpoint import File, file_of, image_processor_of
from flax_transformer.task.held_out import HeldSeen
from flax_transformer.task.opened import Context, check_rows


@frozen
class HeldImages(HeldSeen):
    """Held-out images, and how a model sees them."""

    normalise: Normalise
    class_ids: tuple[int, ...] = ()
    """The numbers of the classes in the data set's own files, where they have any."""

    what: ClassVar[str] = "images"

    def seen(self, index: int) -> Any:
        """Return an image in the size in which a model sees it, of Pillow."""
        return self.example(index)["image"]


@frozen
class HeldSplits:
    """Images of each split, by which a model is evaluated that is given no batches of them."""

    images: Mapping[str, tuple[Any, ...]]
    """Those of each split, then the transforms that make them one size."""
    rows: int
    """Images of a batch."""

    def batches(self, split: str, most: int | None = None) -> Iterator[Arrays]:
        """Return batches of `images`, in bytes, and the numbers of their classes: each once, or so many at random."""
        images, *fixed = self.images[split]
        if most is not None and most < len(images):
            images = images.take(np.random.default_rng(0).permutation(len(images))[:most])
        return each_image_once(images, *fixed, rows=self.rows, collate=ImageRows())


@frozen
class Augment:
    """What is changed in training images at random; at 0 nothing is."""

    area: float = 0.0
    """Least share of the image's area that a crop takes, which is then resized (random resized crop); 0: no crop."""
    shift: int = 0
    """Pixels by which an image is moved at most."""
    flip: float = 0.0
    """Share of images that are mirrored."""
    jitter: float = 0.0
    """How much brightness, contrast and saturation change: factors of 1 ± this."""
    operations: int = 0
    """Operations of RandAugment an image."""
    magnitude: float = 9.0
    """Their strength, 0 to 10."""
    deviation: float = 0.5
    """Standard deviation of the strength."""
    share: float = 0.5
    """How many of the operations are applied."""
    erase: float = 0.0
    """Share of images that have a rectangle of noise."""
    mixup: float = 0.0
    """α of mixup."""
    cutmix: float = 0.0
    """α of CutMix."""

    def __post_init__(self):
        self.examples((1, 1), "bicubic")
        self.batches(2)

    def examples(self, size: tuple[int, int], resample: Resample) -> tuple[Transform, ...]:
        """Return what changes an image by itself."""
        found = []
        if self.area:
            found.append(RandomResizedCrop(size=size, area=(self.area, 1.0), resample=resample))
        if self.jitter:
            found.append(ColourJitter(brightness=self.jitter, contrast=self.jitter, saturation=self.jitter))
        if self.operations:
            strength = {"magnitude": self.magnitude, "deviation": self.deviation, "share": self.share}
            found.append(RandAugment(layers=self.operations, **strength))
        return tuple(found)

    def batches(self, classes: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Return what changes a batch, before it is normalised and after."""
        before = (ShiftFlip(pad=self.shift, flip=self.flip),) if self.shift or self.flip else ()
        erase = (Erase(share=self.erase),) if self.erase else ()
        mixed = self.mixup or self.cutmix
        return before, (*erase, MixupCutmix(classes=classes, mixup=self.mixup, cutmix=self.cutmix)) if mixed else erase


@frozen
class Sized:
    """How images are made one size, and what is changed in those to train on."""

    rows: int = 128
    """Images, or videos, a batch."""
    size: int | None = None
    """Pixels of both sides; None: those of the checkpoint that training begins with, or as the images are, which must
    all have one size."""
    keep: float = 1.0
    """Share of the shorter side that is kept of a held-out image, from its middle."""
    resample: Resample | None = None
    """How pixels are made where sizes change; None: as the checkpoint's that training begins with, or bicubic."""
    mean: tuple[float, ...] = ()
    """What is taken from values between 0 and 1, of each channel or one for all; empty: the checkpoint's, or 0.5."""
    std: tuple[float, ...] = ()
    """What the rest is divided by; empty: the checkpoint's, or 0.5."""
    augment: Augment = Augment()
    """What is changed in training images."""

    def __post_init__(self):
        check_rows(self.rows, self.size or 1)
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep must be in (0, 1], got {self.keep}")
        mean, std = self.mean or (0.5,), self.std or (0.5,)
        normalised(mean, std, max(len(mean), len(std)))

    def _settled(self, context: Context, channels: int) -> Any:
        """Take what is not said from a checkpoint's image processor, or what is usual."""
        usual = {"size": None, "resample": "bicubic", "mean": (0.5,), "std": (0.5,)}
        processor = None if self.size and self.mean and self.std else context.processor
        known = usual if processor is None else usual | seen_by(processor)
        if not self.mean and len(known["mean"]) not in (1, channels):
            raise ValueError(
                f"images must have as many channels as those of the checkpoint {context.init}, {len(known['mean'])}, "
                f"got {channels}"
            )
        said = {name: getattr(self, name) for name in usual}
        return replace(self, **{name: value or known[name] for name, value in said.items()})

    def _fixed(self) -> tuple[Transform, ...]:
        """Return what makes images one size without chance."""
        if self.size is None:
            return ()
        return Resize(size=round(self.size / self.keep), resample=self.resample), CenterCrop(size=self.size)


def image_bytes(images: Float[Any, "B H W C"], mean: ArrayLike, std: ArrayLike) -> UInt8[np.ndarray, "B H W C"]:
    """Turn values as a model sees them into bytes.

    Args:
      mean: of each channel, or of all, and so `std`: what bytes over 255 were normalised by.
    """
    values = np.asarray(images, np.float32) * np.float32(std) + np.float32(mean)
    return np.round(np.clip(values, 0, 1) * 255).astype(np.uint8)


def opened(data: Any, *kinds: str) -> DataSet:
    """Open data, say how much there is, and check what is known of the images, which is one of some kinds.

    Raises:
      ValueError: another kind, a class that there is not, a box that is not within its image.
    """
    found = data.open()
    if (kind := found.kind) not in kinds:
        raise ValueError(f"the images must have {' or '.join(kinds)}, they have {kind}")
    for split, each in found.splits.items():
        if kind == "classes":
            check_classes(each["label"], found.classes, f"{split} images")
        for number, objects in enumerate(each["objects"] if kind == "boxes" else ()):
            check_classes(objects.classes, found.classes, f"{each['name'][number]} ({split})")
            check_boxes(objects.boxes, each["image"].size(number), f"{each['name'][number]} ({split})")
    counts = ", ".join(f"{len(images_of(each)):,} {split}" for split, each in found.splits.items())
    print(f"images: {counts}" + (f"; {len(found.classes):,} classes" if found.classes else ""), flush=True)
    return found


def shape_of(found: DataSet, size: int | None) -> tuple[int, int, int]:
    """Return the height, width and channels that images get.

    Raises:
      ValueError: images of several sizes, where none is said; names one of each.
    """
    if size is not None:
        return size, size, found.channels
    first = images_of(found.splits["train"])
    known = first.size(0)
    for images in map(images_of, found.splits.values()):
        for i in range(len(images)):
            if (other := images.size(i)) != known:
                one, two = (f"{width} × {height}" for width, height in (known, other))
                raise ValueError(
                    f"images must have one size, or get it by --size: {first.name(0)} has {one}, {images.name(i)} {two}"
                )
    width, height = known
    return height, width, found.channels


def normalised(mean: Sequence[float], std: Sequence[float], channels: int) -> Normalise:
    """Make numbers of each channel, or one for all, those of every channel."""
    every = [tuple(values) * (channels if len(values) == 1 else 1) for values in (mean, std)]
    if {len(values) for values in every} != {channels}:
        raise ValueError(f"mean and std must be those of {channels} channels, or one for all, got {mean}, {std}")
    return Normalise(mean=every[0], std=every[1])


def processor_of(transforms: Sequence[Transform], normalise: Normalise, kind: str = "Bit") -> ImageProcessor:
    """Make the image processor that sees images as they were held out: resized by their shorter side, the middle cut
    out, normalised.
    """
    said: dict[str, Any] = {
        "image_processor_type": f"{kind}ImageProcessor", "do_resize": False, "do_center_crop": False,
        "do_convert_rgb": len(normalise.mean) == 3, "image_mean": list(normalise.mean),
        "image_std": list(normalise.std),
    }  # fmt: skip
    for each in transforms:
        if isinstance(each, Resize):
            filters = {"do_resize": True, "size": {"shortest_edge": each.size}, "resample": FILTERS[each.resample]}
            said |= filters
        if isinstance(each, CenterCrop):
            height, width = pair(each.size)
            said |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return ImageProcessor.of(said)


def seen_by(processor: ImageProcessor) -> dict[str, Any]:
    """Return how an image processor sees images: the size of both sides, the filter, mean and standard deviation."""
    found: dict[str, Any] = {}
    for each in processor.steps:
        if isinstance(each, image_step.PillowResize):
            names = {number: name for name, number in FILTERS.items()}
            found |= {"size": min(each.size.values()), "resample": names.get(each.resample, "bicubic")}
        elif isinstance(each, image_step.CenterCrop):
            found["size"] = min(each.height, each.width)
        elif isinstance(each, image_step.Normalize):
            both = {"mean": each.mean, "std": each.std}
            found |= {name: value if isinstance(value, tuple) else (value,) for name, value in both.items()}
    return found


FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}
"""Pillow's numbers of filters."""


def named_classes(classes: Sequence[str]) -> dict[str, Any]:
    """Name the classes as config.json does."""
    return {
        "id2label": {str(number): name for number, name in enumerate(classes)},
        "label2id": {name: number for number, name in enumerate(classes)},
    }


def image_stream(source: Any, *augment: Any, rows: int, seed: int, pairs: bool = False) -> ImageStream:
    """Stream this process's rows of endless batches."""
    own = {"process_index": jax.process_index(), "process_count": jax.process_count()}
    return ImageStream(source, *augment, rows=rows, seed=seed, pairs=pairs, **own)


ROWS = 32
"""Images that are looked at together."""


def read_image(pretrained: Pretrained, file: File) -> Any:
    """Decode an image file, with as many channels as the model's images have.

    Raises:
      ValueError: no such file, or one that is no image.
    """
    return decode_image(file_of(pretrained, file, "images"), channels=1 if pretrained.config.channels == 1 else 3)


def batches(pretrained: Pretrained, files: Sequence[File | Any]) -> Iterator[dict[str, np.ndarray]]:
    """Return what the model is given of images, `ROWS` at a time; errors as `read_image`'s."""
    processor = image_processor_of(pretrained)
    for i in range(0, len(files), ROWS):
        part = files[i : i + ROWS]
        yield processor([each if hasattr(each, "getbands") else read_image(pretrained, each) for each in part])


def image_size(image: Any) -> tuple[int, int]:
    """Return the height and width of an image, of Pillow or an array with channels first or last."""
    if hasattr(image, "getbands"):
        return image.height, image.width
    first = image.ndim == 3 and image.shape[0] in (1, 3, 4)
    return image.shape[1:] if first else image.shape[:2]
