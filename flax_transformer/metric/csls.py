"""Scores of two lists that are matched, without hubs.

Axes: F halves of the first list, S of the second.
"""

import numpy as np
from jaxtyping import Float


def csls(scores: Float[np.ndarray, "F S"], neighbours: int = 10) -> Float[np.ndarray, "F S"]:
    """Rescale scores so that a half that is near to all others ("a hub") is no longer found by all of them.

    Cross-domain similarity local scaling (Conneau et al. 2018, https://arxiv.org/abs/1710.04087): twice the score, less
    the mean score of either half with its nearest ones of the other side. It uses all that is asked at once, so it
    suits two lists that are matched one to one, not questions that come one by one, nor many halves of one.

    Args:
      scores: cosines.
      neighbours: how many are nearest; all, where there are fewer.

    Raises:
      ValueError: `neighbours` below 1.

    >>> csls(np.array([[0.9, 0.8], [0.9, 0.0]]), neighbours=1).round(1).tolist()
    [[0.0, -0.1], [0.0, -1.7]]
    """
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1, got {neighbours}")

    def near(axis: int) -> Float[np.ndarray, "_ _"]:
        count = min(neighbours, scores.shape[axis])
        return -np.sort(-scores, axis=axis).take(range(count), axis=axis).mean(axis=axis, keepdims=True)

    return 2 * scores - near(1) - near(0)
