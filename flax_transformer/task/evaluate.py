"""The mean of an objective over held-out data."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import jax

from flax_transformer.metric.finite import check_finite
from flax_transformer.objective import Objective
from flax_transformer.train.batch_layout import fill_rows
from flax_transformer.train.mean import terms_of


def evaluate(objective: Objective, model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Average an objective and its metrics over batches, without dropout; compiled once for equal objectives.

    Raises:
      ValueError: an objective that compares rows, and a batch that the mesh in context cannot split as it is.
    """
    sums = [_sums(objective, model, fill_rows(batch, objective.separable_held_out)) for batch in batches]
    total = jax.tree.map(lambda *each: sum(map(float, each)), *sums)
    count = total.pop("count")
    mean = lambda value: sum(each.total / (each.count or 1.0) for each in terms_of(value, count))  # noqa: E731
    return objective.summary({name: mean(value) for name, value in total.items()})


def tested(objective: Objective, model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """Average an objective and its metrics over test data, as `evaluate` does.

    Raises:
      ValueError: a loss that is not finite, beside which no other number means anything.
    """
    found = evaluate(objective, model, batches)
    check_finite("losses of the test", found["loss"])
    return found


@partial(jax.jit, static_argnums=0)
def _sums(objective: Objective, model: Any, batch: Any) -> dict[str, Any]:
    return objective.held_out(model, batch)
