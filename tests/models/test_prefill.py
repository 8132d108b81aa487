import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block
from flax_transformer.ops import attention, explain_attention
from flax_transformer.ops.attention import cudnn


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 3])
def test_prefill_asks_of_attention_what_a_fused_kernel_serves(monkeypatch, window):
    monkeypatch.setattr(cudnn, "platform", lambda: "gpu")
    asked = []

    def attend(q, k, v, mask=None, bias=None, **options):
        asked.append(explain_attention(q, k, v, mask, bias))
        return attention(q, k, v, mask, bias, backend="xla", **options)

    block = transformer_block(embed=16, heads=2, inner=32, attend=attend, precision=Precision(compute="bfloat16"))
    embedding = EmbeddingConfig(vocab=20, embed=16, precision=block.residual.precision)
    model = Causal(CausalConfig(embedding=embedding, block=block, window=window, depth=2), rngs=nnx.Rngs(0))
    tokens = jnp.arange(12).reshape(2, 6)
    logits, cache = model.prefill(tokens)
    assert all("cudnn      chosen" in lines for lines in asked)
    np.testing.assert_allclose(logits, model(tokens)[:, -1], rtol=0.02, atol=0.02)
    model.step(cache.grow(8), tokens[:, 0])  # one query on eight keys
    assert "cudnn      cannot" in asked[-1]
