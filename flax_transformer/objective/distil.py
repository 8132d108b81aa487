"""Learning from a teacher: what another model says of the same rows, beside their labels.

Axes: B rows, E classes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.objective.label import LabelLoss
from flax_transformer.objective.objective import Batch, Loss, Objective, is_right
from flax_transformer.ops import cross_entropy, soft_cross_entropy, widen
from flax_transformer.ops.split_keys import split_keys


@frozen
class DistilLoss(Objective):
    """Sum (1 − w) times the cross-entropy of the labels and w times what differs from a teacher's answer.

    A batch has the teacher's scores as `teacher` [B, E]; one without, as held-out ones are, has its labels in place of
    the teacher's answers. A model with two heads, `model.both(hidden)`, learns the labels with the first and the
    teacher's answers with the second (Touvron et al. 2020, https://arxiv.org/abs/2012.12877); any other learns both
    with the one it has (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).
    """

    kind: Literal["hard", "soft"] = "hard"
    """hard: the cross-entropy of the class that the teacher gives most; soft: the Kullback-Leibler divergence from the
    teacher's distribution, times the square of the temperature."""
    weight: float = 0.5
    """w."""
    temperature: float = 3.0
    """What both scores are divided by, where soft."""
    label_smoothing: float = 0.0
    """How much of the labels' target goes evenly to all classes."""

    better: ClassVar[Mapping[str, str]] = LabelLoss.better

    def __post_init__(self):
        LabelLoss(label_smoothing=self.label_smoothing)
        if not 0 <= self.weight <= 1 or self.temperature <= 0:
            raise ValueError(f"weight must be in [0, 1], temperature above 0, got {self.weight} and {self.temperature}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the rows of a batch."""
        keys = split_keys(key)
        hidden = model.hidden_states(**batch["inputs"], key=keys[0])
        if hasattr(model, "both"):
            by_label, by_teacher = model.both(hidden)
        else:
            by_label = by_teacher = model.output(hidden, key=keys[1])
        labels, weights = batch["labels"], batch["weights"]
        hard = labels.argmax(-1) if labels.ndim == by_label.ndim else labels
        label_loss = self._of_labels(by_label, labels, weights)
        taught = self._of_labels(by_teacher, labels, weights)
        if "teacher" in batch:
            taught = self.differ(by_teacher, jax.lax.stop_gradient(batch["teacher"]), weights)
        right = jnp.sum(is_right(by_label + by_teacher, hard) * weights)
        loss = (1 - self.weight) * label_loss + self.weight * taught
        return loss, {"count": jnp.sum(weights), "accuracy": right}

    def held_out(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        """Sum the cross-entropy of the labels by the model's one answer, and the right ones."""
        return LabelLoss(label_smoothing=self.label_smoothing).held_out(model, batch)

    def differ(
        self, scores: Float[Array, "B E"], teacher: Float[Array, "B E"], weights: Float[Array, " B"]
    ) -> Float[Array, ""]:
        """Sum what scores differ from a teacher's, in float32 or more."""
        if self.kind == "hard":
            return cross_entropy(scores, teacher.argmax(-1), weights)[0]
        scores, teacher = widen(scores) / self.temperature, widen(teacher) / self.temperature
        answer = jax.nn.softmax(teacher)
        entropy = -jnp.sum(jnp.sum(answer * jax.nn.log_softmax(teacher), axis=-1) * weights)
        return self.temperature**2 * (soft_cross_entropy(scores, answer, weights)[0] - entropy)

    def _of_labels(self, scores: Float[Array, "B E"], labels: Array, weights: Float[Array, " B"]) -> Float[Array, ""]:
        loss = soft_cross_entropy if labels.ndim == scores.ndim else cross_entropy
        return loss(scores, labels, weights, label_smoothing=self.label_smoothing)[0]
