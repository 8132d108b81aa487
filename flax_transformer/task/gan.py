"""Images that are made of noise by a generator that a discriminator has trained: examples, samples, their distances.

Axes: B images, H W height and width in pixels, C channels, D width of features.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from flax_transformer.data.image import Normalise
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen
from flax_transformer.models.vision.transgan import check_generator
from flax_transformer.nn.config import check_at_least
from flax_transformer.report.sample import save_image
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.generated_image import distances, see_images
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_generation import in_rows
from flax_transformer.task.image_input import HeldImages, image_bytes
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.run import Run

ROWS = 64
"""Images that are made together."""


@frozen
class SampledImages(LabelledImages):
    """Lay out an image and its class a row, as `LabelledImages` does, with values between -1 and 1.

    Pixels of a generator end there, so that `mean` and `std` are 0.5, whatever else is said.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.mean not in ((), (0.5,)) or self.std not in ((), (0.5,)):
            raise ValueError(f"values of images must be between -1 and 1, got mean {self.mean} and std {self.std}")
        if self.augment.mixup or self.augment.cutmix or self.augment.erase:
            raise ValueError("images to be learned are not mixed or erased, got augment.mixup, cutmix or erase")

    def _open(self, found: DataSet, context: Context) -> Opened:
        opened = super()._open(found, context)
        held = HeldSamples(**{name: getattr(opened.held, name) for name in ("table", "transforms", "normalise")},
                           classes=tuple(found.classes))  # fmt: skip
        return replace(opened, held=held)


@frozen
class HeldSamples(HeldImages):
    """Held-out images, which generated ones are compared with."""

    classes: tuple[str, ...] = ()

    def pixels(self, count: int) -> tuple[UInt8[np.ndarray, "B H W C"], Int[np.ndarray, " B"]]:
        """Return the first images, or so many of them, as bytes, and the numbers of their classes."""
        count = min(count, len(self.table))
        images = [np.asarray(self.seen(index)) for index in range(count)]
        return np.stack([each[..., None] if each.ndim == 2 else each for each in images]), self.labels[:count]


def sample_images(
    model: Any, classes: Int[np.ndarray, " B"], *, seed: int = 0, rows: int = ROWS
) -> Float[np.ndarray, "B H W C"]:
    """Make an image of each class, with values between -1 and 1; image i depends on the seed, i and its class alone.

    Args:
      model: a generator of images of noise, or a model that has one.
      classes: their numbers.
      rows: images that are made together.

    Raises:
      ValueError: a model that makes no images of noise, or a class that it does not know.
    """
    generator, key, found = check_generator(model), jax.random.key(seed), []
    known = generator.cfg.classes
    if len(classes) and not 0 <= min(classes) <= max(classes) < known:
        raise ValueError(f"classes must be numbers from 0 to {known - 1}, got {min(classes)} to {max(classes)}")
    for first in range(0, len(classes), rows):
        numbers = jnp.arange(first, first + rows)  # the last batch is filled up, so that one program makes all
        labels = jnp.asarray(np.resize(classes[first : first + rows], rows), jnp.int32)
        found.append(np.asarray(_sample(generator, key, numbers, labels)))
    return np.concatenate(found)[: len(classes)]


@jax.jit
def _sample(generator: Any, key: PRNGKeyArray, numbers: Int[Array, "B"], labels: Int[Array, "B"]) -> Array:
    return generator(generator.noise(key, numbers), labels)


def sample_run(run: Run, count: int, *, classes: tuple[int, ...] = (), seed: int = 0) -> UInt8[np.ndarray, "B H W C"]:
    """Make images by the generator of a run, as bytes.

    Args:
      classes: numbers of classes, which the images take turns in; all of them by default.

    Raises:
      ValueError: a run whose model makes no images of noise, or a class that it does not know.
    """
    known = check_generator(run.model).cfg.classes
    labels = np.resize(np.asarray(classes or range(known)), count)
    return image_bytes(sample_images(run.model, labels, seed=seed), 0.5, 0.5)


@frozen
class Samples(Evaluator):
    """Show images of every class, and measure how far they are from the test's by the features of a classifier.

    Without one nothing is measured but the discriminator's loss: features of another kind would mean nothing.
    """

    takes: ClassVar[type] = HeldSamples
    metric: ClassVar[str] = "fid"
    better: ClassVar[str] = "lower"

    classifier: str = ""
    """Run or checkpoint of a classifier, whose features are compared."""
    count: int = 10_000
    """Images that are made, and test images at most."""
    columns: int = 8
    """Images of every class that are shown."""

    def __post_init__(self):
        check_at_least(self, 4, "count")
        check_at_least(self, 1, "columns")

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, model = finished.opened.held, finished.model
        metrics = {**tested(finished.objective, model, finished.opened.test())}
        lines: tuple[str, ...] = ("", "no classifier is named, by whose features samples could be measured")
        if self.classifier:
            found = self._distances(finished)
            metrics |= found
            said = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
            lines = ("", f"{said}; by features of {self.classifier}")
        labels = np.repeat(np.arange(len(held.classes)), self.columns)
        made = _bytes(sample_images(model, labels, seed=finished.seed), held.normalise)
        page = np.concatenate([np.concatenate(list(row), axis=1) for row in in_rows(made, self.columns)])
        saved = save_image(finished.folder.root, "samples", page, longest=1024)
        caption = f"rows are {', '.join(held.classes)}"
        sample = {"picture": saved, "source": "samples", "caption": caption, "wide": True}
        return Shown(metrics=metrics, samples=[sample], lines=lines)

    def notes(self, metrics: Mapping[str, Any]) -> list[str]:
        """Say whose features the distances are of."""
        said = f"Distances are of the features of {Path(self.classifier).name}: those of another do not compare."
        return [said] if "fid" in metrics else []

    def _distances(self, finished: Finished) -> dict[str, float]:
        classifier, held = open_checkpoint(self.classifier), finished.opened.held
        real, labels = held.pixels(self.count)
        made = _bytes(sample_images(finished.model, labels, seed=finished.seed), held.normalise)
        return distances(see_images(classifier, real), see_images(classifier, made), labels)


def _bytes(images: Float[np.ndarray, "B H W C"], normalise: Normalise) -> UInt8[np.ndarray, "B H W C"]:
    return image_bytes(images, normalise.mean[0], normalise.std[0])
