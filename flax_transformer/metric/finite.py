"""Scores of a finished model that are no numbers have no order, and so no rank, no class and no precision."""

from typing import Any

import numpy as np


def check_finite(what: str, *arrays: Any) -> None:
    """Check that all numbers of arrays are finite.

    Raises:
      ValueError: naming what they are, and how many of them are not finite.
    """
    bad, total = sum(int(np.sum(~np.isfinite(each))) for each in arrays), sum(map(np.size, arrays))
    if bad:
        raise ValueError(f"what a model is tested by must be finite, got {bad:,} of {total:,} {what} that are not")
