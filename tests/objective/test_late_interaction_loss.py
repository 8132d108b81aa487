import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import LateInteractionLoss

pytestmark = pytest.mark.proves("late interaction", "train, its loss by the formula")

draw = np.random.default_rng(0)
VECTORS = draw.normal(size=(4, 3, 5, 6)).astype(np.float32)
COUNTS = draw.random((4, 3, 5)) < 0.7
COUNTS[..., 0] = True
COUNTS[3] = False
BATCH = {"inputs": {"x": VECTORS}, "labels": COUNTS, "weights": np.array([1, 1, 1, 0], np.float32)}


class Given:
    def hidden_states(self, x, key=None):
        return jnp.asarray(x)

    def output(self, hidden, key=None):
        return hidden


def expected(scale):
    unit = VECTORS / np.linalg.norm(VECTORS, axis=-1, keepdims=True)
    loss = right = 0.0
    for query in range(3):
        scores = {}
        for row in range(3):
            for column in (1, 2):
                scores[row, column] = sum(
                    max(unit[query, 0, t] @ unit[row, column, s] for s in range(5) if COUNTS[row, column, s])
                    for t in range(5) if COUNTS[query, 0, t]
                )  # fmt: skip
        own = scores[query, 1]
        loss += np.log(sum(np.exp(scale * each) for each in scores.values())) - scale * own
        right += own == max(scores.values())
    return loss, right


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_loss_is_the_cross_entropy_of_sums_of_largest_cosines(scale):
    total, metrics = LateInteractionLoss(scale=scale)(Given(), BATCH)
    loss, right = expected(scale)
    np.testing.assert_allclose(total, loss, rtol=1e-5)
    assert (metrics["count"], metrics["accuracy"]) == (3, right)


@pytest.mark.rotates
def test_an_empty_row_changes_no_gradient():
    def loss(x, rows):
        batch = jax.tree.map(lambda leaf: leaf[:rows], BATCH)
        return LateInteractionLoss()(Given(), {**batch, "inputs": {"x": x[:rows]}})[0]

    whole, part = (jax.grad(loss)(jnp.asarray(VECTORS), rows) for rows in (4, 3))
    np.testing.assert_allclose(whole, part, atol=1e-6)
    assert np.abs(part[:3, 0]).sum() > 0


@pytest.mark.rotates
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="scale must be positive, got 0"):
        LateInteractionLoss(scale=0)
    with pytest.raises(ValueError, match=r"at least 2 texts.*vectors \(4, 1, 5, 6\)"):
        LateInteractionLoss()(Given(), {**BATCH, "inputs": {"x": VECTORS[:, :1]}, "labels": COUNTS[:, :1]})
