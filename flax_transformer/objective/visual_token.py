"""Masked images: the visual words of patches that the model does not see (BEiT).

Axes: B rows, H W height and width in pixels, C channels, P patches, V words, X values of a patch.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from flax_transformer.data.image.palette import find_palette
from flax_transformer.frozen import frozen
from flax_transformer.objective.objective import Batch, Loss
from flax_transformer.objective.pixel import MaskedPixels, patch_pixels
from flax_transformer.objective.views import row_keys
from flax_transformer.ops import widen
from flax_transformer.ops.row_random import drawn
from flax_transformer.ops.split_keys import split_keys

TRIES = 24
"""Blocks that are drawn for an image; those by which too much would be masked are not."""
FITTED = 1 << 14
"""Patches that the words are found by."""


@frozen
class BEiTLoss(MaskedPixels):
    """Sum over masked patches the cross-entropy of their visual words (BEiT, Bao et al. 2021,
    https://arxiv.org/abs/2106.08254).

    The model gives scores of V words for every patch. A word is the nearest of `codebook` to the pixels of a patch: in
    place of the published tokenizer, a discrete autoencoder trained on other images, k-means of the patches of the
    images at hand, which are found before training (`learned`).
    """

    codebook: tuple[tuple[float, ...], ...] = ()
    """V patches of X values from -1 to 1, [height, width, C] each; those of the data, whatever stands here."""
    words: int = 256
    """V, how many are found; the model has as many outputs."""
    patch: int = 4
    """Height and width of patches, which are those of the model."""
    mask_ratio: float = 0.4
    """How many of the patches are masked at most, in blocks."""
    block: int = 4
    """Patches of a block at least, but for its rounding."""

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}
    unit: ClassVar[str] = "masked patches"

    def __post_init__(self):
        super().__post_init__()
        if not 0 < self.mask_ratio < 1 or self.words < 2 or min(self.patch, self.block) < 1:
            raise ValueError(
                "mask_ratio must be in (0, 1), words at least 2, patch and block at least 1, got "
                f"{self.mask_ratio}, {self.words}, {self.patch} and {self.block}"
            )

    def learned(self, images: UInt8[np.ndarray, "N H W C"], seed: int) -> dict[str, Any]:
        """Find the words of images by k-means, and return them as `codebook`.

        Raises:
          ValueError: images that are smaller than a patch, or have fewer different patches than words.
        """
        patches = np.asarray(patch_pixels(jnp.asarray(images, jnp.float32), (self.patch, self.patch)), np.uint8)
        flat = patches.reshape(-1, patches.shape[-1])
        flat = flat[np.random.default_rng(seed).permutation(len(flat))[:FITTED]]
        found = find_palette(flat, self.words, seed=seed).colours if len(flat) else ()
        if len(found) < self.words:
            raise ValueError(f"images must have at least words={self.words} different patches, got {len(found)}")
        return {"codebook": found}

    @jax.default_matmul_precision("highest")
    def tokens(self, images: Float[Array, "B H W C"]) -> Int[Array, "B P"]:
        """Return the number of the nearest word of every patch of normalised images."""
        mean, std = (jnp.array(each, jnp.float32) for each in (self.views.mean, self.views.std))
        pixels = patch_pixels(2 * (images * std + mean) - 1, (self.patch, self.patch))
        words = jnp.array(self.codebook, jnp.float32)
        return jnp.argmin(jnp.square(words).sum(axis=1) / 2 - pixels @ words.T, axis=-1)

    def masks(self, images: Float[Array, "B H W C"], key: PRNGKeyArray | None) -> Bool[Array, "B P"]:
        """Draw which patches are masked; without a key by the images themselves."""
        grid = (images.shape[1] // self.patch, images.shape[2] // self.patch)
        if key is None:
            keys = row_keys(images, None)
        else:
            keys = jax.vmap(partial(jax.random.fold_in, key))(drawn(partial(jax.random.bits, key), (len(images),)))
        most = max(round(self.mask_ratio * grid[0] * grid[1]), 1)
        return jax.vmap(partial(mask_blocks, grid=grid, most=most, least=self.block))(keys)

    def __call__(self, model: Any, batch: Batch, *, key: PRNGKeyArray | None = None) -> Loss:
        """Sum the loss over a batch; `accuracy` is how often the word with the best score is right."""
        if not self.codebook:
            raise ValueError("a codebook must be found in the images of training first (learned), got an empty one")
        keys = split_keys(key, 3)
        images = self.crop(batch, keys[0])
        truth, masked = self.tokens(images), self.masks(images, keys[1])
        scores = widen(model.output(model.hidden_states(images, masked=masked, key=keys[2])))
        if scores.shape[-1] != len(self.codebook):
            raise ValueError(f"a model must score V={len(self.codebook)} words, got {scores.shape[-1]} outputs")
        return self.over(scores, truth, masked, batch["weights"])

    def over(
        self, scores: Float[Array, "B P V"], truth: Int[Array, "B P"], masked: Bool[Array, "B P"],
        weights: Float[Array, " B"],
    ) -> Loss:  # fmt: skip
        """Sum the loss over masked patches, from the scores of all."""
        each = jnp.where(masked, weights[:, None], 0.0)
        losses = -jnp.take_along_axis(jax.nn.log_softmax(scores), truth[..., None], axis=-1)[..., 0]
        right = jnp.sum(each * (scores.argmax(axis=-1) == truth))
        total = jnp.sum(jnp.where(each > 0, losses * each, 0.0))
        return total, {"count": each.sum(), "accuracy": right}


def mask_blocks(key: PRNGKeyArray, *, grid: tuple[int, int], most: int, least: int) -> Bool[Array, " P"]:
    """Draw blocks of a grid, one over the other, until nearly so many of its places are in one (BEiT, algorithm 1).

    Args:
      grid: rows and columns.
      most: places that may be masked.
      least: places of a block, before it is rounded to rows and columns; their ratio is 0.3 to 1 / 0.3.
    """
    rows, columns = (jnp.arange(side) for side in grid)

    def add(mask: Array, key: PRNGKeyArray) -> tuple[Array, None]:
        size, shape, top, left = jax.random.uniform(key, (4,))
        area = least + size * (jnp.maximum(most - mask.sum(), least) - least)
        aspect = jnp.exp((2 * shape - 1) * math.log(1 / 0.3))
        high, wide = (
            jnp.clip(jnp.round(jnp.sqrt(each)), 1, side)
            for each, side in zip((area * aspect, area / aspect), grid, strict=True)
        )
        first = jnp.floor(top * (grid[0] - high + 1)), jnp.floor(left * (grid[1] - wide + 1))
        inside = [
            (each >= begin) & (each < begin + length)
            for each, begin, length in zip((rows, columns), first, (high, wide), strict=True)
        ]
        new = mask | (inside[0][:, None] & inside[1][None])
        return jnp.where(new.sum() <= most, new, mask), None

    return jax.lax.scan(add, jnp.zeros(grid, bool), jax.random.split(key, TRIES))[0].reshape(-1)
