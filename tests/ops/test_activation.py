import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import activation
from flax_transformer.ops.activation import ACTIVATIONS

TORCH = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "swish",
    "squared_relu": "relu2",
    "tanh": "tanh",
    "identity": "linear",
}


@pytest.mark.parity
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_value_and_slope_equal_transformers(name):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.activations").ACT2FN[TORCH[name]]
    x = np.linspace(-6, 6, 101).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    expected = theirs(leaf)
    expected.sum().backward()
    np.testing.assert_allclose(activation(name)(jnp.asarray(x)), expected.detach().numpy(), atol=2e-6)
    slope = jax.grad(lambda x: activation(name)(x).sum())(jnp.asarray(x))
    smooth = np.abs(x) > 1e-6
    np.testing.assert_allclose(slope[smooth], leaf.grad.numpy()[smooth], atol=1e-5)


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="unknown activation 'gelu_tan'; nearest: gelu_tanh"):
        activation("gelu_tan")
