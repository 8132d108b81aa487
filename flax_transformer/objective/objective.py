"""What every objective says of itself."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax

from flax_transformer.frozen import frozen
from flax_transformer.train.carry import is_separable

Batch = Mapping[str, Any]
Loss = tuple[jax.Array, dict[str, jax.Array]]


@frozen
class Objective:
    """`objective(model, batch, key=…)` gives a loss summed over the batch, and sums to report, among them `count`.

    A subclass has its options as fields and defines `__call__`. Everything that is summed is divided by `count` in the
    end, so that batches cut into parts, or laid out over devices, give the same mean. That needs a loss that is a sum
    over rows; one that compares rows with each other says `separable = False`.
    """

    separable: ClassVar[bool] = True
    """Whether the loss of a batch is the sum of those of its rows."""
    better: ClassVar[Mapping[str, Literal["lower", "higher"]]] = {"loss": "lower"}
    """The metrics it reports, and which direction is better."""
    unit: ClassVar[str] = "rows"
    """What `count` counts."""

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch; without a key there is no dropout."""
        raise NotImplementedError

    def held_out(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        """Sum what an evaluation reports over a batch, `loss` and `count` among it, without dropout."""
        loss, metrics = self(model, batch)
        return {"loss": loss, **metrics}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Make metrics of the means over all held-out data; as they are, unless a subclass says otherwise."""
        return dict(means)


@frozen
class Around(Objective):
    """Minimise an objective, and something more beside; what is reported, and which direction is better, it decides."""

    of: Objective
    """What is minimised."""

    @property
    def separable(self) -> bool:
        """Whether the loss is the sum of those of its rows."""
        return is_separable(self.of)

    @property
    def better(self) -> Mapping[str, str]:
        """The metrics it reports, and which direction is better."""
        return self.of.better

    @property
    def unit(self) -> str:
        """What `count` counts."""
        return self.of.unit

    def held_out(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        """Sum what the objective reports of a batch, as it is evaluated."""
        return self.of.held_out(model, batch)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Make metrics of means as the objective does."""
        return self.of.summary(means)


class Known:
    """A model whose hidden states are known already."""

    def __init__(self, model: Any, hidden: jax.Array):
        self._model, self._hidden = model, hidden

    def hidden_states(self, **inputs: Any) -> jax.Array:
        """Give them, whatever the inputs."""
        return self._hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def check_parts(objective: Any, parts: int, why: str) -> None:
    """Refuse to cut a batch that an objective needs whole.

    Args:
      objective: an `Objective`, or any function of model and batch, which is taken to be separable.
      parts: how many it would be cut into.
      why: what cuts it, for the message.

    Raises:
      ValueError: when it is cut into more than one.
    """
    if parts > 1 and not is_separable(objective):
        raise ValueError(
            f"{type(objective).__name__} compares the rows of a batch, which must stay whole, got {why}={parts}"
        )
