"""What every objective says of itself."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.train.carry import is_separable, projection_of

Batch = Mapping[str, Any]
Loss = tuple[jax.Array, dict[str, Any]]
"""The loss, summed over a batch; and what is reported, among it `count`: see `train.mean`."""


@frozen
class Objective:
    """`objective(model, batch, key=…)` gives a loss summed over the batch, and sums to report, among them `count`.

    A subclass has its options as fields and defines `__call__`. Everything that is summed is divided by `count` in the
    end, so that batches cut into parts, or laid out over devices, give the same mean. What has another count is
    reported as a `Mean`; a loss whose terms have counts of their own is made by `train.mean.summed`. All that needs
    sums over rows; what compares rows with each other says `separable = False`.

    A row that only fills up a batch has weights 0, and length 0 where inputs have `lengths`. Whatever else is in it,
    it changes nothing.
    """

    separable: ClassVar[bool] = True
    """Whether the sums over a batch are those over its parts; a batch of one that is not is never cut."""
    better: ClassVar[Mapping[str, Literal["lower", "higher"]]] = {"loss": "lower"}
    """The metrics it reports, and which direction is better."""
    unit: ClassVar[str] = "rows"
    """What `count` counts."""

    @property
    def separable_held_out(self) -> bool:
        """Whether `held_out` gives sums over rows; as in training, unless a subclass says otherwise."""
        return self.separable

    def project(self, model: Any) -> Any:
        """Return the model as it may be: done after every update. As it is, unless a subclass says otherwise."""
        return model

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch; without a key there is no dropout."""
        raise NotImplementedError

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum what an evaluation reports over a batch, `loss` and `count` among it, without dropout."""
        loss, metrics = self(model, batch)
        return {"loss": loss, **metrics}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Make metrics of the means over all held-out data; as they are, unless a subclass says otherwise."""
        return dict(means)


@frozen
class ObjectiveWrapper(Objective):
    """Minimise an objective, and something more beside; what is reported, and which direction is better, it decides."""

    of: Objective
    """What is minimised."""

    @property
    def separable(self) -> bool:
        """Whether the sums over a batch are those over its parts."""
        return is_separable(self.of)

    @property
    def separable_held_out(self) -> bool:
        """Whether `held_out` gives sums over rows."""
        return self.of.separable_held_out

    @property
    def better(self) -> Mapping[str, str]:
        """The metrics it reports, and which direction is better."""
        return self.of.better

    @property
    def unit(self) -> str:
        """What `count` counts."""
        return self.of.unit

    def project(self, model: Any) -> Any:
        """Return the model as the objective allows it."""
        return projection_of(self.of)(model)

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum what the objective reports of a batch, as it is evaluated."""
        return self.of.held_out(model, batch)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Make metrics of means as the objective does."""
        return self.of.summary(means)


class KnownStates:
    """A model whose hidden states are known already."""

    def __init__(self, model: Any, hidden: jax.Array):
        self._model, self._hidden = model, hidden

    def hidden_states(self, **inputs: Any) -> jax.Array:
        """Return them, whatever the inputs."""
        return self._hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def present_rows(batch: Batch) -> Bool[Array, " B"]:
    """Return which rows are there, and do not just fill up a batch: those with a length, or else with a weight."""
    if (lengths := batch["inputs"].get("lengths")) is not None:
        return lengths > 0
    weights = batch["weights"]
    return (weights > 0).any(axis=tuple(range(1, weights.ndim)))


def is_right(logits: Float[Array, "*B E"], labels: Int[Array, "*B"]) -> Bool[Array, "*B"]:
    """Return whether labels are the first of the best classes, which never is so where the logits are not finite."""
    return (logits.argmax(-1) == labels) & jnp.isfinite(logits.max(-1))


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
