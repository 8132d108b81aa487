"""The mean of an objective over held-out data."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax

from flax_transformer.objective import Objective
from flax_transformer.train.carry import is_separable
from flax_transformer.train.share import fill_rows


def evaluate(objective: Objective, model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Average an objective and its metrics over batches, without dropout; compiled once for equal objectives.

    Raises:
      ValueError: an objective that compares rows, and a batch that the mesh in context cannot split as it is.
    """
    sums = [_sums(objective, model, fill_rows(batch, is_separable(objective))) for batch in batches]
    total = {name: sum(float(each[name]) for each in sums) for name in sums[0]}
    count = max(total.pop("count"), 1.0)
    return objective.summary({name: value / count for name, value in total.items()})


@partial(jax.jit, static_argnums=0)
def _sums(objective: Objective, model: Any, batch: Any) -> dict[str, jax.Array]:
    return objective.held_out(model, batch)
