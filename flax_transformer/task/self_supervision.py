"""Learning from images without their labels: examples whose labels only evaluators see.

Axes: B N images, D width.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Float, Int

from flax_transformer.data.examples import Arrays
from flax_transformer.data.image import ImageRows, each_image_once
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.table import DataSet, Table
from flax_transformer.frozen import frozen
from flax_transformer.metric.finite import check_finite
from flax_transformer.ops import widen
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import Augment, HeldImages, normalised, opened, processor_of, shape_of
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.spec import Spec

SEEN = 1_024
"""Images that an objective sees before training, where it learns from them."""
Pool = Literal["first", "mean"]
"""The vector of an image: the class token, or the mean of the patches."""


@frozen
class HeldViews(HeldImages):
    """Held-out images, and those trained on, with the labels that training has not seen."""

    train: Table
    """The images that were trained on."""
    rows: int
    """Images a batch."""
    classes: tuple[str, ...] = ()
    """Names of the classes."""

    def train_batches(self, indices: Int[np.ndarray, "_"]) -> Iterator[Arrays]:
        """Return batches of some images of training, each once, as they are: not changed at random."""
        some = self.train.take(indices)
        return each_image_once(some, *self.transforms, rows=self.rows, collate=ImageRows(), normalise=self.normalise)


@frozen
class WithoutLabels:
    """Take the labels from a batch of training."""

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Return inputs and weights alone."""
        return {"inputs": batch["inputs"], "weights": batch["weights"]}


@frozen
class UnlabelledImages(LabelledImages):
    """Lay out an image a row, whose label is in no batch of training; the objective makes views of it (`views`).

    Held out are `HeldViews`. Labels of validation and test are for evaluators, which train nothing in the model.
    """

    uses: tuple[str, ...] = ("feature-extraction",)
    """What the exported checkpoint can do, in the words of `hub.registration.USES`."""

    def __post_init__(self):
        super().__post_init__()
        if self.augment != Augment():
            raise ValueError("views are changed on the device (--objective.views), got options of augment")

    def planned(self, length: int | None = None) -> dict[str, Any]:
        """Return the rows of a batch, without reading data: images have the size that the model's config says."""
        return {"batch": self.rows}

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images, and refuse those that the objective cannot learn from.

        Args:
          data: has `open()`, which gives a `DataSet` of labelled images.

        Raises:
          ValueError: a checkpoint to begin with, which has no projector; what the objective's `check` refuses.
        """
        if context.init and "fill-mask" not in self.uses:
            raise ValueError(
                f"learning from views begins with a new model, as checkpoints have no projector, got {context.init}"
            )
        found = opened(data, "classes")
        return self._settled(context, found.channels)._open_views(found, context)

    def _open_views(self, found: DataSet, context: Context) -> Opened:
        shape, fixed = shape_of(found, self.size), self._fixed()
        normalise = normalised(self.mean, self.std, found.channels)
        train, objective = found.splits["train"], context.objective
        objective.check(len(train), self.rows, shape[:2])
        stream = self._stream(train, shape, normalise, context.seed, WithoutLabels(), classes=len(found.classes))
        held = {split: self._held(found.splits[split], fixed) for split in ("validation", "test")}
        rows = context.held_rows(self.rows)
        once = partial(each_image_once, rows=rows, collate=ImageRows(), normalise=normalise)
        return Opened(
            spec=Spec(uses=self.uses, image=shape),
            batches=stream,
            validation=partial(once, *held["validation"]),
            test=partial(once, *held["test"]),
            held=HeldViews(
                table=found.splits["test"], transforms=fixed, normalise=normalise, train=train, rows=rows,
                classes=found.classes,
            ),
            processor=processor_of(fixed, normalise),
            objective={
                "views": replace(objective.views, mean=normalise.mean, std=normalise.std),
                **self._learned(objective, train, fixed, context.seed),
            },
        )  # fmt: skip

    def _learned(self, objective: Any, train: Table, fixed: tuple[Any, ...], seed: int) -> dict[str, Any]:
        """Let an objective that learns from images before training, as words of patches, see some of them."""
        if not hasattr(objective, "learned"):
            return {}
        some = train.take(np.random.default_rng(seed).permutation(len(train))[:SEEN])
        batches = each_image_once(some, *fixed, rows=self.rows, collate=ImageRows())
        found = [each["inputs"]["images"][each["weights"] > 0] for each in batches]
        return objective.learned(np.concatenate(found), seed)


def encoder_of(model: Any) -> Any:
    """Return the part of a model that encodes images: the encoder of views, or of an autoencoder, or a backbone."""
    return next((getattr(model, name) for name in ("encoder", "backbone") if hasattr(model, name)), model)


@partial(jax.jit, static_argnames="pool")
def _vectors(model: Any, images: Float[jax.Array, "B H W C"], pool: Pool) -> Float[jax.Array, "B D"]:
    encoder = encoder_of(model)
    hidden = widen(encoder.hidden_states(images=images))
    return hidden[:, 0] if pool == "first" else hidden[:, len(getattr(encoder.cfg, "tokens", ())) :].mean(axis=1)


@frozen
class Features:
    """How vectors of images are made by what was trained, without its projector."""

    pool: Pool = "mean"
    """The vector of an image."""

    def __call__(
        self, model: Any, batches: Iterable[Arrays], most: int | None = None
    ) -> tuple[Float[np.ndarray, "N D"], Int[np.ndarray, " N"]]:
        """Return the vectors of images, the first so many, and their labels.

        Raises:
          ValueError: vectors that are not finite.
        """
        vectors, labels, count = [], [], 0
        for batch in batches:
            there = np.asarray(batch["weights"]) > 0
            vectors.append(np.asarray(_vectors(model, batch["inputs"]["images"], self.pool))[there])
            labels.append(np.asarray(batch["labels"])[there])
            count += len(labels[-1])
            if most is not None and count >= most:
                break
        check_finite("features", *vectors)
        return np.concatenate(vectors)[:most], np.concatenate(labels)[:most]
