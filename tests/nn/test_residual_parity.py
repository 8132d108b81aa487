"""LayerScale in a pre-norm block, against the layer of DINOv2 in transformers."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn import Block, transformer_block

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

D, N, H = 24, 4, 6


def test_a_block_with_layer_scale_equals_the_layer_of_dinov2():
    from transformers.models.dinov2.modeling_dinov2 import Dinov2Layer

    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=D, num_attention_heads=N, mlp_ratio=2, layerscale_value=0.3, attn_implementation="eager"
    )
    theirs = Dinov2Layer(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    block = transformer_block(
        embed=D, heads=N, inner=2 * D, norm_position="pre", norm_eps=config.layer_norm_eps, activation="gelu",
        layer_scale=0.3,
    )  # fmt: skip
    ours = Block(block, rngs=nnx.Rngs(0))
    given = {name: parameter.detach().numpy() for name, parameter in theirs.named_parameters()}

    def put(layer, name, shape, bias_shape):
        layer.kernel[...] = jnp.asarray(given.pop(f"{name}.weight").T.reshape(shape))
        layer.bias[...] = jnp.asarray(given.pop(f"{name}.bias").reshape(bias_shape))

    for part in ("query", "key", "value"):
        put(getattr(ours.attention, part), f"attention.{part[0]}_proj", (D, N, H), (N, H))
    put(ours.attention.out, "attention.o_proj", (N, H, D), (D,))
    put(ours.feedforward.up, "mlp.fc1", (D, 2 * D), (2 * D,))
    put(ours.feedforward.down, "mlp.fc2", (2 * D, D), (D,))
    for i, residual in enumerate((ours.attention_residual, ours.feedforward_residual), start=1):
        residual.norm.scale[...] = jnp.asarray(given.pop(f"norm{i}.weight"))
        residual.norm.bias[...] = jnp.asarray(given.pop(f"norm{i}.bias"))
        residual.layer_scale[...] = jnp.asarray(given.pop(f"layer_scale{i}.lambda1"))
    assert not given
    x = np.random.default_rng(0).normal(size=(2, 5, D)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.tensor(x))
    expected = expected[0] if isinstance(expected, tuple) else expected
    np.testing.assert_allclose(ours(jnp.asarray(x)), expected.numpy(), rtol=1e-5, atol=1e-5)
