"""What a segmenter found: scores of classes on a grid as a map of the classes of pixels, as `transformers` gives it.

Axes: B images, E classes, I J height and width of the grid, H W those of an image in pixels.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.ops import bilinear, resample


def post_process_semantic_segmentation(
    logits: Float[Array | np.ndarray, "B E I J"], sizes: Sequence[tuple[int, int]] | None = None
) -> list[Int[np.ndarray, "..."]]:
    """Return the class of every pixel of each image, [H, W]: that of the largest score, bilinear between places.

    Args:
      sizes: height and width of each image; without them the maps are as large as the grid.

    Raises:
      ValueError: other sizes than images.

    >>> post_process_semantic_segmentation(np.array([[[[3.0, 0.0]], [[0.0, 1.0]]]]), [(1, 4)])[0].tolist()
    [[0, 0, 0, 1]]
    """
    logits = jnp.moveaxis(jnp.asarray(logits), 1, -1)
    if sizes is None:
        return [*np.asarray(logits.argmax(-1))]
    if len(sizes) != len(logits):
        raise ValueError(f"there must be one size for each image, got {len(sizes)} for {len(logits)}")
    return [np.asarray(_classes(each, size=tuple(size))) for each, size in zip(logits, sizes, strict=True)]


@partial(jax.jit, static_argnames="size")
def _classes(logits: Float[Array, "I J E"], *, size: tuple[int, int]) -> Int[Array, "H W"]:
    return resample(logits, size, kernel=bilinear).argmax(-1)
