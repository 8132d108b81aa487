"""What a segmenter found, as maps of the classes or of the objects of pixels, as `transformers` gives them.

Axes: B images, E classes, Q queries, M objects, I J height and width of the grid, H W those of an image in pixels.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.ops import bilinear, nearest, resample

GRID = (384, 384)
"""Height and width in which `Mask2FormerImageProcessor` looks at masks."""


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


def post_process_panoptic_segmentation(
    logits: Float[Array | np.ndarray, "B Q E"], masks: Float[Array | np.ndarray, "B Q I J"],
    sizes: Sequence[tuple[int, int]] | None = None, *,
    threshold: float = 0.5, mask_threshold: float = 0.5, overlap: float = 0.8, fused: Collection[int] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Return which object each pixel of an image is of, that of the surest mask (Carion et al. 2020, §4.4).

    Args:
      logits: of the classes of queries, the last of which is no object.
      masks: logits of their masks.
      sizes: height and width of each image; without them the maps are as large as the masks.
      threshold: probability above which a query counts as an object, from 0 to 1.
      mask_threshold: from which on a place is of its mask.
      overlap: share of its mask that an object must have for its own, or it is left out.
      fused: classes of which an image has one object at most, as sky.

    Returns:
      For each image `segmentation` [H, W], numbers of objects from 1 on, and 0 where there is none, or −1 everywhere
      where no query is an object; and `segments_info`, a list of `id`, `label_id`, `was_fused` and `score`.

    Raises:
      ValueError: other sizes than images.
    """
    logits, masks = np.asarray(logits, np.float32), jnp.asarray(masks)
    if sizes is not None and len(sizes) != len(logits):
        raise ValueError(f"there must be one size for each image, got {len(sizes)} for {len(logits)}")
    probabilities = np.asarray(jax.nn.softmax(logits))
    labels, scores = probabilities.argmax(-1), probabilities.max(-1)
    found = []
    for i, each in enumerate(masks):
        size = each.shape[1:] if sizes is None else tuple(sizes[i])
        kept = (labels[i] != logits.shape[-1] - 1) & (scores[i] > threshold)
        if not kept.any():
            found.append({"segmentation": np.full(size, -1), "segments_info": []})
            continue
        shares = np.array(_probabilities(each[kept], size=size)) * scores[i][kept][:, None, None]
        found.append(_objects(shares, labels[i][kept], scores[i][kept], (mask_threshold, overlap), fused))
    return found


def enlarged_masks(masks: Float[Array | np.ndarray, "B Q I J"]) -> Float[Array, "B Q 384 384"]:
    """Resize logits of masks to the one size in which `Mask2FormerImageProcessor` looks at all of them, bilinear.

    `post_process_panoptic_segmentation(logits, enlarged_masks(masks), …)` is then what it makes of them.

    >>> enlarged_masks(np.zeros((1, 2, 3, 4))).shape
    (1, 2, 384, 384)
    """
    return _resized(jnp.asarray(masks), size=GRID)


def class_scores(
    logits: Float[Array | np.ndarray, "B Q E"], masks: Float[Array | np.ndarray, "B Q I J"]
) -> Float[Array, "B F I J"]:
    """Score the classes of each place by the masks of all queries (Cheng et al. 2021, https://arxiv.org/abs/2107.06278).

    `post_process_semantic_segmentation(class_scores(logits, enlarged_masks(masks)), …)` is what
    `Mask2FormerImageProcessor` makes of them.

    Args:
      logits: of the classes of queries, the last of which is no mask.
      masks: logits of their masks.

    >>> class_scores(np.zeros((1, 2, 3)), np.zeros((1, 2, 4, 5))).shape
    (1, 2, 4, 5)
    """
    probabilities = jax.nn.softmax(jnp.asarray(logits))[..., :-1]
    exact = jax.lax.Precision.HIGHEST
    return jnp.einsum("bqe,bqij->beij", probabilities, jax.nn.sigmoid(jnp.asarray(masks)), precision=exact)


def post_process_instance_segmentation(
    logits: Float[Array | np.ndarray, "B Q E"], masks: Float[Array | np.ndarray, "B Q I J"],
    sizes: Sequence[tuple[int, int]] | None = None, *, threshold: float = 0.5,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return which instance each pixel of an image is of, the last of them where masks overlap.

    The Q likeliest pairs of a query and a class are instances, with the probability of the class times the mean
    probability of the places of the mask for a score (Cheng et al. 2021, https://arxiv.org/abs/2112.01527).

    Args:
      logits: of the classes of queries, the last of which is no mask.
      masks: logits of their masks, enlarged as `enlarged_masks` does.
      sizes: height and width of each image; without them the maps are as large as the masks.
      threshold: score from which on an instance counts, from 0 to 1.

    Returns:
      For each image `segmentation` [H, W], numbers of instances from 0 on, and −1 where there is none; and
      `segments_info`, a list of `id`, `label_id`, `was_fused` (never) and `score`.

    Raises:
      ValueError: other sizes than images.
    """
    logits, masks = np.asarray(logits, np.float32), np.asarray(masks)
    if sizes is not None and len(sizes) != len(logits):
        raise ValueError(f"there must be one size for each image, got {len(sizes)} for {len(logits)}")
    probabilities, found = np.asarray(jax.nn.softmax(logits))[..., :-1], []
    for i, each in enumerate(masks):
        best = np.argsort(-probabilities[i].ravel(), kind="stable")[: len(each)]
        queries, labels = np.divmod(best, probabilities.shape[-1])
        inside = each > 0
        sums = np.where(inside, np.asarray(jax.nn.sigmoid(each)), 0).sum((1, 2), dtype=np.float32)
        shares = sums / (inside.sum((1, 2)) + np.float32(1e-6))
        scores = probabilities[i].ravel()[best] * shares[queries]
        size = each.shape[1:] if sizes is None else tuple(sizes[i])
        rows, columns = (np.argmax(nearest(old, new), axis=1) for old, new in zip(each.shape[1:], size, strict=True))
        segmentation, segments = np.full(size, -1), []
        for query, label, score in zip(queries.tolist(), labels.tolist(), scores.tolist(), strict=True):
            own = inside[query][rows][:, columns]
            if score >= threshold and own.any():
                segmentation[own] = len(segments)
                fields = {"label_id": label, "was_fused": False, "score": round(score, 6)}
                segments.append({"id": len(segments), **fields})
        found.append({"segmentation": segmentation, "segments_info": segments})
    return found


def _objects(
    shares: Float[np.ndarray, "M H W"], labels: Int[np.ndarray, " M"], scores: Float[np.ndarray, " M"],
    least: tuple[float, float], fused: Collection[int],
) -> dict[str, Any]:  # fmt: skip
    """Number the objects that are seen; one that is fused has the number of the first of its class."""
    surest = shares.argmax(0)
    segmentation, segments, known, number = np.zeros(surest.shape, np.int32), [], {}, 0
    for k, label in enumerate(labels.tolist()):
        own, whole = surest == k, (shares[k] >= least[0]).sum()
        if not own.any() or not whole or not own.sum() / whole > least[1]:
            continue
        number = known.get(label, number + 1)
        segmentation[own] = number
        was_fused, score = label in fused, round(float(scores[k]), 6)
        segments.append({"id": number, "label_id": label, "was_fused": was_fused, "score": score})
        if was_fused:
            known[label] = number
    return {"segmentation": segmentation, "segments_info": segments}


@partial(jax.jit, static_argnames="size")
def _resized(masks: Float[Array, "B Q I J"], *, size: tuple[int, int]) -> Float[Array, "B Q H W"]:
    return jnp.moveaxis(resample(jnp.moveaxis(masks, 1, -1), size, kernel=bilinear), -1, 1)


@partial(jax.jit, static_argnames="size")
def _probabilities(masks: Float[Array, "M I J"], *, size: tuple[int, int]) -> Float[Array, "M H W"]:
    places = jnp.moveaxis(jax.nn.sigmoid(masks), 0, -1)
    return jnp.moveaxis(resample(places, size, kernel=bilinear), -1, 0)


@partial(jax.jit, static_argnames="size")
def _classes(logits: Float[Array, "I J E"], *, size: tuple[int, int]) -> Int[Array, "H W"]:
    return resample(logits, size, kernel=bilinear).argmax(-1)
