"""Losses of sentence encoders and their gradients against those of sentence-transformers, on the same vectors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import (
    CoSENTLoss,
    CosineSimilarityLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
    TripletLoss,
)

torch = pytest.importorskip("torch")
losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
dot_score = pytest.importorskip("sentence_transformers.util").dot_score
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.proves("sentence", "train", "losses and gradients of sentence-transformers"),
]

B, E = 6, 8
SYMMETRIC = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
METRIC = losses.TripletDistanceMetric
CASES = {
    "ranking": (MultipleNegativesRankingLoss(), 2, lambda: losses.MultipleNegativesRankingLoss(None)),
    "ranking with negatives": (
        MultipleNegativesRankingLoss(scale=7.0), 4, lambda: losses.MultipleNegativesRankingLoss(None, scale=7.0)
    ),
    "ranking both ways": (
        MultipleNegativesRankingLoss(both_ways=True), 3,
        lambda: losses.MultipleNegativesRankingLoss(None, **SYMMETRIC),
    ),
    "ranking by inner products": (
        MultipleNegativesRankingLoss(similarity="dot", scale=1.0), 3,
        lambda: losses.MultipleNegativesRankingLoss(None, scale=1.0, similarity_fct=dot_score),
    ),
    "triplet": (TripletLoss(margin=1.0), 3, lambda: losses.TripletLoss(None, triplet_margin=1.0)),
    "triplet by cosine": (
        TripletLoss(margin=0.5, distance="cosine"), 3, lambda: losses.TripletLoss(None, METRIC.COSINE, 0.5)
    ),
    "triplet by sums": (
        TripletLoss(margin=2.0, distance="manhattan"), 3, lambda: losses.TripletLoss(None, METRIC.MANHATTAN, 2.0)
    ),
    "cosine": (CosineSimilarityLoss(), 2, lambda: losses.CosineSimilarityLoss(None)),
    "CoSENT": (CoSENTLoss(), 2, lambda: losses.CoSENTLoss(None)),
}  # fmt: skip
LABELS = np.array([0.9, 0.1, 0.5, 0.5, 0.3, 0.8], np.float32)


class Known:
    """A model whose vectors are given."""

    def __init__(self, vectors):
        self.vectors = vectors

    def hidden_states(self, key=None):
        return self.vectors

    def output(self, hidden, key=None):
        return hidden


def ours(objective, vectors):
    def loss(vectors):
        batch = {"inputs": {}, "labels": jnp.asarray(LABELS), "weights": jnp.ones(B)}
        total, metrics = objective(Known(vectors), batch)
        return total / metrics["count"]

    return jax.value_and_grad(loss)(jnp.asarray(vectors))


def draw(columns):
    return np.random.default_rng(columns).normal(size=(B, columns, E)).astype(np.float32)


@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_the_librarys(name):
    objective, columns, make = CASES[name]
    vectors = torch.tensor(draw(columns), requires_grad=True)
    theirs = make().compute_loss_from_embeddings([vectors[:, i] for i in range(columns)], torch.tensor(LABELS))
    theirs.backward()
    value, gradient = ours(objective, draw(columns))
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, vectors.grad.numpy(), atol=1e-5)


@pytest.mark.parametrize("name", ["ranking", "triplet", "CoSENT"])
def test_matryoshka_is_the_librarys(name):
    objective, columns, make = CASES[name]

    class Model(torch.nn.Module):
        def forward(self, features):
            return {"sentence_embedding": features["vectors"]}

        def get_embedding_dimension(self):
            return E

    inner = make()
    inner.model = Model()
    loss = losses.MatryoshkaLoss(inner.model, inner, [8, 4, 2], [1.0, 0.5, 2.0])
    vectors = torch.tensor(draw(columns), requires_grad=True)
    theirs = loss([{"vectors": vectors[:, i]} for i in range(columns)], torch.tensor(LABELS))
    theirs.backward()
    wrapped = MatryoshkaLoss(of=objective, widths=(8, 4, 2), weights=(1.0, 0.5, 2.0))
    value, gradient = ours(wrapped, draw(columns))
    np.testing.assert_allclose(value, theirs.item(), rtol=1e-5)
    np.testing.assert_allclose(gradient, vectors.grad.numpy(), atol=1e-5)
