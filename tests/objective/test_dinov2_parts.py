"""What DINOv2 has beside DINO and iBOT: Sinkhorn-Knopp centring and KoLeo, written as its code has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import DINOLoss, IBOTLoss, Views
from flax_transformer.ops.koleo import koleo
from flax_transformer.ops.sinkhorn import sinkhorn
from tests.contract.objectives import case

DRAW = np.random.default_rng(0)
REAL = np.array([True, True, False, True, True, True, False])


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def by_hand(scores, steps=3):
    """Normalise columns and rows three times in turn, as dinov2/loss/dino_clstoken_loss.py does."""
    q = np.exp(scores).T
    q = q / q.sum()
    for _ in range(steps):
        q = q / q.sum(1, keepdims=True) / len(q)
        q = q / q.sum(0, keepdims=True) / q.shape[1]
    return (q * q.shape[1]).T


def nearest(x):
    """-log of the distance to the nearest other vector of length 1, one by one (dinov2/loss/koleo_loss.py)."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    losses = []
    for i, one in enumerate(x):
        others = np.delete(x, i, axis=0)
        losses.append(-np.log(np.linalg.norm(one - others[np.argmax(others @ one)] + 1e-8) + 1e-8))
    return np.array(losses)


@pytest.mark.proves("learning without labels", "Sinkhorn-Knopp and KoLeo of DINOv2 beside its code by hand")
def test_rows_are_assigned_as_in_dinov2():
    scores = DRAW.normal(size=(7, 4)) * 3
    found = np.asarray(sinkhorn(jnp.float32(scores), jnp.array(REAL)))
    np.testing.assert_allclose(found[REAL], by_hand(scores[REAL]), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found[REAL].sum(1), 1, rtol=1e-5)
    many = np.asarray(sinkhorn(jnp.float32(scores), jnp.array(REAL), steps=200))
    np.testing.assert_allclose(many[REAL].sum(0), REAL.sum() / 4, rtol=1e-3)


def test_scores_far_apart_do_not_vanish():
    """Of exp(200) and exp(-200) a product of floats would be 0 or infinite."""
    scores = jnp.array([[200.0, -200.0, 0.0], [200.0, -200.0, 0.0]])
    found = sinkhorn(scores, jnp.array([True, True]), steps=50)
    np.testing.assert_allclose(found, np.full((2, 3), 1 / 3), rtol=1e-4)
    assert np.isfinite(sinkhorn(scores, jnp.array([False, False]))).all()


def test_vectors_are_kept_apart_as_in_dinov2():
    x = DRAW.normal(size=(7, 3))
    found = np.asarray(koleo(jnp.float32(x), jnp.array(REAL)))
    np.testing.assert_allclose(found[REAL], nearest(x[REAL]), rtol=1e-4, atol=1e-5)
    assert (found[~REAL] == 0).all()
    assert (np.asarray(koleo(jnp.float32(x), jnp.arange(7) == 2)) == 0).all()


def test_descending_koleo_moves_the_nearest_apart():
    x, real = jnp.float32(DRAW.normal(size=(7, 3))), jnp.ones(7, bool)
    moved = x - 0.01 * jax.grad(lambda x: koleo(x, real).sum())(x)
    assert koleo(moved, real).sum() < koleo(x, real).sum()


def test_the_teacher_answers_by_the_batch():
    """The scores of both large crops of all images are assigned together; the centre is not asked."""
    loss, scores = DINOLoss(centring="sinkhorn", teacher_temperature=0.1), DRAW.normal(size=(7, 2, 4))
    student = DRAW.normal(size=(7, 2, 4))
    total, _ = loss.over(
        jnp.float32(student), jnp.float32(scores), jnp.full(4, 9.0), jnp.zeros((), jnp.int32), jnp.array(REAL)
    )
    answer = by_hand(scores[REAL].reshape(-1, 4) / 0.1).reshape(-1, 2, 4)
    predicted = np.log(softmax(student[REAL] / 0.1))
    expected = -(answer[:, 0] * predicted[:, 1] + answer[:, 1] * predicted[:, 0]).sum() / 2
    np.testing.assert_allclose(total, expected, rtol=1e-4)


def test_masked_patches_alone_are_assigned():
    loss, scores = IBOTLoss(centring="sinkhorn"), DRAW.normal(size=(7, 2, 5, 4)) * 0.1
    masks = DRAW.random((7, 2, 5)) < 0.5
    real = jnp.array(REAL)[:, None, None]
    found = loss.answer(jnp.float32(scores), jnp.zeros(4), jnp.zeros((), jnp.int32), jnp.array(masks) & real)
    some = masks & REAL[:, None, None]
    np.testing.assert_allclose(np.asarray(found)[some], by_hand(scores[some] / 0.04), rtol=1e-4, atol=1e-6)


@pytest.mark.rotates
def test_koleo_is_added_for_each_large_crop():
    objective, model, batch = case("DINOLoss by Sinkhorn-Knopp")
    batch = jax.tree.map(jnp.asarray, batch)
    carried, key = objective.carry.begin(model, jax.random.key(0)), jax.random.key(1)
    with_it, told, _ = objective(model, batch, carried=carried, key=key)
    without, _, _ = DINOLoss(views=Views(), centring="sinkhorn")(model, batch, carried=carried, key=key)
    np.testing.assert_allclose(with_it - without, 0.1 * told["koleo"], rtol=1e-4)
    assert not objective.separable
    assert DINOLoss().separable


def test_a_negative_weight_is_refused():
    with pytest.raises(ValueError, match=r"koleo must not be negative, got -0\.1"):
        DINOLoss(koleo=-0.1)
