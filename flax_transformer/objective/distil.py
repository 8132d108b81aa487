"""Learning from a teacher: what another model says of the same rows, beside their labels.

What a teacher says of a batch is in the batch, as `teacher`: `logits`, and of layers what `objective.layer` says.

Axes: B rows, M masked tokens a row, E classes, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn import own_tables
from flax_transformer.objective.label import LabelLoss
from flax_transformer.objective.masked import MaskedLoss
from flax_transformer.objective.objective import Batch, KnownStates, Loss, Objective, is_right
from flax_transformer.objective.token import looked_at
from flax_transformer.ops import cross_entropy, soft_cross_entropy, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.train.mean import Mean, summed, terms_of

Asked = tuple[tuple[str, int], ...]
"""What an objective asks of a teacher: `logits`, numbered 0, and what of its layers, each with its number."""

LOGITS: Asked = (("logits", 0),)


@frozen
class DistilLoss(Objective):
    """Sum (1 − w) times the cross-entropy of the labels and w times what differs from a teacher's answer.

    A batch has the teacher's scores as `teacher["logits"]` [B, E]; one without, as held-out ones are, has its labels in
    place of the teacher's answers. A model with two heads, `model.both(hidden)`, learns the labels with the first and
    the teacher's answers with the second (Touvron et al. 2020, https://arxiv.org/abs/2012.12877); any other learns both
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
    asked: ClassVar[Asked] = LOGITS

    def __post_init__(self):
        LabelLoss(label_smoothing=self.label_smoothing)
        _check(self.weight, self.temperature)

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
            taught = self.differ(by_teacher, jax.lax.stop_gradient(batch["teacher"]["logits"]), weights)
        right = jnp.sum(is_right(by_label + by_teacher, hard) * weights)
        loss = (1 - self.weight) * label_loss + self.weight * taught
        return loss, {"count": jnp.sum(weights), "accuracy": right}

    def held_out(self, model: Any, batch: Batch) -> dict[str, jax.Array]:
        """Sum the cross-entropy of the labels by the model's one answer, and the right ones."""
        return LabelLoss(label_smoothing=self.label_smoothing).held_out(model, batch)

    def differ(
        self, scores: Float[Array, "B E"], teacher: Float[Array, "B _"], weights: Float[Array, " B"]
    ) -> Float[Array, ""]:
        """Sum what scores differ from a teacher's, in float32 or more."""
        if self.kind == "hard":
            return cross_entropy(scores, teacher.argmax(-1), weights)[0]
        return soft_targets(scores, teacher, weights, self.temperature)

    def _of_labels(self, scores: Float[Array, "B E"], labels: Array, weights: Float[Array, " B"]) -> Float[Array, ""]:
        loss = soft_cross_entropy if labels.ndim == scores.ndim else cross_entropy
        return loss(scores, labels, weights, label_smoothing=self.label_smoothing)[0]


@frozen
class MaskedDistilLoss(MaskedLoss):
    """Sum (1 − w) times a `MaskedLoss` and w times what differs from a teacher's distribution over masked tokens.

    A batch has the teacher's scores of its masked tokens as `teacher["logits"]` [B, M, V]; one without, as held-out
    ones are, is a `MaskedLoss`'s. DistilBERT has this, with w = 5/7, and a `CosineEmbedding` beside (Sanh et al. 2019,
    https://arxiv.org/abs/1910.01108).
    """

    weight: float = 5 / 7
    """w."""
    temperature: float = 2.0
    """What both scores are divided by; the divergence is multiplied by its square."""

    asked: ClassVar[Asked] = LOGITS

    def __post_init__(self):
        super().__post_init__()
        _check(self.weight, self.temperature)

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum both losses over a batch."""
        if "teacher" not in batch:
            return super().__call__(model, batch, key=key)
        model = own_tables(model)
        hidden = self.hidden(model, batch, key)
        loss, metrics = super().__call__(KnownStates(model, hidden), batch)
        scores = model.output(looked_at(hidden, batch)).logits()
        teacher = jax.lax.stop_gradient(batch["teacher"]["logits"])
        soft = Mean(soft_targets(scores, teacher, batch["weights"], self.temperature), metrics["count"])
        terms = tuple(each.scaled(1 - self.weight) for each in terms_of(metrics.pop("loss", loss), metrics["count"]))
        return summed((*terms, soft.scaled(self.weight)), **metrics, soft_loss=soft)


def soft_targets(
    scores: Float[Array, "*B E"], teacher: Float[Array, "*B _"], weights: Float[Array, "*B"], temperature: float
) -> Float[Array, ""]:
    """Sum the Kullback-Leibler divergence from a teacher's distribution, times the squared temperature that both have.

    In float32 or more (Hinton et al. 2015, https://arxiv.org/abs/1503.02531).

    Raises:
      ValueError: scores of other classes.
    """
    if scores.shape != teacher.shape:
        raise ValueError(f"a teacher must score the classes of the student, {scores.shape}, got {teacher.shape}")
    scores, teacher = widen(scores) / temperature, widen(teacher) / temperature
    answer = jax.nn.softmax(teacher)
    entropy = -jnp.sum(jnp.sum(answer * jax.nn.log_softmax(teacher), axis=-1) * weights)
    return temperature**2 * (soft_cross_entropy(scores, answer, weights)[0] - entropy)


def _check(weight: float, temperature: float) -> None:
    if not 0 <= weight <= 1 or temperature <= 0:
        raise ValueError(f"weight must be in [0, 1], temperature above 0, got {weight} and {temperature}")
