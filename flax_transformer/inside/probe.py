"""What a linear classifier finds in hidden states.

Axes: N examples, D width, E classes.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Factors on the squared weights, of which the best on examples kept aside is taken."""

ROUNDS = 100
"""Of L-BFGS."""


def probe(
    train: Float[np.ndarray, "N D"],
    test: Float[np.ndarray, "_ D"],
    labels: Int[np.ndarray, " N"],
    truth: Int[np.ndarray, " _"],
) -> tuple[float, float]:
    """Return the accuracies of a logistic regression on training examples kept aside, and on test examples."""
    mean, std = train.mean(axis=0), train.std(axis=0) + 1e-6
    train, test = (jnp.asarray((each - mean) / std) for each in (train, test))
    aside = np.arange(len(train)) % 5 == 0
    classes = int(max(labels.max(), truth.max())) + 1
    weights = _regressions(train[~aside], jnp.asarray(labels[~aside]), jnp.array(PENALTIES), classes=classes)
    right = np.array([_accuracy(each, train[aside], labels[aside]) for each in weights])
    return float(right.max()), float(_accuracy(weights[right.argmax()], test, truth))


@jax.default_matmul_precision("highest")
def _accuracy(weights: Float[Array, "_ E"], features: Float[Array, "N D"], labels: Int[np.ndarray, " N"]) -> Array:
    return jnp.mean(_scores(weights, features).argmax(-1) == labels)


def _scores(weights: Float[Array, "_ E"], features: Float[Array, "N D"]) -> Float[Array, "N E"]:
    return features @ weights[:-1] + weights[-1]


@partial(jax.jit, static_argnames="classes")
@jax.default_matmul_precision("highest")
def _regressions(
    features: Float[Array, "N D"], labels: Int[Array, " N"], penalties: Float[Array, " P"], *, classes: int
) -> Float[Array, "P _ E"]:
    """Fit a logistic regression for each penalty; the last row of the weights is the bias."""
    optimizer = optax.lbfgs()

    def fit(penalty):
        def loss(weights):
            entropy = optax.softmax_cross_entropy_with_integer_labels(_scores(weights, features), labels).mean()
            return entropy + penalty * jnp.sum(jnp.square(weights[:-1]))

        def improve(carry, _):
            weights, state = carry
            value, slope = optax.value_and_grad_from_state(loss)(weights, state=state)
            updates, state = optimizer.update(slope, state, weights, value=value, grad=slope, value_fn=loss)
            return (optax.apply_updates(weights, updates), state), None

        start = jnp.zeros((features.shape[1] + 1, classes))
        return jax.lax.scan(improve, (start, optimizer.init(start)), length=ROUNDS)[0][0]

    return jax.lax.map(fit, penalties)
