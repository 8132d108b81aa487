"""The loss of masks: right answers, what is refused, images that count nothing, and a Mask2Former that learns by it."""

from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flax_transformer import hub
from flax_transformer.objective import MaskSetLoss

pytestmark = pytest.mark.proves("mask2former", "train", "its loss, by which a small one learns")

GOLDEN = Path(__file__).parent.parent / "hub" / "golden" / "mask2former"
SEGMENTS = jnp.array([[[0, 0, 1, 1], [0, 0, 1, -1]], [[-1, 0, 0, 0], [-1, 0, 0, 0]]], jnp.int32)
LABELS = {"segments": SEGMENTS, "classes": jnp.array([[2, 0], [1, 5]]), "weights": jnp.array([[1.0, 1.0], [1.0, 0.0]])}
BATCH = {"inputs": {}, "labels": LABELS, "weights": jnp.ones(2)}


def right(sure=30.0):
    """Answer each segment by its own query, the second image's second query and all third ones by none."""
    classes = jnp.array([[2, 0, 3], [1, 3, 3]])
    masks = jnp.stack([SEGMENTS == 0, SEGMENTS == 1, SEGMENTS == 7], axis=1)
    return sure * jax.nn.one_hot(classes, 4)[:, None], (sure * (2.0 * masks - 1))[:, None]


def cost(logits, masks, batch=BATCH, key=None, **options):
    answers = SimpleNamespace(logits=logits, masks=masks)
    model = SimpleNamespace(hidden_states=lambda key=None: None, output=lambda hidden, key=None: answers)
    total, metrics = MaskSetLoss(**options)(model, batch, key=key)
    return float(total / jnp.maximum(metrics["count"], 1)), metrics


@pytest.mark.rotates
@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_right_answers_cost_next_to_nothing_in_any_order(order):
    logits, masks = (each[:, :, jnp.array(order)] for each in right())
    found, metrics = cost(logits, masks)
    assert metrics["count"] == 3
    assert found < 1e-5
    assert cost(logits, -masks)[0] > 10
    assert cost(jnp.roll(logits, 1, -1), masks)[0] > 10


@pytest.mark.rotates
def test_images_of_weight_zero_count_nothing():
    logits, masks = right(1.0)
    one = cost(logits, masks, {**BATCH, "weights": jnp.array([1.0, 0.0])})
    other = cost(logits[:1], masks[:1], jax.tree.map(lambda x: x[:1], BATCH))
    assert one[1]["count"] == other[1]["count"] == 2
    np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
    assert np.isfinite(cost(logits, masks, {**BATCH, "weights": jnp.zeros(2)})[0])


@pytest.mark.rotates
def test_a_segment_of_no_class_makes_the_loss_nan():
    for classes in ([[2, 3], [1, 0]], [[-1, 0], [1, 0]]):
        assert np.isnan(cost(*right(), {**BATCH, "labels": {**LABELS, "classes": jnp.array(classes)}})[0])


def test_more_segments_than_queries_are_refused():
    logits, masks = (each[:, :, :1] for each in right())
    with pytest.raises(ValueError, match="more segments than the model has queries, got 2, 1 queries"):
        cost(logits, masks)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"mask_weight": -1.0}, r"mask_weight must not be negative, got -1\.0"),
        ({"class_weight": 0.0, "mask_weight": 0.0, "dice_weight": 0.0}, "must be positive, got 0 for all"),
        ({"points": 0}, "points and oversample must be at least 1, importance at most 1, got 0, 3.0, 0.75"),
        ({"oversample": 0.5}, "got 12544, 0.5, 0.75"),
        ({"importance": 1.5}, "got 12544, 3.0, 1.5"),
    ],
)
def test_options_that_cannot_work_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        MaskSetLoss(**options)


@pytest.mark.rotates
def test_a_mask2former_learns_by_it():
    model = hub.load(GOLDEN).model
    with np.load(GOLDEN / "expected.npz") as arrays:
        images = jnp.asarray(arrays["in_pixel_values"].transpose(0, 2, 3, 1))
    B, H, W, _ = images.shape
    left = jnp.broadcast_to(jnp.arange(W) >= W // 3, (B, H, W)).astype(jnp.int32)
    labels = {"segments": left, "classes": jnp.tile(jnp.array([0, 1]), (B, 1)), "weights": jnp.ones((B, 2))}
    batch, objective = {"inputs": {"images": images}, "labels": labels, "weights": jnp.ones(B)}, MaskSetLoss(points=128)
    optimizer = optax.adam(3e-3)

    def loss(model, key):
        total, metrics = objective(model, batch, key=key)
        return total / metrics["count"]

    @jax.jit
    def step(model, state, key):
        value, slopes = jax.value_and_grad(loss)(model, key)
        updates, state = optimizer.update(slopes, state, model)
        return optax.apply_updates(model, updates), state, value

    before, state = float(jax.jit(loss)(model, None)), optimizer.init(model)
    for i in range(30):
        model, state, _ = step(model, state, jax.random.key(i))
    assert float(jax.jit(loss)(model, None)) < 0.7 * before
