"""How many directions vectors really have: told by the spread of their singular values.

Axes: N vectors, D width.
"""

import numpy as np
from jaxtyping import Float


def effective_rank(vectors: Float[np.ndarray, "N D"]) -> float:
    """Return the effective rank of vectors, their mean taken away: the exponential of the entropy of their singular
    values as fractions of the sum (Roy & Vetterli 2007; RankMe, Garrido et al. 2023, https://arxiv.org/abs/2210.02885).

    It is D where they spread alike in all directions, 1 along a line, and 0 where all are the same.

    >>> effective_rank(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
    2.0
    """
    wide = vectors.astype(np.float64)
    values = np.linalg.svd(wide - wide.mean(axis=0), compute_uv=False)
    if values[0] <= 1e-6 * max(np.abs(wide).max(), 1e-30) * np.sqrt(len(wide)):
        return 0.0
    shares = values / values.sum()
    shares = shares[shares > 0]
    return round(float(np.exp(-np.sum(shares * np.log(shares)))), 9)
