"""Boxes in images, as the centre and the size of each or as its two corners, in shares of the image or in pixels.

A box by its centre is (x, y, width, height), by its corners (left, top, right, bottom).
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def to_corners(boxes: Float[Array, "*B 4"]) -> Float[Array, "*B 4"]:
    """Turn boxes by their centres into boxes by their corners.

    >>> to_corners(jnp.array([0.5, 0.5, 0.5, 1.0])).tolist()
    [0.25, 0.0, 0.75, 1.0]
    """
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return jnp.concatenate([centre - half, centre + half], axis=-1)


def to_centres(boxes: Float[Array, "*B 4"]) -> Float[Array, "*B 4"]:
    """Turn boxes by their corners into boxes by their centres.

    >>> to_centres(jnp.array([0.25, 0.0, 0.75, 1.0])).tolist()
    [0.5, 0.5, 0.5, 1.0]
    """
    low, high = boxes[..., :2], boxes[..., 2:]
    return jnp.concatenate([(low + high) / 2, high - low], axis=-1)


def area(boxes: Float[Array, "*B 4"]) -> Float[Array, "*B"]:
    """Return the areas of boxes by their corners; 0 where a corner is on the wrong side of the other."""
    return jnp.prod(jnp.maximum(boxes[..., 2:] - boxes[..., :2], 0), axis=-1)


def overlap(one: Float[Array, "*#B 4"], other: Float[Array, "*#B 4"]) -> Float[Array, "*B"]:
    """Return intersection over union of boxes by their corners, pair by pair; `overlap(a[:, None], b)` is of all pairs.

    >>> float(overlap(jnp.array([0.0, 0.0, 2.0, 2.0]), jnp.array([1.0, 0.0, 3.0, 2.0])))
    0.3333333432674408
    """
    return _shared(one, other)[0]


def generalised_overlap(one: Float[Array, "*#B 4"], other: Float[Array, "*#B 4"]) -> Float[Array, "*B"]:
    """Return the generalised intersection over union of boxes by their corners, pair by pair.

    It is less by the empty share of the smallest box around both, which grows with the distance of boxes that share
    nothing (Rezatofighi et al. 2019, https://arxiv.org/abs/1902.09630).

    >>> float(generalised_overlap(jnp.array([0.0, 0.0, 1.0, 1.0]), jnp.array([3.0, 0.0, 4.0, 1.0])))
    -0.5
    """
    share, union = _shared(one, other)
    low, high = jnp.minimum(one[..., :2], other[..., :2]), jnp.maximum(one[..., 2:], other[..., 2:])
    around = area(jnp.concatenate([low, high], axis=-1))
    return share - _ratio(around - union, around)


def _shared(one: Array, other: Array) -> tuple[Array, Array]:
    """Return intersection over union, and the union."""
    low, high = jnp.maximum(one[..., :2], other[..., :2]), jnp.minimum(one[..., 2:], other[..., 2:])
    common = area(jnp.concatenate([low, high], axis=-1))
    union = area(one) + area(other) - common
    return _ratio(common, union), union


def _ratio(part: Array, whole: Array) -> Array:
    """Divide; of nothing the share is 0, and so is its gradient."""
    return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), 0)
