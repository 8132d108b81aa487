"""What a detector found: its logits and boxes as scores, labels and corners in pixels, as `transformers` gives them.

Axes: B images, M boxes, E classes, of which the last is no object.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float


def post_process_object_detection(
    logits: Float[Array | np.ndarray, "B M E"],
    boxes: Float[Array | np.ndarray, "B M 4"],
    sizes: Sequence[tuple[int, int]] | None = None,
    *,
    threshold: float = 0.5,
) -> list[dict[str, np.ndarray]]:
    """Return the objects of each image whose score is above a threshold.

    Args:
      logits: of DETR and its kin, of which the largest besides no object is taken (Carion et al. 2020).
      boxes: middle x and y, width and height, as shares of the image.
      sizes: height and width of each image; boxes stay shares without.
      threshold: from 0 to 1.

    Returns:
      For each image `scores`, `labels` and `boxes`: left, top, right, bottom.

    Raises:
      ValueError: other sizes than images.

    >>> post_process_object_detection(np.zeros((1, 1, 2)), np.array([[[0.5, 0.5, 0.5, 1]]]), [(40, 80)], threshold=0.4)
    [{'scores': array([0.5]), 'labels': array([0]), 'boxes': array([[20.,  0., 60., 40.]])}]
    """
    logits, boxes = np.asarray(logits), np.asarray(boxes)
    if sizes is not None and len(sizes) != len(logits):
        raise ValueError(f"there must be one size for each image, got {len(sizes)} for {len(logits)}")
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = (odds / odds.sum(-1, keepdims=True))[..., :-1]
    labels, scores = probabilities.argmax(-1), probabilities.max(-1)
    middle, extent = boxes[..., :2], boxes[..., 2:]
    half = boxes.dtype.type(0.5)
    corners = np.concatenate([middle - half * extent, middle + half * extent], axis=-1)
    if sizes is not None:
        corners = corners * np.array([[(w, h, w, h)] for h, w in sizes], corners.dtype)
    return [
        {"scores": score[score > threshold], "labels": label[score > threshold], "boxes": box[score > threshold]}
        for score, label, box in zip(scores, labels, corners, strict=True)
    ]
