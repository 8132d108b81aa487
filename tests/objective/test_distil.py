"""Learning from a teacher: losses by hand, heads that learn from one side each, a teacher that learns nothing."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.objective import DistilLoss, LabelLoss

RNG = np.random.default_rng(0)
B, E = 4, 3
TEACHER, FIRST, SECOND = (jnp.asarray(RNG.standard_normal((B, E)) * 2, jnp.float32) for _ in range(3))
LABELS, WEIGHTS = jnp.array([0, 2, 1, 1]), jnp.array([1.0, 1.0, 0.0, 1.0])
BATCH = {"inputs": {}, "labels": LABELS, "weights": WEIGHTS, "teacher": {"logits": TEACHER}}


def one(scores=FIRST):
    return SimpleNamespace(hidden_states=lambda key: scores, output=lambda hidden, key: hidden)


def two(first=FIRST, second=SECOND):
    hidden = jnp.stack([first, second])
    return SimpleNamespace(
        hidden_states=lambda key: hidden, output=lambda h, key: h.mean(0), both=lambda hidden: (hidden[0], hidden[1])
    )


def log_softmax(scores):
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def entropy_of(scores, classes):
    return -(WEIGHTS * log_softmax(scores)[np.arange(B), classes]).sum()


@pytest.mark.parametrize("model", [one, two])
def test_hard_and_soft_losses_are_those_written_out(model):
    scores = FIRST if model is one else SECOND
    told = entropy_of(FIRST, LABELS)
    loss, metrics = DistilLoss(weight=0.3)(model(), BATCH)
    np.testing.assert_allclose(loss, 0.7 * told + 0.3 * entropy_of(scores, TEACHER.argmax(-1)), rtol=1e-6)
    assert metrics["count"] == 3
    ours, theirs = log_softmax(scores / 2), log_softmax(TEACHER / 2)
    divergence = (WEIGHTS * (np.exp(theirs) * (theirs - ours)).sum(-1)).sum()
    loss, _ = DistilLoss(kind="soft", weight=0.3, temperature=2.0)(model(), BATCH)
    np.testing.assert_allclose(loss, 0.7 * told + 0.3 * 4 * divergence, rtol=1e-5)


def test_who_agrees_with_a_soft_teacher_has_nothing_to_learn():
    loss = DistilLoss(kind="soft", weight=1.0)
    np.testing.assert_allclose(loss(one(TEACHER + 5), BATCH)[0], 0, atol=1e-5)


def test_each_head_learns_from_one_side():
    def gradients(weight):
        f = lambda first, second: DistilLoss(weight=weight)(two(first, second), BATCH)[0]  # noqa: E731
        return [float(jnp.abs(g).max()) > 0 for g in jax.grad(f, (0, 1))(FIRST, SECOND)]

    assert [gradients(weight) for weight in (0.0, 0.5, 1.0)] == [[True, False], [True, True], [False, True]]


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_nothing_is_learned_by_the_teacher(kind):
    f = lambda teacher: DistilLoss(kind=kind)(two(), {**BATCH, "teacher": {"logits": teacher}})[0]  # noqa: E731
    assert not np.any(jax.grad(f)(TEACHER))


def test_without_a_teacher_the_labels_are_learned():
    batch = {name: value for name, value in BATCH.items() if name != "teacher"}
    loss = DistilLoss(label_smoothing=0.1)
    np.testing.assert_allclose(loss(one(), batch)[0], LabelLoss(label_smoothing=0.1)(one(), batch)[0], rtol=1e-6)
    soft = {**batch, "labels": jnp.eye(E)[LABELS]}
    np.testing.assert_allclose(loss(two(), soft)[0], loss(two(), batch)[0], rtol=1e-6)
    held = loss.held_out(two(), BATCH)
    assert held["accuracy"] == ((FIRST + SECOND).argmax(-1) == LABELS) @ WEIGHTS


@pytest.mark.parametrize(("options", "message"), [
    ({"weight": 1.5}, r"weight must be in \[0, 1\], temperature above 0, got 1.5 and 3.0"),
    ({"temperature": 0.0}, r"temperature above 0, got 0.5 and 0.0"),
    ({"label_smoothing": 1.0}, r"label_smoothing must be in \[0, 1\), got 1.0"),
])  # fmt: skip
def test_options_that_make_no_loss_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DistilLoss(**options)


@pytest.mark.parametrize("kind", [jnp.bfloat16, jnp.float16])
def test_a_narrow_type_costs_a_soft_loss_nothing(kind):
    """The sums over classes are in float32, so that a teacher differs from its own scores by nothing."""
    scores = jnp.asarray(3 * np.random.default_rng(0).normal(size=(64, 1000)), kind)
    other, weights = jnp.asarray(np.random.default_rng(1).normal(size=(64, 1000)), jnp.float32), jnp.ones(64)
    loss = DistilLoss(kind="soft")
    np.testing.assert_allclose(loss.differ(scores, scores.astype(jnp.float32), weights), 0, atol=2e-3)
    wide = loss.differ(scores.astype(jnp.float32), other, weights)
    assert loss.differ(scores, other, weights) == wide
