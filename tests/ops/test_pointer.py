"""Copying and generating: the mixture, its loss and coverage against loops over tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.pointer import (
    TINY,
    copy_log_probability,
    copy_probabilities,
    coverage_loss,
    mix,
    pointer_cross_entropy,
)

pytestmark = pytest.mark.proves("pointer-generator", "mixture, loss and coverage by loops over tokens")

B, T, S, V, D = 2, 3, 5, 7, 4


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def given():
    draw = np.random.default_rng(0)
    found = {
        "attention": softmax(draw.normal(size=(B, T, S))).astype(np.float32),
        "source": draw.integers(0, V - 1, (B, S)).astype(np.int32),  # the last token is in no source
        "gate": draw.normal(size=(B, T)).astype(np.float32),
        "hidden": draw.normal(size=(B, T, D)).astype(np.float32),
        "table": draw.normal(size=(V + 3, D)).astype(np.float32),  # more rows than the vocabulary
        "labels": np.array([[0, 6, 2], [1, 1, 6]], np.int32),
        "weights": np.array([[1, 1, 0], [1, 0.5, 1]], np.float32),
    }
    return {name: jnp.asarray(value) for name, value in found.items()}


def mixture(given):
    """Return the probabilities of all tokens, token by token."""
    given = {name: np.asarray(value) for name, value in given.items()}
    found = np.zeros((B, T, V))
    for row in range(B):
        for t in range(T):
            p = 1 / (1 + np.exp(-given["gate"][row, t]))
            found[row, t] = p * softmax(given["table"][:V] @ given["hidden"][row, t])
            for s in range(S):
                found[row, t, given["source"][row, s]] += (1 - p) * given["attention"][row, t, s]
    return found


def test_the_mixture_is_that_of_the_paper_and_sums_to_one(given):
    generated = jax.nn.log_softmax(given["hidden"] @ given["table"][:V].T)
    copied = copy_probabilities(given["attention"], given["source"], V)
    logs = mix(given["gate"], generated, jnp.log(copied + TINY))
    np.testing.assert_allclose(np.exp(logs), mixture(given), atol=1e-6)
    np.testing.assert_allclose(np.exp(logs).sum(-1), 1, atol=1e-5)


def test_copying_one_label_is_looking_it_up(given):
    copied = copy_probabilities(given["attention"], given["source"], V)
    expected = np.take_along_axis(np.asarray(copied), given["labels"][..., None], axis=-1)[..., 0]
    found = copy_log_probability(given["attention"], given["source"], given["labels"])
    np.testing.assert_allclose(np.exp(found), expected, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_the_loss_is_that_of_the_mixture_whatever_the_chunk(given, chunk):
    copied = copy_log_probability(given["attention"], given["source"], given["labels"])
    arguments = (given[name] for name in ("hidden", "table", "labels", "weights", "gate"))
    total, count = pointer_cross_entropy(*arguments, copied, vocab=V, chunk=chunk)
    each = -np.log(np.take_along_axis(mixture(given), given["labels"][..., None], axis=-1)[..., 0])
    np.testing.assert_allclose(total, (each * given["weights"]).sum(), rtol=1e-5)
    assert count == given["weights"].sum()


def test_smoothing_is_of_the_generator_alone(given):
    copied = copy_log_probability(given["attention"], given["source"], given["labels"])
    arguments = [given[name] for name in ("hidden", "table", "labels", "weights", "gate")]
    plain = pointer_cross_entropy(*arguments, copied, vocab=V)[0]
    smooth = pointer_cross_entropy(*arguments, copied, vocab=V, label_smoothing=0.2, z_loss=0.1)[0]
    logits = given["hidden"] @ given["table"][:V].T
    norm = np.log(np.exp(logits).sum(-1))
    extra = 0.2 * (norm - logits.mean(-1)) + 0.1 * norm**2
    np.testing.assert_allclose(smooth, 0.8 * plain + (extra * given["weights"]).sum(), rtol=1e-5)


def test_a_label_that_is_not_in_the_source_has_finite_gradients(given):
    def loss(attention, gate):
        copied = copy_log_probability(attention, given["source"], jnp.full((B, T), V - 1))
        return pointer_cross_entropy(
            given["hidden"], given["table"], jnp.full((B, T), V - 1), given["weights"], gate, copied, vocab=V
        )[0]

    slopes = jax.grad(loss, (0, 1))(jnp.asarray(given["attention"]), jnp.asarray(given["gate"]) + 30)
    assert all(np.isfinite(each).all() for each in slopes)


def test_coverage_is_what_is_attended_to_again(given):
    expected, given = 0.0, {name: np.asarray(value) for name, value in given.items()}
    for row in range(B):
        before = np.zeros(S)
        for t in range(T):
            expected += given["weights"][row, t] * np.minimum(given["attention"][row, t], before).sum()
            before += given["attention"][row, t]
    np.testing.assert_allclose(
        coverage_loss(*map(jnp.asarray, (given["attention"], given["weights"]))), expected, rtol=1e-5
    )
