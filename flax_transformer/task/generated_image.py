"""What generated images are tested and shown by: distances to real ones, grids, neighbours, interpolations.

Axes: B images, R rows of a grid, H W height and width in pixels, C channels, D width of features, E classes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.metric.sample_distance import frechet_distance, kernel_distance, nearest_rows, precision_recall
from flax_transformer.models.head import Classifier
from flax_transformer.nn.config import check_at_least
from flax_transformer.report.sample import SAMPLES, save_image
from flax_transformer.task.checkpoint import image_processor_of, open_checkpoint, require_use
from flax_transformer.task.diffusion import Denoising
from flax_transformer.task.evaluator import Evaluator, Finished, Shown
from flax_transformer.task.generation import Generation, HeldForGeneration, sample_images
from flax_transformer.task.image_generation import strip
from flax_transformer.task.image_input import image_bytes

BATCH = 250
"""Images whose features are computed together."""


class Seen(NamedTuple):
    """What a classifier says of images."""

    features: Float[np.ndarray, "B D"]
    """What its output layer is given."""
    classes: Int[np.ndarray, "B"]
    """The most probable class of each."""


def see_images(classifier: Pretrained, images: UInt8[np.ndarray, "B H W C"]) -> Seen:
    """Compute features and classes of images by a classifier.

    Raises:
      ValueError: a checkpoint that does not classify images, or has no head of one position.
    """
    import PIL.Image

    require_use(classifier, "classification", "images")
    model, processor = classifier.model, image_processor_of(classifier)
    if not isinstance(model, Classifier) or getattr(model.cfg.head, "pool", "every") == "every":
        raise ValueError(f"features are what a head pools, a {type(model).__name__} has none of one position")
    found = []
    for first in range(0, len(images), BATCH):
        part = images[first : first + BATCH]
        pixels = processor([PIL.Image.fromarray(each[..., 0] if each.shape[-1] == 1 else each) for each in part])
        values = np.moveaxis(pixels["pixel_values"], 1, -1)
        rest = BATCH - len(values)
        padded = np.pad(values, ((0, rest), *((0, 0),) * 3))
        found.append([np.asarray(each)[: len(values)] for each in _pooled(model, padded)])
    features, logits = (np.concatenate(each) for each in zip(*found, strict=True))
    return Seen(features.astype(np.float32), logits.argmax(axis=1))


@jax.jit
def _pooled(model: Any, images: Array) -> tuple[Array, Array]:
    pooled = model.head.pool(model.hidden_states(images))
    return pooled, model.head.output(pooled)


def distances(real: Seen, generated: Seen, asked: Int[np.ndarray, "B"]) -> dict[str, float]:
    """Return the distances of generated images to real ones, and in percent how many are of the class asked for."""
    near = precision_recall(real.features, generated.features)
    return {
        "fid": frechet_distance(real.features, generated.features),
        "kid": kernel_distance(real.features, generated.features).mean,
        "precision": near.precision,
        "recall": near.recall,
        "asked_class": 100 * float(np.mean(generated.classes == asked)),
    }


@frozen
class GeneratedImages(Evaluator):
    """What evaluators of generated images have in common: how they generate them."""

    takes: ClassVar[type] = HeldForGeneration

    how: Generation = Denoising()
    """How images are made: `Denoising` in steps, or `AtOnce` by a generator."""

    def generate(self, finished: Finished, classes: Int[np.ndarray, "B"]) -> UInt8[np.ndarray, "B H W C"]:
        """Generate an image of each class, as bytes."""
        generation = self.how.of(finished.objective)
        return _bytes(finished, sample_images(finished.model, generation, classes, seed=finished.seed))


@frozen
class SampleDistances(GeneratedImages):
    """Measure how far generated images are from the test images, by the features of a classifier.

    Without one nothing is measured: features of another kind would give numbers that mean nothing.
    """

    metric: ClassVar[str] = "fid"
    better: ClassVar[str] = "lower"

    classifier: str = ""
    """Run or checkpoint of a classifier of the same classes, whose features and classes are compared."""
    count: int = 10_000
    """Images that are generated, as many of each class; and test images at most."""
    watched: int = 0
    """Images that are generated at each evaluation during training, compared with validation images; 0 for none."""

    def __post_init__(self):
        check_at_least(self, 4, "count")
        check_at_least(self, 0, "watched")

    @property
    def validates(self) -> bool:
        """Whether it measures during training."""
        return bool(self.classifier and self.watched)

    def watch(self, finished: Finished, step: int) -> Mapping[str, float]:
        """Measure a few images during training."""
        return self._measured(finished, "validation", self.watched)[0] if self.validates else {}

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        if not self.classifier:
            return Shown(lines=("", "no classifier is named, by whose features generated images could be measured"))
        metrics, real = self._measured(finished, "test", self.count)
        said = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        return Shown(metrics=metrics, lines=("", f"{said}; by features of {self.classifier}, {real} real images"))

    def notes(self, metrics: Mapping[str, Any]) -> list[str]:
        """Say whose features the distances are of."""
        return [f"Distances are of the features of {self.classifier}: those of another network do not compare."]

    def _measured(self, finished: Finished, split: str, count: int) -> tuple[dict[str, float], int]:
        classifier, held = open_checkpoint(self.classifier), finished.opened.held
        names = [classifier.config.get("id2label", {}).get(str(i)) for i in range(len(held.classes))]
        if names != list(held.classes):
            raise ValueError(f"the classifier must have the classes of the images, {self.classifier} has others")
        asked = np.arange(count) % len(held.classes)
        real = see_images(classifier, held.pixels(split, count))
        return distances(real, see_images(classifier, self.generate(finished, asked)), asked), len(real.classes)


@frozen
class SampleGrids(GeneratedImages):
    """Show generated images: a row of each class, over training too; beside some the nearest training image, and what
    lies between two."""

    columns: int = 8
    """Images of each class."""
    most: int = 10
    """Classes that are shown."""
    searched: int = 10_000
    """Training images among which the nearest are sought."""

    def __post_init__(self):
        check_at_least(self, 2, "columns")
        check_at_least(self, 1, "most", "searched")

    def watch(self, finished: Finished, step: int) -> Mapping[str, float]:
        """Save a grid of images of a model during training."""
        page = strip(self._grid(finished), edge=32)
        if jax.process_index() == 0:
            save_image(finished.folder.root, f"grid-{step:08d}", page, longest=1024)
        return {}

    def __call__(self, finished: Finished) -> Shown:
        """Show the model."""
        root, held, grid = finished.folder.root, finished.opened.held, self._grid(finished)
        classes = held.classes[: self.most]
        said = "; ".join(filter(None, (self.how.caption, f"rows are {', '.join(classes)}")))
        samples = [_sample(root, "generated", strip(grid, edge=32), "generated images", said)]
        samples += [
            {"picture": f"{SAMPLES}/{file.name}", "source": f"step {int(file.stem.partition('-')[2])}", "wide": True,
             "caption": "the same noise and classes, during training"}
            for file in sorted((root / SAMPLES).glob("grid-*.png"))
        ]  # fmt: skip
        train, some = held.pixels("train", self.searched), grid[:, 0]
        number, far = _nearest(some, train)
        usual = _nearest(held.pixels("test", len(some) * 8), train)[1].mean()
        said = (
            f"below each the nearest of {len(train):,} training images, {far.mean():.1f} levels of 255 away a pixel "
            f"(root mean square); test images are {usual:.1f} away from theirs"
        )
        samples.append(_sample(root, "nearest", strip(np.stack([some, train[number]])), "copied or made?", said))
        samples.append(
            _sample(root, "between", strip(self._between(finished)[None]), "between two", "noise between two draws")
        )
        metrics = {"nearest_training_image": float(far.mean()), "nearest_training_image_of_test": float(usual)}
        lines = ("", f"generated images: {root / SAMPLES / 'generated.png'}")
        return Shown(samples=samples, metrics=metrics, lines=lines)

    def _grid(self, finished: Finished) -> UInt8[np.ndarray, "R B H W C"]:
        """Generate a row of images of each class."""
        shown = min(len(finished.opened.held.classes), self.most)
        images = self.generate(finished, np.repeat(np.arange(shown), self.columns))
        return images.reshape(shown, self.columns, *images.shape[1:])

    def _between(self, finished: Finished) -> UInt8[np.ndarray, "B H W C"]:
        """Generate images of noise that goes from one draw to another along a great circle, all of the first class."""
        model, key, how = finished.model, jax.random.key(finished.seed), self.how.of(finished.objective)
        one, two = how.noise(model, key, jnp.array([0, 1]))
        angle = jnp.linspace(0, np.pi / 2, self.columns).reshape(-1, *(1,) * one.ndim)
        noise, numbers = jnp.cos(angle) * one + jnp.sin(angle) * two, jnp.arange(self.columns)
        images = how.images(model, noise, jnp.zeros_like(numbers), key=key, numbers=numbers)
        return _bytes(finished, np.asarray(images))


def _bytes(finished: Finished, images: Float[np.ndarray, "B H W C"]) -> UInt8[np.ndarray, "B H W C"]:
    normalise = finished.opened.held.normalise
    return image_bytes(images, normalise.mean, normalise.std)


def _sample(root: Any, name: str, page: np.ndarray, source: str, caption: str) -> dict[str, Any]:
    place = save_image(root, name, page, longest=1024)
    return {"picture": place, "source": source, "caption": caption, "wide": True}


def _nearest(images: np.ndarray, train: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the nearest training image of each by pixels, and how far it is, as a root mean square of levels."""
    number, far = nearest_rows(*(each.reshape(len(each), -1) for each in (images, train)))
    return number, far / np.sqrt(train[0].size)
