"""How well classes of pixels are told: the mean over classes of intersection over union, as PASCAL VOC and ADE20K have
it (Everingham et al. 2015, https://doi.org/10.1007/s11263-014-0733-5; Zhou et al. 2017,
https://arxiv.org/abs/1608.05442).

Axes: E classes; of pixels any.
"""

import numpy as np
from jaxtyping import Bool, Int


def confusion(
    found: Int[np.ndarray, "*B"], truth: Int[np.ndarray, "*B"], classes: int, counted: Bool[np.ndarray, "*B"]
) -> Int[np.ndarray, "E E"]:
    """Count pixels by their true class, the row, and the one that was found.

    Args:
      counted: which pixels count.

    Raises:
      ValueError: a class that there is not.

    >>> confusion(np.array([0, 1, 1]), np.array([0, 0, 1]), 2, np.array([True, True, False])).tolist()
    [[1, 1], [0, 0]]
    """
    pairs = np.stack([truth[counted], found[counted]]).astype(np.int64)
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < classes:
        raise ValueError(f"classes must be from 0 to {classes - 1}, got {pairs.min()} to {pairs.max()}")
    return np.bincount(pairs[0] * classes + pairs[1], minlength=classes**2).reshape(classes, classes)


def mean_iou(counts: Int[np.ndarray, "E E"]) -> dict[str, float]:
    """Return `miou`, `pixel_accuracy` and `class_accuracy`, from pixels of all images counted together.

    A class that is nowhere, neither there nor found, has no part in the mean over classes; one that is not there has
    none in the mean of their accuracies.

    >>> mean_iou(np.array([[3, 1], [0, 4]]))
    {'miou': 0.775, 'pixel_accuracy': 0.875, 'class_accuracy': 0.875}
    """
    right, there, predicted = np.diag(counts), counts.sum(1), counts.sum(0)
    present = there + predicted > 0
    means = {
        "miou": (right[present] / (there + predicted - right)[present]),
        "pixel_accuracy": right.sum(keepdims=True) / max(counts.sum(), 1),
        "class_accuracy": right[there > 0] / there[there > 0],
    }
    return {name: float(values.mean()) if values.size else float("nan") for name, values in means.items()}


def class_iou(counts: Int[np.ndarray, "E E"]) -> list[float]:
    """Return the intersection over union of each class; NaN of one that is nowhere."""
    right, union = np.diag(counts), counts.sum(0) + counts.sum(1) - np.diag(counts)
    return [float(a / b) if b else float("nan") for a, b in zip(right, union, strict=True)]
