"""A discriminator of an encoder's hidden states, and its encoder, which is not trained."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.vision.feature_discriminator import FeatureDiscriminatorConfig
from flax_transformer.models.vision.image_to_image import AdversarialConfig
from flax_transformer.models.vision.transgan import TransGANGeneratorConfig
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import TrunkConfig, transformer_block, with_fields
from flax_transformer.objective import SampleLoss
from flax_transformer.parallel import path_name
from flax_transformer.train import OptimizerConfig, ScheduleConfig
from flax_transformer.train.state import new_state

HEAD = TrunkConfig(block=transformer_block(embed=8, heads=2, inner=8, norm_position="pre"), depth=1, unroll=True)
CRITIC = FeatureDiscriminatorConfig(trunk=HEAD, embed=12, layers=(0, 2), classes=3)
ENCODER = with_fields(vit_encoder("tiny", 4, image=8), embed=12, heads=2, inner=12, depth=2, unroll=True)
GENERATOR = TransGANGeneratorConfig(image=(8, 8), embed=16, noise=4, depths=(1, 1), heads=2, cell=4, classes=3)
PAIR = AdversarialConfig(generator=GENERATOR, discriminator=CRITIC, encoder=ENCODER)


def states(rows=2):
    return [jax.random.normal(jax.random.key(i), (rows, 5, 12)) for i in range(3)]


@pytest.mark.proves("transgan", "train", "a discriminator of a frozen encoder's hidden states")
def test_every_head_says_a_number_of_each_token_of_its_layer():
    """Against PyTorch's layers with the same parameters: norm, projection, a pre-norm block, classes."""
    torch = pytest.importorskip("torch")
    from torch.nn import functional as F

    model, given, labels = CRITIC.build(nnx.Rngs(0)), states(), jnp.array([2, 0])
    model = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), model)
    found = model(given, labels)
    assert found.shape == (2, 10)
    for number, layer in enumerate(CRITIC.layers):
        leaves = jax.tree_util.tree_leaves_with_path(getattr(model, f"head{layer}"))
        of = {path_name(path): torch.tensor(np.array(leaf)) for path, leaf in leaves}

        def norm(x, name, eps, of=of):
            scale, bias = of[f"{name}.scale"].flatten(), of[f"{name}.bias"].flatten()
            return F.layer_norm(x, x.shape[-1:], scale, bias, eps)

        attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        inside = {name.removeprefix("trunk.blocks."): value[0] for name, value in of.items() if "blocks" in name}
        parts = [inside[f"attention.{name}.kernel"].reshape(8, 8).T for name in ("query", "key", "value")]
        biases = [inside[f"attention.{name}.bias"].flatten() for name in ("query", "key", "value")]
        with torch.no_grad():
            attention.in_proj_weight.copy_(torch.cat(parts))
            attention.in_proj_bias.copy_(torch.cat(biases))
            attention.out_proj.weight.copy_(inside["attention.out.kernel"].reshape(8, 8).T)
            attention.out_proj.bias.copy_(inside["attention.out.bias"])
            eps = HEAD.block.residual.norm_eps
            x = F.linear(
                norm(torch.tensor(np.array(given[layer])), "norm", 1e-6), of["project.kernel"].T, of["project.bias"]
            )
            y = norm(x, "trunk.blocks.attention_residual.norm", eps)
            x = x + attention(y, y, y, need_weights=False)[0]
            y = norm(x, "trunk.blocks.feedforward_residual.norm", eps)
            y = F.relu(F.linear(y, inside["feedforward.up.kernel"].T, inside["feedforward.up.bias"]))
            x = x + F.linear(y, inside["feedforward.down.kernel"].T, inside["feedforward.down.bias"])
            x = norm(x, "trunk.norm", eps)
            told = F.linear(x, of["output.kernel"].T, of["output.bias"])[..., 0]
            told = told + (x * of["classes"][[2, 0]][:, None]).sum(-1)
        np.testing.assert_allclose(found[:, 5 * number : 5 * number + 5], told.numpy(), rtol=1e-4, atol=1e-5)


def test_layers_that_have_no_head_change_nothing():
    model, given, labels = CRITIC.build(nnx.Rngs(0)), states(), jnp.array([2, 0])
    found = model(given, labels)
    np.testing.assert_array_equal(model([given[0], given[1] + 1, given[2]], labels), found)
    other = model([given[0], given[1], given[2] + jnp.arange(12.0)], labels)
    np.testing.assert_array_equal(other[:, :5], found[:, :5])
    assert float(jnp.abs(other[:, 5:] - found[:, 5:]).min()) > 0


def test_a_step_trains_both_players_and_leaves_the_encoder_as_it_is():
    own = SampleLoss(penalty="r1").own_step(
        OptimizerConfig(name="adamw", learning_rate=1e-2, schedule=ScheduleConfig(name="constant"), weight_decay=0.1), 4
    )
    state = new_state(PAIR.build(nnx.Rngs(0)), own, False, jax.random.key(0))
    images = jax.random.normal(jax.random.key(1), (4, 8, 8, 3))
    batch = {"inputs": {"images": images}, "labels": jnp.array([0, 1, 2, 0]), "weights": jnp.ones(4)}
    after, _ = jax.jit(lambda state: own.update(state, batch, key=jax.random.key(2)))(state)
    assert set(state.opt_state) == {"generator", "discriminator"}
    jax.tree.map(np.testing.assert_array_equal, after.model.encoder, state.model.encoder)
    for name in ("generator", "discriminator"):
        one, other = (jax.tree.leaves(getattr(each.model, name)) for each in (state, after))
        assert all(np.abs(a - b).max() > 0 for a, b in zip(one, other, strict=True) if a.ndim > 1), name


def test_bad_input_is_refused_in_a_sentence():
    model = CRITIC.build(nnx.Rngs(0))
    with pytest.raises(ValueError, match="must be told the classes, got none"):
        model(states())
    with pytest.raises(ValueError, match=r"the encoder must have the layers \(0, 2\), got one of 1"):
        model(states()[:2], jnp.array([0, 1]))
    for layers in ((), (2, 1), (1, 1), (-1, 2)):
        with pytest.raises(ValueError, match="layers must be numbers from 0 on in rising order"):
            replace(CRITIC, layers=layers)
    with pytest.raises(ValueError, match="layers must be below 64, got 64"):
        replace(CRITIC, layers=(64,))
    with pytest.raises(ValueError, match="the discriminator must be a FeatureDiscriminatorConfig"):
        replace(PAIR, encoder=None)
    with pytest.raises(ValueError, match="one model width, got encoder=12, discriminator=16"):
        replace(PAIR, discriminator=replace(CRITIC, embed=16))
    with pytest.raises(ValueError, match="the encoder must have the layers"):
        replace(PAIR, encoder=replace(ENCODER, depth=1))
