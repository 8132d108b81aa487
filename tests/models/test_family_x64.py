"""With `jax_enable_x64` every family trains as without, and with float64 throughout loses nothing on the way."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.nn import with_precision
from flax_transformer.ops import chunked_scores
from tests.models import families
from tests.shares import share


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "kind"), share(product(families.PRESETS, ["float32", "bfloat16", "float64"]), 0, of=10)
)
def test_losses_and_gradients_are_of_the_models_own_kind(name, kind):
    params = "float64" if kind == "float64" else "float32"
    config = with_precision(families.family(name), compute=kind, params=params)

    def step(batch):
        return jax.value_and_grad(families.objective(config), has_aux=True)(families.build(config), batch)

    (loss, metrics), gradient = jax.eval_shape(step, families.batch(config, 3, 8))
    assert loss.dtype == metrics["count"].dtype == params
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(params)}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_chunked_loss_of_float64_is_exact(smoothing):
    draw = np.random.default_rng(0)
    hidden, table, labels = draw.normal(size=(9, 4)), draw.normal(size=(7, 4)), draw.integers(0, 7, 9)
    weights = draw.random(9)
    logits = hidden @ table.T
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    losses = -(1 - smoothing) * logs[np.arange(9), labels] - smoothing * logs.mean(1)
    score = lambda *args: chunked_scores(*args, weights, chunk=4, label_smoothing=smoothing)  # noqa: E731
    total, count, right = score(hidden, table, labels)
    assert total.dtype == jnp.float64
    np.testing.assert_allclose(total, losses @ weights, rtol=1e-13)
    np.testing.assert_allclose(count, weights.sum(), rtol=1e-13)
    np.testing.assert_allclose(right, (logits.argmax(1) == labels) @ weights, rtol=1e-13)
    by_hidden = jax.grad(lambda hidden: score(hidden, table, labels)[0])(hidden)
    targets = (1 - smoothing) * np.eye(7)[labels] + smoothing / 7
    np.testing.assert_allclose(by_hidden, weights[:, None] * (np.exp(logs) - targets) @ table, rtol=1e-11, atol=1e-13)
