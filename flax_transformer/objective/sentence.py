"""Losses of sentence encoders: rows of texts, of which some belong together, by the vectors that the model gives.

A row has several columns, [B, C, T] tokens: a text, one that belongs to it, and perhaps others that do not.

Axes: B rows, C columns, E width of vectors.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flax_transformer.frozen import frozen
from flax_transformer.objective.contrast import from_negatives, present_pairs, sum_cross_entropy
from flax_transformer.objective.objective import Batch, Loss, Objective, ObjectiveWrapper
from flax_transformer.ops import widen
from flax_transformer.ops.norm import unit
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain

Vectors = Float[Array, "B C E"]


def embed_columns(model: Any, batch: Batch, key: jax.Array | None) -> Float[Array, "B C *T E"]:
    """Embed every text of a batch, or every token of it where the model does so, in float32 or more."""
    keys = split_keys(key)
    vectors = widen(model.output(model.hidden_states(**batch["inputs"], key=keys[0]), key=keys[1]))
    return constrain(vectors, "batch", *(None,) * (vectors.ndim - 1))


def _columns(vectors: Vectors, least: int, most: int | None, loss: Any) -> None:
    """Demand rows of so many texts."""
    count = vectors.shape[1] if vectors.ndim == 3 else None
    if count is None or count < least or (most is not None and count > most):
        rule = f"{least}" if most == least else f"at least {least}"
        raise ValueError(
            f"{type(loss).__name__} takes rows of {rule} texts, tokens [B, C, T], got vectors {vectors.shape}"
        )


@frozen
class MultipleNegativesRankingLoss(Objective):
    """Sum over rows the cross-entropy of finding the second text of each among those of the batch, and among further
    ones, which belong to none (Henderson et al. 2017, https://arxiv.org/abs/1705.00652; van den Oord et al. 2018).

    Cosines or inner products times `scale` are logits. On a mesh the texts are those of all devices. A text with the
    tokens of a row's second is no negative of it.
    """

    scale: float = 20.0
    """What cosines are multiplied by: one over the temperature."""
    similarity: Literal["cosine", "dot"] = "cosine"
    """How vectors are compared; dot: by their inner product, as DPR does, with a scale of 1."""
    both_ways: bool = False
    """Whether the first text is to be found among those of the batch by the second too; the mean of both counts."""

    separable: ClassVar[bool] = False
    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}

    def __post_init__(self):
        if not self.scale > 0 or self.similarity not in ("cosine", "dot"):
            raise ValueError(
                f"scale must be positive and similarity cosine or dot, got {self.scale} and {self.similarity!r}"
            )

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch; `accuracy` counts texts of which the second scores above all others."""
        return self.over(embed_columns(model, batch, key), batch)

    def over(self, vectors: Vectors, batch: Batch) -> Loss:
        """Sum the loss over rows, from their vectors."""
        _columns(vectors, 2, None, self)
        vectors = unit(vectors) if self.similarity == "cosine" else vectors
        first, others = vectors[:, 0], jnp.swapaxes(vectors[:, 1:], 0, 1).reshape(-1, vectors.shape[-1])
        scores = constrain(self.scale * (first @ others.T), "batch", None)
        total, metrics = from_negatives(scores, batch)
        if self.both_ways:
            present = present_pairs(batch, scores)
            total = (total + sum_cross_entropy(scores[:, : len(first)].T, present, present)) / 2
        return total, metrics


@frozen
class TripletLoss(Objective):
    """Sum over rows by how much the second text is not nearer to the first than the third is, by a margin (Schroff et
    al. 2015, https://arxiv.org/abs/1503.03832)."""

    margin: float = 5.0
    """By how much it must be nearer."""
    distance: Literal["euclidean", "manhattan", "cosine"] = "euclidean"
    """How far vectors are from each other; cosine: one less the cosine."""

    better: ClassVar[Mapping[str, str]] = {"loss": "lower", "accuracy": "higher"}

    def __post_init__(self):
        if not self.margin >= 0 or self.distance not in ("euclidean", "manhattan", "cosine"):
            raise ValueError(
                "margin must be at least 0 and distance euclidean, manhattan or cosine, got "
                f"{self.margin} and {self.distance!r}"
            )

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch; `accuracy` counts rows whose second text is nearer than the third."""
        return self.over(embed_columns(model, batch, key), batch)

    def over(self, vectors: Vectors, batch: Batch) -> Loss:
        """Sum the loss over rows, from their vectors."""
        _columns(vectors, 3, 3, self)
        present = present_pairs(batch, vectors)
        near, far = (self._between(vectors[:, 0], vectors[:, i]) for i in (1, 2))
        losses = jnp.maximum(near - far + self.margin, 0.0)
        return jnp.sum(jnp.where(present, losses, 0.0)), {
            "count": _count(present), "accuracy": _count(present & (near < far)),
        }  # fmt: skip

    def _between(self, a: Float[Array, "B E"], b: Float[Array, "B E"]) -> Float[Array, " B"]:
        if self.distance == "cosine":
            return 1 - jnp.sum(unit(a) * unit(b), axis=-1)
        if self.distance == "manhattan":
            return jnp.sum(jnp.abs(a - b), axis=-1)
        return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(a - b), axis=-1), 1e-24))


@frozen
class CosineSimilarityLoss(Objective):
    """Sum over rows of two texts the squared difference of their cosine and a label (Reimers & Gurevych 2019,
    https://arxiv.org/abs/1908.10084)."""

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over a batch, whose `labels` [B] say how alike the texts of each row are."""
        return self.over(embed_columns(model, batch, key), batch)

    def over(self, vectors: Vectors, batch: Batch) -> Loss:
        """Sum the loss over rows, from their vectors."""
        _columns(vectors, 2, 2, self)
        present = present_pairs(batch, vectors)
        errors = jnp.square(_cosines(vectors) - widen(batch["labels"]))
        return jnp.sum(jnp.where(present, errors, 0.0)), {"count": _count(present)}


@frozen
class CoSENTLoss(Objective):
    """Compute by how much the cosines of rows of two texts are not in the order of their labels: log(1 + Σ exp(scale ·
    (cosine of j − cosine of i))) over all i, j of the batch of which i has the higher label (Huang et al. 2024,
    https://doi.org/10.1109/TASLP.2024.3402087).

    What is reported as the loss is this number, not one a row.
    """

    scale: float = 20.0
    """What differences of cosines are multiplied by."""

    separable: ClassVar[bool] = False

    def __post_init__(self):
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, got {self.scale}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Compute the loss of a batch, whose `labels` [B] say how alike the texts of each row are, times its rows."""
        return self.over(embed_columns(model, batch, key), batch)

    def over(self, vectors: Vectors, batch: Batch) -> Loss:
        """Compute the loss times the rows, from their vectors."""
        _columns(vectors, 2, 2, self)
        present, labels = present_pairs(batch, vectors), widen(batch["labels"])
        cosines = self.scale * _cosines(vectors)
        counted = present[:, None] & present & (labels[:, None] > labels)
        differences = jnp.where(counted, cosines[None] - cosines[:, None], -jnp.inf)
        loss = jax.nn.logsumexp(jnp.append(differences.ravel(), 0.0))
        return loss * _count(present), {"count": _count(present)}


@frozen
class MatryoshkaLoss(ObjectiveWrapper):
    """Minimise a loss of sentence encoders over the first numbers of each vector too, so that vectors may be cut
    (Kusupati et al. 2022, https://arxiv.org/abs/2205.13147); what is cut has length 1 again."""

    widths: tuple[int, ...] = (64, 32, 16)
    """How many numbers are kept, each in its turn."""
    weights: tuple[float, ...] = ()
    """What the losses are multiplied by; by default 1."""

    def __post_init__(self):
        if not hasattr(self.of, "over"):
            raise ValueError(f"of must be a loss of vectors of sentences, got a {type(self.of).__name__}")
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"widths must be at least one, each at least 1, got {self.widths}")
        if self.weights and len(self.weights) != len(self.widths):
            raise ValueError(f"weights must be as many as widths, got {self.weights} for {self.widths}")

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the losses over a batch; what else is reported is of whole vectors."""
        return self.over(embed_columns(model, batch, key), batch)

    def over(self, vectors: Vectors, batch: Batch) -> Loss:
        """Sum the losses over rows, from their vectors."""
        if max(self.widths) > vectors.shape[-1]:
            raise ValueError(f"widths must be at most that of vectors, {vectors.shape[-1]}, got {self.widths}")
        weights = self.weights or (1.0,) * len(self.widths)
        losses = [self.of.over(unit(vectors[..., :width]), batch)[0] for width in self.widths]
        total = sum(weight * loss for weight, loss in zip(weights, losses, strict=True))
        return total, self.of.over(vectors, batch)[1]

    def held_out(self, model: Any, batch: Batch) -> dict[str, Any]:
        """Sum what is reported of a batch, as in training."""
        return Objective.held_out(self, model, batch)


def _cosines(vectors: Vectors) -> Float[Array, " B"]:
    first, second = unit(vectors[:, 0]), unit(vectors[:, 1])
    return jnp.sum(first * second, axis=-1)


def _count(rows: Bool[Array, " B"]) -> Float[Array, ""]:
    return jnp.sum(rows, dtype=jnp.float32)
