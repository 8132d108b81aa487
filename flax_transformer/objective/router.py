"""Training models with experts: any objective of tokens, and what keeps their routers even.

Axes: B rows, T positions, L layers.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from flax_transformer.frozen import frozen
from flax_transformer.nn import own_tables
from flax_transformer.nn.config import check_at_least
from flax_transformer.objective.objective import Batch, KnownStates, Loss, ObjectiveWrapper
from flax_transformer.train.mean import Mean, with_term


@frozen
class RouterLoss(ObjectiveWrapper):
    """Minimise an objective of a model with experts, and how uneven and how large its routers' outputs are.

    The model gives its hidden states and what its blocks tell as `model.observe(**inputs, key=key)`. What is added is a
    mean over layers, and over rows by their weight in the batch, so that rows are apart. Evaluation has the objective
    alone.
    """

    balance: float = 0.01
    """Factor on the balance of loads (Fedus et al. 2021, https://arxiv.org/abs/2101.03961)."""
    router_z: float = 0.001
    """Factor on the routers' z-loss (Zoph et al. 2022, https://arxiv.org/abs/2202.08906)."""

    def __post_init__(self):
        check_at_least(self, 0, "balance", "router_z")

    metrics: ClassVar[tuple[str, ...]] = ("balance", "router_z", "dropped")
    """What is reported beside: means over layers and rows."""

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch."""
        model = own_tables(model)
        hidden, aux = model.observe(**batch["inputs"], key=key)
        if any(name not in aux for name in self.metrics):
            raise ValueError(
                f"RouterLoss needs blocks with experts, which tell {', '.join(self.metrics)}, got blocks that tell "
                f"{', '.join(aux) or 'nothing'}"
            )
        loss, metrics = self.of(KnownStates(model, hidden), batch, key=key)
        rows = jnp.sum(batch["weights"], axis=tuple(range(1, batch["weights"].ndim)))
        found = {name: Mean(jnp.sum(aux[name].mean(0) * rows), rows.sum()) for name in self.metrics}
        for name, factor in (("balance", self.balance), ("router_z", self.router_z)):
            loss, metrics = with_term(loss, metrics, found[name].scaled(factor))
        return loss, {**metrics, **found}
