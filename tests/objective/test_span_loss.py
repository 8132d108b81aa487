from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import ChoiceLoss, SpanLoss

pytestmark = pytest.mark.proves("answers", "losses of spans and of choices, against NumPy")


def _model(scores):
    return SimpleNamespace(
        hidden_states=lambda key=None, **inputs: inputs["tokens"], output=lambda hidden, key=None: scores
    )


def _log_softmax(row):
    return row - row.max() - np.log(np.exp(row - row.max()).sum())


def test_a_span_costs_the_mean_of_its_ends():
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(3, 6, 2)).astype(np.float32)
    allowed = np.array([[1, 0, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0]], bool)
    labels = np.array([[2, 3], [0, 0], [0, 0]], np.int32)
    weights = np.array([1, 1, 0], np.float32)
    batch = {"inputs": {"tokens": np.zeros((3, 6), np.int32)}, "labels": labels, "allowed": allowed, "weights": weights}
    loss, metrics = SpanLoss()(_model(jnp.asarray(scores)), jax.tree.map(jnp.asarray, batch))
    expected, right = 0.0, 0
    for row in range(2):
        places = np.flatnonzero(allowed[row])
        for end in range(2):
            own = _log_softmax(scores[row, places, end].astype(np.float64))
            expected -= own[list(places).index(labels[row, end])] / 2
        best = [places[scores[row, places, end].argmax()] for end in range(2)]
        right += best == labels[row].tolist()
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert (float(metrics["count"]), float(metrics["accuracy"])) == (2, right)


def test_choices_that_a_row_has_not_change_nothing():
    scores = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 1)), jnp.float32)
    lengths = np.array([[3, 2, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    inputs = {"tokens": np.zeros((3, 4, 5), np.int32), "lengths": lengths}
    batch = {"inputs": inputs, "labels": np.array([1, 3, 0]), "weights": np.array([1, 1, 0], np.float32)}
    batch = jax.tree.map(jnp.asarray, batch)
    loss, metrics = ChoiceLoss()(_model(scores), batch)
    rows = np.asarray(scores, np.float64)[..., 0]
    expected = -_log_softmax(rows[0, :2])[1] - _log_softmax(rows[1])[3]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert float(metrics["accuracy"]) == (rows[0, :2].argmax() == 1) + (rows[1].argmax() == 3)
    gradient = jax.grad(lambda s: ChoiceLoss()(_model(s), batch)[0])(scores)
    assert not np.asarray(gradient)[0, 2:].any()
    assert not np.asarray(gradient)[2].any()
