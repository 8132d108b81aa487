"""The loss of a set: who is matched with whom, what does not count, and what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.models.vision.detr import DetrOutput
from flax_transformer.objective import DetectionLoss

B, L, Q, E, M = 3, 2, 6, 4, 3


class Answers:
    """A model whose answers are known."""

    def __init__(self, logits, boxes):
        self.answers = DetrOutput(logits, boxes)

    def hidden_states(self, *, key=None):
        return None

    def output(self, hidden, *, key=None):
        return self.answers


def drawn(seed=0):
    draw = np.random.default_rng(seed)
    logits, boxes = draw.normal(size=(B, L, Q, E + 1)), draw.uniform(0.2, 0.8, (B, L, Q, 4))
    labels = {
        "classes": jnp.asarray(draw.integers(0, E, (B, M)), jnp.int32),
        "boxes": jnp.asarray(draw.uniform(0.1, 0.6, (B, M, 4)), jnp.float32),
        "weights": jnp.array([[1.0, 1, 1], [1, 0, 0], [0, 0, 0]]),
    }
    batch = {"inputs": {}, "labels": labels, "weights": jnp.ones(B)}
    return jnp.asarray(logits, jnp.float32), jnp.asarray(boxes, jnp.float32), batch


def mean(logits, boxes, batch, **options):
    total, metrics = DetectionLoss(**options)(Answers(logits, boxes), batch)
    return total / jnp.maximum(metrics["count"], 1)


def changed(batch, **labels):
    return {**batch, "labels": {**batch["labels"], **labels}}


@pytest.mark.rotates
def test_objects_are_matched_so_that_all_together_cost_least():
    logits, boxes, batch = drawn()
    loss, labels = DetectionLoss(), batch["labels"]
    found = loss.match(logits[:, 0], boxes[:, 0], labels)
    likely = jax.nn.softmax(logits[:, 0])

    def cost(row, queries):
        """Of the first row of the three, whose objects are all real."""
        from flax_transformer.ops.boxes import generalised_overlap, to_corners

        mine, real = boxes[row, 0, jnp.array(queries)], labels["boxes"][row]
        odds = sum(likely[row, q, c] for q, c in zip(queries, labels["classes"][row], strict=True))
        shared = generalised_overlap(to_corners(mine), to_corners(real)).sum()
        return float(5 * jnp.abs(mine - real).sum() - odds - 2 * shared)

    best = min(itertools.permutations(range(Q), M), key=lambda queries: cost(0, list(queries)))
    assert tuple(found[0].tolist()) == best
    assert all(len(set(row.tolist())) == M for row in found)


@pytest.mark.rotates
def test_right_answers_cost_next_to_nothing_and_wrong_ones_more():
    _, _, batch = drawn()
    classes, real, weights = (batch["labels"][name] for name in ("classes", "boxes", "weights"))
    classes = jnp.where(weights > 0, classes, E)
    order = jnp.array([4, 0, 3])
    sure = jnp.full((B, Q), E).at[:, order].set(classes)
    logits = 30 * jax.nn.one_hot(sure, E + 1)[:, None].repeat(L, 1)
    boxes = jnp.full((B, Q, 4), 0.5).at[:, order].set(real)[:, None].repeat(L, 1)
    assert mean(logits, boxes, batch) < 1e-5
    assert mean(logits, boxes * 0.9, batch) > 0.1
    assert mean(jnp.roll(logits, 1, axis=-1), boxes, batch) > 1


@pytest.mark.rotates
def test_objects_have_no_order():
    logits, boxes, batch = drawn()
    order = jnp.array([2, 0, 1])
    turned = changed(batch, **{name: value[:, order] for name, value in batch["labels"].items()})
    np.testing.assert_allclose(mean(logits, boxes, turned), mean(logits, boxes, batch), rtol=1e-6)


@pytest.mark.slow
def test_places_without_objects_and_pictures_of_weight_zero_count_nothing():
    logits, boxes, batch = drawn()
    expected = mean(logits, boxes, batch)
    labels = batch["labels"]
    there = labels["weights"][..., None] > 0
    other = changed(batch, boxes=jnp.where(there, labels["boxes"], 9.0), classes=labels["classes"] * there[..., 0])
    np.testing.assert_allclose(mean(logits, boxes, other), expected, rtol=1e-6)
    more = jax.tree.map(lambda x: jnp.concatenate([x, jnp.ones_like(x[:1])]), batch)
    more["weights"] = more["weights"].at[-1].set(0)
    wide = (jnp.concatenate([x, x[:1]]) for x in (logits, boxes))
    np.testing.assert_allclose(mean(*wide, more), expected, rtol=1e-6)


@pytest.mark.rotates
def test_every_layer_counts_or_the_last_alone():
    logits, boxes, batch = drawn()
    parts = [mean(logits[:, i : i + 1], boxes[:, i : i + 1], batch) for i in range(L)]
    np.testing.assert_allclose(mean(logits, boxes, batch), sum(parts), rtol=1e-6)
    np.testing.assert_allclose(mean(logits, boxes, batch, auxiliary=False), parts[-1], rtol=1e-6)


@pytest.mark.rotates
def test_gradients_are_finite_without_any_object():
    logits, boxes, batch = drawn()
    empty = changed(batch, weights=jnp.zeros((B, M)), boxes=jnp.zeros((B, M, 4)))
    slopes = jax.jit(jax.grad(mean, argnums=(0, 1)))(logits, boxes, empty)
    assert all(np.isfinite(slope).all() for slope in slopes)
    assert np.abs(slopes[0]).max() > 0
    assert np.abs(slopes[1]).max() == 0


def test_more_objects_than_queries_are_refused():
    logits, boxes, batch = drawn()
    with pytest.raises(ValueError, match="must not have more objects than the model has queries, got 3, 2 queries"):
        mean(logits[:, :, :2], boxes[:, :, :2], batch)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"box_weight": -1.0}, "box_weight must not be negative, got -1.0"),
        ({"class_cost": 0.0, "box_cost": 0.0, "overlap_cost": 0.0}, "must be positive, got 0 for all"),
    ],
)
def test_options_that_cannot_work_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        DetectionLoss(**options)


@pytest.mark.rotates
@pytest.mark.parametrize(
    "wrong",
    [
        {"classes": -1},
        {"classes": E},
        {"classes": 9},
        {"boxes": [200.0, 200, 50, 50]},
        {"boxes": [0.5, 0.5, -0.2, 0.2]},
    ],
)
def test_an_object_that_is_none_is_not_learned_in_silence(wrong):
    logits, boxes, batch = drawn()
    (name, value), labels = next(iter(wrong.items())), batch["labels"]
    assert np.isnan(mean(logits, boxes, changed(batch, **{name: labels[name].at[0, 1].set(jnp.asarray(value))})))
    assert np.isfinite(mean(logits, boxes, changed(batch, **{name: labels[name].at[1, 1].set(jnp.asarray(value))})))
