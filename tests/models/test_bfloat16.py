"""Computing in bfloat16 changes losses and gradients by its rounding alone: nothing is summed in 8 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.nn import with_precision
from flax_transformer.parallel import path_name
from tests.models import families
from tests.shares import only

pytestmark = pytest.mark.proves("bfloat16", "loss and every gradient of every family within 5 % of float32")

BAR = 0.05


def mean_and_gradients(config, batch):
    """Return the mean loss of a batch, as float32 models train on it, and its gradient by path."""

    def mean(model):
        total, metrics = families.objective(config)(model, batch)
        return total / metrics["count"]

    loss, gradient = jax.jit(jax.value_and_grad(mean))(families.build(config))
    leaves = jax.tree_util.tree_leaves_with_path(gradient)
    return float(loss), {path_name(path): np.asarray(leaf, np.float64) for path, leaf in leaves}


def distances(config, rows, length):
    """Return how far off bfloat16 is, of the loss and of every gradient, relative to its own norm in float32."""
    batch = families.batch(config, rows, length)
    exact, gradients = mean_and_gradients(config, batch)
    loss, short = mean_and_gradients(with_precision(config, compute="bfloat16"), batch)
    size = {name: np.linalg.norm(leaf) for name, leaf in gradients.items()}
    for name in size:
        # The softmax cancels what a bias adds to all keys alike: the gradient is zero, what there is of it rounding.
        query = name.replace("key.bias", "query.bias")
        if size[name] < 1e-4 * size[query]:
            size[name] = size[query]
    gaps = {name: np.linalg.norm(short[name] - gradients[name]) for name in size}
    found = {name: gap and (gap / size[name] if size[name] else np.inf) for name, gap in gaps.items()}  # 0: not used
    return {"loss": abs(loss - exact) / exact, **found}


@pytest.mark.slow
@pytest.mark.parametrize("name", only(families.PRESETS, "t5_small"))
def test_losses_and_all_gradients_are_near_those_of_float32(name):
    # Of ReLU's inputs two in a thousand change sign, which few tokens do not average out: 0.06 for T5 with 6 × 24.
    found = distances(families.family(name), rows=16, length=64)
    assert {path: far for path, far in found.items() if not far < BAR} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "length"), [(8, 504), (128, 24)])
@pytest.mark.parametrize("name", families.PRESETS)
def test_many_tokens_sum_up_like_few(name, rows, length):
    found = distances(families.family(name), rows, length)
    assert {path: far for path, far in found.items() if not far < BAR} == {}


@pytest.mark.rotates
@pytest.mark.parametrize("name", families.PRESETS)
def test_logits_are_float32_whatever_the_model_computes_in(name):
    config = with_precision(families.family(name), compute="bfloat16")
    model, inputs = families.build(config), families.batch(config, 2, 6)["inputs"]
    tokens = [inputs[name] for name in ("tokens", "source", "target") if name in inputs]
    assert jax.eval_shape(type(model).__call__, model, *tokens).dtype == jnp.float32
