"""Experts in Switch's form against transformers: one a token, with and without room for all, and the losses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn import Experts, ExpertsConfig
from flax_transformer.ops import balance_loss, route, router_z_loss

torch = pytest.importorskip("torch")
switch = pytest.importorskip("transformers.models.switch_transformers.modeling_switch_transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("experts", "Switch's layer and losses, dropping alike")]


@pytest.mark.parametrize(("places", "dropping"), [(10, False), (3, True)])
def test_sparse_layer_equals_transformers(places, dropping):
    """A place is given to tokens in their order, and what comes late is nothing, in both."""
    torch.manual_seed(0)
    cfg = switch.SwitchTransformersConfig(
        d_model=8, d_ff=12, num_experts=4, expert_capacity=places, dropout_rate=0.0, router_bias=False
    )
    theirs = switch.SwitchTransformersSparseMLP(cfg).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    x = np.random.default_rng(0).standard_normal((3, 10, 8)).astype(np.float32)
    ours = Experts(
        ExpertsConfig(embed=8, inner=12, experts=4, active=1, normalized=False, bias=False, capacity=places / (10 / 4)),
        rngs=nnx.Rngs(0),
    )
    tensors = {name: value.detach().numpy() for name, value in theirs.named_parameters()}
    kernel = lambda name: np.stack([tensors[f"experts.expert_{e}.{name}.weight"].T for e in range(4)])  # noqa: E731
    ours.router.kernel = nnx.Param(jnp.asarray(tensors["router.classifier.weight"].T))
    ours.experts.up.kernel = nnx.Param(jnp.asarray(kernel("wi")))
    ours.experts.down.kernel = nnx.Param(jnp.asarray(kernel("wo")))
    with torch.no_grad():
        expected = theirs(torch.tensor(x)).numpy()
    y, told = jax.jit(lambda experts, x: experts.observe(x))(ours, x)
    assert bool(told["dropped"].max() > 0) is dropping
    np.testing.assert_allclose(y, expected, atol=1e-5 * np.abs(expected).max())


def test_losses_equal_transformers():
    logits = np.random.default_rng(0).standard_normal((3, 11, 5)).astype(np.float32)
    chosen, _ = route(jnp.asarray(logits), 1)
    theirs = switch.load_balancing_loss_func(
        torch.softmax(torch.tensor(logits), -1), torch.tensor(np.asarray(chosen[..., 0]), dtype=torch.int64)
    )
    np.testing.assert_allclose(balance_loss(jnp.asarray(logits), chosen).mean(), theirs, rtol=1e-6)
    z = switch.router_z_loss_func(torch.tensor(logits))
    np.testing.assert_allclose(router_z_loss(jnp.asarray(logits)).mean(), z, rtol=1e-6)
