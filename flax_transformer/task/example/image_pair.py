"""Pairs of images of the same thing, for models that match them.

Axes: B rows, H W height and width in pixels, C channels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.examples import Arrays, Chain
from flax_transformer.data.identity import name_function
from flax_transformer.data.image import ImageRows, each_image_once
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.image.stream import order
from flax_transformer.frozen import frozen
from flax_transformer.task.example.image import (
    LabelledImages,
    image_stream,
    normalised,
    opened,
    processor_of,
    shape_of,
)
from flax_transformer.task.example.matched import HeldMatches, as_seen, numbered, only
from flax_transformer.task.example.opened import Context, Opened
from flax_transformer.task.spec import Spec


@frozen
class ImagePairs(LabelledImages):
    """Lay out both images of a pair a row, each changed at random by itself; held out are `HeldMatches`."""

    def __post_init__(self):
        super().__post_init__()
        if self.augment.mixup or self.augment.cutmix:
            raise ValueError("images of pairs are not mixed, got augment.mixup or augment.cutmix")

    def open(self, data: Any, context: Context) -> Opened:
        """Open the pairs.

        Args:
          data: has `open()`, which gives an `ImageSet` of twins.
        """
        found = opened(data, "twins")
        settled = self._settled(context, found.channels)
        shape, fixed = shape_of(found, settled.size), settled._fixed()
        normalise = normalised(settled.mean, settled.std, found.channels)
        train = found.splits["train"]
        each = () if self.augment.area else fixed
        sides = [settled._held(numbered(side), each) for side in (train.images, train.others)]
        source = PairRows(sides, self.augment.examples(shape[:2], settled.resample), context.seed)
        before, after = self.augment.batches(0)
        batches = image_stream(
            source, *before, normalise, *after, Halves(), rows=2 * self.rows, seed=context.seed, pairs=True
        )

        rows = context.held_rows(self.rows)
        held = {
            (split, name): settled._held(numbered(getattr(found.splits[split], name)), fixed)
            for split in ("validation", "test")
            for name in ("images", "others")
        }

        def side(split: str, name: str) -> Iterable[Arrays]:
            return each_image_once(*held[split, name], rows=rows, collate=ImageRows(), normalise=normalise)

        def both(split: str) -> Iterable[Arrays]:
            halves = zip(*(side(split, name) for name in ("images", "others")), strict=True)
            return ({**one, "inputs": {**one["inputs"], "others": other["inputs"]["images"]}} for one, other in halves)

        test = found.splits["test"]
        return Opened(
            spec=Spec(uses=("match",), image=shape),
            batches=batches,
            validation=partial(both, "validation"),
            test=partial(both, "test"),
            held=HeldMatches(
                sides=("images", "others"),
                first=partial(side, "test", "images"),
                second=lambda: (only(batch, "images", "others") for batch in side("test", "others")),
                belong=np.eye(len(test), dtype=bool),
                show=tuple(partial(as_seen, images, fixed) for images in (test.images, test.others)),
            ),
            processor=processor_of(fixed, normalise),
        )


@dataclass(frozen=True, eq=False)
class PairRows:
    """Rows of pairs in random order, epoch after epoch: 2i and 2i + 1 are the halves of one."""

    sides: Sequence[Sequence[Any]]
    """Of each half, its images and what makes them one size."""
    transforms: Sequence[Any]
    """What changes each image at random."""
    seed: int

    @property
    def identity(self) -> dict[str, Any]:
        """Name images, transforms and order."""
        changes = [[name_function(each) for each in (*fixed, *self.transforms)] for _, *fixed in self.sides]
        return {"data": [pictures.fingerprint for pictures, *_ in self.sides], "transforms": changes, "seed": self.seed}

    def read(self, numbers: Int[np.ndarray, " B"]) -> Arrays:
        """Pick rows."""
        examples = []
        for number in numbers.tolist():
            pair, half = divmod(number, 2)
            pictures, *fixed = self.sides[half]
            epoch, place = divmod(pair, len(pictures))
            index = int(order(len(pictures), self.seed, epoch)[place])
            rng = np.random.default_rng((self.seed, number))
            examples.append(Chain((*fixed, *self.transforms))(pictures[index], rng))
        return ImageRows()(examples)


@frozen
class Halves:
    """Part a batch of images into the first and the second of each pair."""

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Return `images` and `others`."""
        images = batch["inputs"]["images"]
        rest = {name: batch[name][0::2] for name in ("labels", "weights")}
        return {**rest, "inputs": {"images": images[0::2], "others": images[1::2]}}
