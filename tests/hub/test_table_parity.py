"""Convolutions and batch normalisations of PyTorch, as the rows of a weight table read them, compute the same."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.hub.file import Tensor
from flax_transformer.hub.table import batch_norm, conv
from flax_transformer.hub.weights import load_model, resolve, tensors_of
from flax_transformer.nn.batch_norm import BatchNorm

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


class Net(nnx.Module):
    def __init__(self, space, groups, rngs):
        self.conv = nnx.Conv(6, 12, (3,) * space, padding="VALID", feature_group_count=groups, rngs=rngs)
        self.norm = BatchNorm(12)

    def __call__(self, x):
        return self.norm(self.conv(x))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("space", [1, 2, 3])
def test_a_convolution_and_its_norm_equal_torch_and_go_back(space, groups):
    torch.manual_seed(0)
    kinds = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d), (
        torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d,
    )  # fmt: skip
    theirs = torch.nn.Sequential(kinds[0][space - 1](6, 12, 3, groups=groups), kinds[1][space - 1](12)).double()
    theirs(torch.randn(4, 6, *[6] * space, dtype=torch.float64))  # statistics that are not those of the beginning
    theirs = theirs.float().eval()
    stored = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    model = Net(space, groups, nnx.Rngs(0))
    entries = resolve((*conv("conv", "0"), *batch_norm("norm", "1")), model)
    tensors = {n: Tensor(x.shape, str(x.dtype), lambda x=x: x) for n, x in stored.items() if x.shape}
    model = load_model(model, entries, tensors, None, lambda: model)
    x = torch.randn(2, 6, *[5] * space)
    with torch.no_grad():
        expected = np.moveaxis(theirs(x).numpy(), 1, -1)
    np.testing.assert_allclose(model(jnp.moveaxis(jnp.asarray(x.numpy()), 1, -1)), expected, rtol=1e-5, atol=1e-5)
    back = {name: make() for name, (_, make) in tensors_of(model, entries).items()}
    assert back.keys() == stored.keys()
    for name, array in back.items():
        assert (array.shape, array.dtype) == (stored[name].shape, stored[name].dtype)
        if array.shape:
            np.testing.assert_array_equal(array, stored[name])
