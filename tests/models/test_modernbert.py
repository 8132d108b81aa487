"""ModernBERT: the published size, what each layer sees, and the norm that the first layer has no use for."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.compress.layers import keep_layers
from flax_transformer.models.encoder import WindowedEncoderConfig
from flax_transformer.models.preset import abstract
from flax_transformer.models.text.modernbert import modernbert_base, modernbert_large
from flax_transformer.nn import layer, unstack, with_fields
from flax_transformer.train.state import parameter_count


def small(**fields):
    config = with_fields(modernbert_base(50).encoder, embed=12, heads=3, inner=10, depth=4, init_std=0.5)
    return with_fields(config, **{"residual_init_std": 0.5, "windows": (None, 1, 1), **fields})


@pytest.fixture(scope="module")
def model():
    return jax.jit(lambda: small().build(nnx.Rngs(0)))()


def test_the_presets_have_the_published_sizes():
    """Of transformers' ModernBertForMaskedLM and ModernBertModel, and the scale that the first layer has no use for."""
    assert parameter_count(abstract(modernbert_base())) == 149_655_232 + 768
    assert parameter_count(abstract(modernbert_base().encoder)) == 149_014_272 + 768
    assert parameter_count(abstract(modernbert_large())) == 395_881_664 + 1024
    assert parameter_count(abstract(modernbert_large().encoder)) == 394_781_696 + 1024


@pytest.mark.rotates
@pytest.mark.parametrize(("windows", "reach"), [((0, 2), 2), ((1, None), 9)], ids=["near", "all"])
def test_a_token_sees_as_far_as_the_windows_of_the_layers_reach(windows, reach):
    config = small(windows=windows, depth=2)
    model = jax.jit(lambda: config.build(nnx.Rngs(0)))()
    tokens = jnp.arange(3, 12)[None]

    def run(x):
        return model.trunk(x, mask=model._enter(tokens, None, None, None, None)[1]["mask"])[0, :, 0]

    seen = jnp.abs(jax.jit(jax.jacobian(run))(model.embedding(tokens))[:, 0]).max(-1) > 0
    near = jnp.abs(jnp.arange(9) - jnp.arange(9)[:, None]) <= reach
    np.testing.assert_array_equal(seen, near)


@pytest.mark.rotates
def test_the_first_layer_has_no_norm(model):
    """The parameter of one says nothing, and has no gradient."""
    tokens = jnp.arange(3, 12)[None]

    def loss(model):
        return jnp.square(model(tokens)[..., :5]).mean()

    grads = jax.jit(jax.grad(loss))(model)
    scale = grads.trunk.blocks.attention_residual.norm.scale[...]
    np.testing.assert_array_equal(scale[0], 0)
    assert (jnp.abs(scale[1:]).max(-1) > 0).all()
    assert (jnp.abs(grads.trunk.blocks.feedforward_residual.norm.scale[...]).max(-1) > 0).all()
    other = jax.tree.map(lambda leaf: leaf, model)
    norm = other.trunk.blocks.attention_residual.norm
    norm.scale = nnx.Param(norm.scale[...].at[0].set(7.0))
    np.testing.assert_array_equal(other(tokens), model(tokens))
    x = model.embedding(tokens)
    first = layer(model.trunk.blocks, 0)
    y = x + first.attention(x)
    y = y + first.feedforward(first.feedforward_residual.norm(y))
    np.testing.assert_allclose(first(x, layer=0), y, rtol=1e-5, atol=1e-5)


def test_layers_one_by_one_are_the_stack(model):
    apart = jax.tree.map(lambda leaf: leaf, model)
    apart.trunk.blocks = unstack(model.trunk.blocks)
    tokens = jnp.arange(3, 12)[None]
    np.testing.assert_allclose(apart(tokens), model(tokens), rtol=1e-5, atol=1e-5)


def test_a_block_of_its_own_must_be_told_its_number(model):
    with pytest.raises(ValueError, match="must be told the number of its layer, got none"):
        layer(model.trunk.blocks, 1)(jnp.ones((3, 12)))


def test_the_first_layer_is_kept():
    model = small(windows=(1,)).build(nnx.Rngs(0))
    assert keep_layers(model, [0, 2]).cfg.depth == 2
    with pytest.raises(ValueError, match=re.escape("the first layer of trunk has no norm, and is kept, got (1, 3)")):
        keep_layers(model, [1, 3])


@pytest.mark.parametrize("windows", [(), (3, -1)])
def test_windows_are_sizes(windows):
    with pytest.raises(
        ValueError, match=re.escape(f"windows must be at least 0, or None, and one at least, got {windows}")
    ):
        replace(small(), windows=windows)
    assert isinstance(small(), WindowedEncoderConfig)
