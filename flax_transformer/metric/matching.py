"""Two lists matched one to one.

Axes: N halves of either list.
"""

import numpy as np
from jaxtyping import Bool, Float

from flax_transformer.metric.finite import check_finite


def matched(scores: Float[np.ndarray, "N N"], belong: Bool[np.ndarray, "N N"]) -> float:
    """Match every half of one list with one of the other, so that all scores together are the largest that can be.

    It is more than to ask for each by itself, as each half that is taken is out of question for all others: for two
    lists of which it is known that each half has its own (Mao et al. 2021, https://arxiv.org/abs/2109.02363).

    Returns:
      The fraction of matches that belong together.

    Raises:
      ValueError: scores that are not finite, or halves that belong to none or several.

    >>> scores = np.array([[0.9, 0.8], [0.9, 0.0]])  # both of the first list score most with one of the second
    >>> matched(scores, np.array([[False, True], [True, False]]))
    1.0
    """
    from scipy.optimize import linear_sum_assignment

    check_finite("scores", scores)
    if not one_to_one(belong):
        raise ValueError(f"each half must belong to one of the other list, got {belong.sum()} of {belong.shape}")
    return float(belong[linear_sum_assignment(scores, maximize=True)].mean())


def one_to_one(belong: Bool[np.ndarray, "F S"]) -> bool:
    """Tell whether each half of either list belongs to one of the other.

    >>> one_to_one(np.eye(2, dtype=bool)), one_to_one(np.ones((2, 2), bool))
    (True, False)
    """
    return bool((belong.sum(axis=0) == 1).all() and (belong.sum(axis=1) == 1).all())
