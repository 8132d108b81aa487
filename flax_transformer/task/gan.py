"""Images that are made of noise by a generator that a discriminator has trained: examples, and samples of a run.

Axes: B images, H W height and width in pixels, C channels, Z width of the noise.
"""

from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from flax_transformer.frozen import frozen
from flax_transformer.models.vision.transgan import check_generator
from flax_transformer.task.diffusion import ImagesOfClasses
from flax_transformer.task.generation import Generation, sample_images
from flax_transformer.task.image_input import image_bytes
from flax_transformer.task.run import Run


@frozen
class AtOnce(Generation):
    """Make images of noise by one call of a generator, with values between -1 and 1."""

    def noise(self, model: Any, key: PRNGKeyArray, numbers: Int[Array, "B"]) -> Float[Array, "B Z"]:
        """Draw the noise of images of these numbers."""
        return check_generator(model).noise(key, numbers)

    def images(
        self, model: Any, noise: Float[Array, "B Z"], classes: Int[Array, "B"], *, key: PRNGKeyArray,
        numbers: Int[Array, "B"],
    ) -> Float[Array, "B H W C"]:  # fmt: skip
        """Make an image of each class.

        Raises:
          ValueError: a model that makes no images of noise, or a class that it does not know.
        """
        generator = check_generator(model)
        known, low, high = generator.cfg.classes, int(min(classes)), int(max(classes))
        if not 0 <= low <= high < known:
            raise ValueError(f"classes must be numbers from 0 to {known - 1}, got {low} to {high}")
        return _made(generator, noise, classes)


@jax.jit
def _made(generator: Any, noise: Array, labels: Array) -> Array:
    return generator(noise, labels)


@frozen
class SampledImages(ImagesOfClasses):
    """Lay out an image and its class a row, with values between -1 and 1, where pixels of a generator end.

    So `mean` and `std` are 0.5, whatever else is said.
    """

    generation: ClassVar[Generation] = AtOnce()
    """How the model of a run makes images by itself, without a checkpoint of some family."""

    def __post_init__(self):
        super().__post_init__()
        if self.mean not in ((), (0.5,)) or self.std not in ((), (0.5,)):
            raise ValueError(f"values of images must be between -1 and 1, got mean {self.mean} and std {self.std}")
        if self.augment.mixup or self.augment.cutmix or self.augment.erase:
            raise ValueError("images to be learned are not mixed or erased, got augment.mixup, cutmix or erase")


def sample_run(run: Run, count: int, *, classes: tuple[int, ...] = (), seed: int = 0) -> UInt8[np.ndarray, "B H W C"]:
    """Make images by the generator of a run, as bytes.

    Args:
      classes: numbers of classes, which the images take turns in; all of them by default.

    Raises:
      ValueError: a run whose model makes no images of noise, or a class that it does not know.
    """
    known = check_generator(run.model).cfg.classes
    labels = np.resize(np.asarray(classes or range(known)), count)
    return image_bytes(sample_images(run.model, AtOnce(), labels, seed=seed), 0.5, 0.5)
