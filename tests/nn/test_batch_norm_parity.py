"""Batch normalisation against PyTorch: outputs, gradients and running statistics over several steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.nn.batch_norm import BatchNorm

pytestmark = pytest.mark.parity

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("shape", "momentum", "eps"), [((12, 6), 0.1, 1e-5), ((4, 5, 3, 6), 0.3, 1e-3)])
def test_running_statistics_are_torchs(shape, momentum, eps):
    kind = torch.nn.BatchNorm1d if len(shape) == 2 else torch.nn.BatchNorm2d
    theirs = kind(6, eps=eps, momentum=momentum)
    ours, random = BatchNorm(6, decay=1 - momentum, eps=eps), np.random.default_rng(0)
    scale, bias = random.normal(size=(2, 6)).astype(np.float32)
    theirs.load_state_dict({**theirs.state_dict(), "weight": torch.tensor(scale), "bias": torch.tensor(bias)})
    ours.scale[...], ours.bias[...] = scale, bias
    last_first = lambda array: np.moveaxis(array, -1, 1) if len(shape) > 2 else array  # noqa: E731

    def total(norm, x, weight):
        y, statistics = norm.observe(x)
        return jnp.sum(y * weight), (y, statistics)

    for step in range(5):
        x, weight = random.normal(step, 1 + step, (2, *shape)).astype(np.float32)
        (_, (y, statistics)), (of_norm, of_x) = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(ours, x, weight)
        given = torch.tensor(last_first(x), requires_grad=True)
        theirs.zero_grad()
        made = theirs(given)
        (made * torch.tensor(last_first(weight))).sum().backward()
        np.testing.assert_allclose(last_first(np.asarray(y)), made.detach(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last_first(np.asarray(of_x)), given.grad, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(of_norm.scale[...], theirs.weight.grad, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(of_norm.bias[...], theirs.bias.grad, rtol=1e-4, atol=1e-4)
        ours.mean[...], ours.var[...] = statistics["mean"], statistics["var"]
        np.testing.assert_allclose(ours.mean[...], theirs.running_mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(ours.var[...], theirs.running_var, rtol=1e-5)
    theirs.eval()
    x = random.normal(size=shape).astype(np.float32)
    expected = theirs(torch.tensor(last_first(x))).detach()
    np.testing.assert_allclose(last_first(np.asarray(ours(jnp.asarray(x)))), expected, rtol=1e-4, atol=1e-5)
