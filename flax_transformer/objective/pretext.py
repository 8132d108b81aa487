"""Questions about images whose answers nobody has to label: how they were turned, or where their parts were.

Axes: B rows, H W height and width in pixels, C channels, E answers.
"""

from collections.abc import Mapping
from itertools import permutations
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss, is_right
from flax_transformer.objective.teacher import ViewObjective
from flax_transformer.objective.views import PLAIN, Views, row_keys
from flax_transformer.ops import cross_entropy, image_transform
from flax_transformer.ops.split_keys import split_keys

ORDERS = np.array(list(permutations(range(4))), np.int32)
"""All orders of four quarters."""

Asked = tuple[Float[Array, "_ _ _ C"], Int[Array, " _"]]
"""Images, and the right answers."""


@frozen
class PretextLoss(ViewObjective):
    """Sum over rows the cross-entropy of the right answer to a question about an image.

    The model classifies (`model.output(model.hidden_states(images=…))`), with as many outputs as there are answers. A
    subclass asks. In evaluation each image is asked the same whatever batch it is in.
    """

    views: Views = Views(count=1, area=(0.5, 1.0), changes=(PLAIN,))
    """The crop that is asked about."""

    answers: ClassVar[int]
    """E."""
    times: ClassVar[int] = 1
    """How often an image is in what is asked."""
    least: ClassVar[int] = 1
    most: ClassVar[int | None] = 1
    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}
    unit: ClassVar[str] = "images"

    def ask(self, images: Float[Array, "B H W C"], keys: Shaped[Array, " B"]) -> Asked:
        """Return what the model is shown of images, and the right answers, one after the other of each image.

        Args:
          keys: one of each image.
        """
        raise NotImplementedError

    def __call__(self, model: Any, batch: Batch, *, key: PRNGKeyArray | None = None) -> Loss:
        """Sum the loss over a batch, the mean over the questions about an image."""
        keys = split_keys(key, 3)
        images = jnp.asarray(batch["inputs"]["images"])
        crops = images if key is None else self.views(images, keys[0])[0][:, 0]
        shown, answers = self.ask(crops, row_keys(images, keys[1]))
        weights = jnp.repeat(batch["weights"], self.times) / self.times
        logits = model.output(model.hidden_states(images=shown, key=keys[2]))
        if logits.shape[-1] != self.answers:
            raise ValueError(
                f"{type(self).__name__} has {self.answers} answers, got a model that gives {logits.shape[-1]}"
            )
        total, count = cross_entropy(logits, answers, weights)
        return total, {"count": count, "accuracy": jnp.sum(is_right(logits, answers) * weights)}


@frozen
class PatchOrderLoss(PretextLoss):
    """Which of the 24 orders the quarters of an image are in (jigsaw, Noroozi & Favaro 2016,
    https://arxiv.org/abs/1603.09246, of 2 × 2 parts)."""

    gap: int = 0
    """Pixels by which the part of a quarter that is seen is smaller than the quarter, at random, so that edges do not
    meet; the rest is the mean colour."""

    answers: ClassVar[int] = len(ORDERS)

    def __post_init__(self):
        super().__post_init__()
        if self.gap < 0:
            raise ValueError(f"gap must be at least 0, got {self.gap}")

    def check(self, images: int, rows: int, size: tuple[int, int]) -> None:
        """Refuse images without quarters, or with a gap as large as these."""
        super().check(images, rows, size)
        size = size if self.views.size is None else (self.views.size,) * 2
        if size[0] % 2 or size[1] % 2 or self.gap >= min(size) // 2:
            raise ValueError(
                f"images must have quarters of whole pixels, larger than the gap, got {size[0]}×{size[1]}, "
                f"gap={self.gap}"
            )

    def ask(self, images: Float[Array, "B H W C"], keys: Shaped[Array, " B"]) -> Asked:
        """Put the quarters of each image in an order."""
        keys = jax.vmap(jax.random.split)(keys)
        answers = jax.vmap(lambda key: jax.random.randint(key, (), 0, len(ORDERS)))(keys[:, 0])
        mixed = image_transform.quarters(images, jnp.array(ORDERS)[answers])
        if not self.gap:
            return mixed, answers
        H, W = images.shape[1:3]
        starts = jax.vmap(lambda key: jax.random.randint(key, (2, 4), 0, self.gap + 1))(keys[:, 1])
        rows, columns = (
            self._seen(starts[:, axis].reshape(-1, 2, 2), length // 2) for axis, length in enumerate((H, W))
        )
        seen = rows[:, :, :, :, None] & columns[:, :, :, None, :]
        seen = seen.swapaxes(2, 3).reshape(-1, H, W)
        return mixed * seen[..., None], answers

    def _seen(self, starts: Int[Array, "B 2 2"], length: int) -> Shaped[Array, "B 2 2 _"]:
        at = jnp.arange(length) - starts[..., None]
        return (at >= 0) & (at < length - self.gap)


NEIGHBOURS = np.array([(i, j) for i in range(3) for j in range(3) if (i, j) != (1, 1)], np.int32)
"""Row and column of the squares around the middle one."""


@frozen
class RelativePositionLoss(PretextLoss):
    """On which of eight sides of the left square the right one was, of nine squares of an image (Doersch et al. 2015,
    https://arxiv.org/abs/1505.05192); the model is shown both beside each other.
    """

    gap: int = 2
    """Pixels at least that are left out between neighbouring squares; as many at random move each."""

    answers: ClassVar[int] = len(NEIGHBOURS)

    def __post_init__(self):
        super().__post_init__()
        if self.gap < 0:
            raise ValueError(f"gap must be at least 0, got {self.gap}")

    def check(self, images: int, rows: int, size: tuple[int, int]) -> None:
        """Refuse images without nine squares."""
        super().check(images, rows, size)
        if min(size if self.views.size is None else (self.views.size,)) // 3 <= 2 * self.gap:
            raise ValueError(f"images must have nine squares larger than the gaps, got {size}, gap={self.gap}")

    def ask(self, images: Float[Array, "B H W C"], keys: Shaped[Array, " B"]) -> Asked:
        """Put the middle square and one around it beside each other."""
        cell = min(images.shape[1:3]) // 3
        side, keys = cell - 2 * self.gap, jax.vmap(jax.random.split)(keys)
        answers = jax.vmap(lambda key: jax.random.randint(key, (), 0, len(NEIGHBOURS)))(keys[:, 0])

        def cut(image: Array, key: Array, cell_of: Array) -> Array:
            at = cell_of * cell + jax.random.randint(key, (2,), 0, self.gap + 1)
            return jax.lax.dynamic_slice(image, (at[0], at[1], 0), (side, side, image.shape[-1]))

        def both(image: Array, key: Array, answer: Array) -> Array:
            one, two = jax.random.split(key)
            middle, other = cut(image, one, jnp.ones(2, jnp.int32)), cut(image, two, jnp.array(NEIGHBOURS)[answer])
            return jnp.concatenate([middle, other], axis=1)

        return jax.vmap(both)(images, keys[:, 1], answers), answers


@frozen
class RotationLoss(PretextLoss):
    """By which quarter turns an image is rotated, each image by all four (Gidaris et al. 2018,
    https://arxiv.org/abs/1803.07728)."""

    answers: ClassVar[int] = 4
    times: ClassVar[int] = 4

    def check(self, images: int, rows: int, size: tuple[int, int]) -> None:
        """Refuse images that are no squares."""
        super().check(images, rows, size)
        if self.views.size is None and size[0] != size[1]:
            raise ValueError(f"images that are turned must be squares, got {size[0]}×{size[1]}")

    def ask(self, images: Float[Array, "B H W C"], keys: Shaped[Array, " B"]) -> Asked:
        """Turn each image by 0, 1, 2 and 3 quarters."""
        turned = jnp.stack([jnp.rot90(images, turns, (1, 2)) for turns in range(4)], axis=1)
        return turned.reshape(-1, *images.shape[1:]), jnp.tile(jnp.arange(4), len(images))
