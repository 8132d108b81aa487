"""Images that a model makes of noise: how, as a value, and what they are compared with.

Axes: B images, H W height and width in pixels, C channels.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

from flax_transformer.data.image import Normalise
from flax_transformer.frozen import frozen
from flax_transformer.task.image_input import HeldSplits

ROWS = 64
"""Images that are generated together."""


@frozen
class HeldForGeneration(HeldSplits):
    """Images that generated ones are compared with, and how a model sees them."""

    normalise: Normalise
    classes: tuple[str, ...]

    def pixels(self, split: str, most: int | None = None) -> UInt8[np.ndarray, "B H W C"]:
        """Return the images of a split, or so many of them at random, as bytes."""
        found = [batch["inputs"]["images"][batch["weights"] > 0] for batch in self.batches(split, most)]
        return np.concatenate(found)


@frozen
class Generation:
    """How a model makes images of noise. A subclass says what noise is, and what becomes of it."""

    def of(self, objective: Any) -> "Generation":
        """Return how a model is asked that was trained by an objective."""
        return self

    @property
    def caption(self) -> str:
        """What the reader of images must know of how they were made; empty for nothing."""
        return ""

    def noise(self, model: Any, key: PRNGKeyArray, numbers: Int[Array, "B"]) -> Float[Array, "B *Z"]:
        """Draw the noise of the images of some numbers; that of image i depends on the key and i alone."""
        raise NotImplementedError

    def images(
        self, model: Any, noise: Float[Array, "B *Z"], classes: Int[Array, "B"], *, key: PRNGKeyArray,
        numbers: Int[Array, "B"],
    ) -> Float[Array, "B H W C"]:  # fmt: skip
        """Make an image of each class of noise, as the model sees images."""
        raise NotImplementedError


def sample_images(
    model: Any, generation: Generation, classes: Int[np.ndarray, "B"], *, seed: int = 0, rows: int = ROWS
) -> Float[np.ndarray, "B H W C"]:
    """Generate an image of each class, as the model sees images; image i depends on the seed, i and its class alone.

    Args:
      generation: how, bound to the objective that the model was trained by.
      classes: their numbers.
      rows: images that are generated together.
    """
    key, found = jax.random.key(seed), []
    for first in range(0, len(classes), rows):
        numbers = jnp.arange(first, first + rows)  # the last batch is filled up, so that one program makes all
        labels = jnp.asarray(np.resize(classes[first : first + rows], rows), jnp.int32)
        noise = generation.noise(model, key, numbers)
        found.append(np.asarray(generation.images(model, noise, labels, key=key, numbers=numbers)))
    return np.concatenate(found)[: len(classes)]
