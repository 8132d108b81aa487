"""Nyström attention against the layer of `transformers`."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn.nystrom import NystromConfig
from flax_transformer.ops import Mask
from flax_transformer.ops.attention.nystrom import NystromAttention

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [pytest.mark.parity, pytest.mark.proves("attention variants", "Nyström against `transformers`")]

T, D, N = 24, 16, 4


def theirs(landmarks, window, start):
    from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

    torch.manual_seed(0)
    config = transformers.NystromformerConfig(
        hidden_size=D, num_attention_heads=N, num_landmarks=landmarks, segment_means_seq_len=T,
        conv_kernel_size=window or 3, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    layer = NystromformerSelfAttention(config).eval()
    layer.init_option, layer.conv_kernel_size = start, window
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(3)  # scores that differ
    return layer


def ours(layer, landmarks, window, start):
    attend = NystromAttention(landmarks=landmarks, start="batch" if start == "original" else "each")
    made = NystromConfig(embed=D, heads=N, attend=attend, window=window).build(nnx.Rngs(0))
    for name in ("query", "key", "value"):
        linear = getattr(layer, name)
        getattr(made, name).kernel[...] = jnp.asarray(linear.weight.detach().numpy().T.reshape(D, N, D // N))
        getattr(made, name).bias[...] = jnp.asarray(linear.bias.detach().numpy().reshape(N, D // N))
    if window is not None:
        made.residual.kernel[...] = jnp.asarray(layer.conv.weight.detach().numpy()[:, 0, :, 0].T[:, None])
    made.out.kernel[...] = jnp.eye(D).reshape(N, D // N, D)
    made.out.bias[...] = jnp.zeros(D)
    return made


@pytest.mark.parametrize("start", ["original", "exact"])
@pytest.mark.parametrize(("landmarks", "window"), [(6, 5), (8, None), (T, 3)])
@pytest.mark.parametrize("padded", [False, True])
def test_nystrom_layer_is_that_of_transformers(landmarks, window, start, padded):
    layer = theirs(landmarks, window, start)
    x = np.random.default_rng(0).normal(size=(2, T, D)).astype(np.float32)
    lengths = np.array([17, T])
    hidden = np.arange(T) >= lengths[:, None]
    mask = torch.tensor(np.where(hidden, -1e9, 0.0).astype(np.float32))[:, None, None] if padded else None
    with torch.no_grad():
        expected = layer(torch.tensor(x), attention_mask=mask)[0].numpy()
    found = ours(layer, landmarks, window, start)(
        jnp.asarray(x), mask=Mask(lengths=jnp.asarray(lengths)) if padded else None
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
