"""A decoder of two stacks: dense blocks below, experts above."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.text.deepseek import deepseek_v3
from flax_transformer.nn import with_fields
from flax_transformer.train.config import from_json, to_json

CFG = with_fields(
    deepseek_v3(31), embed=16, heads=2, head_width=4, value_head=6, latent=8, rotary_width=4, query_latent=10, inner=12,
    experts=4, active=2, groups=2, kept=1, depth=3, dense_depth=2, max_length=32, init_std=0.3,
)  # fmt: skip
TOKENS = jnp.arange(10).reshape(2, 5)


def build(**fields):
    return with_fields(CFG, **fields).build(nnx.Rngs(0))


@pytest.mark.rotates
def test_states_are_those_of_both_stacks_in_their_order():
    trunk = build().trunk
    x = jax.random.normal(jax.random.key(1), (2, 5, 16))
    states = trunk.states(x)
    assert states.shape == (5, 2, 5, 16)
    np.testing.assert_allclose(trunk.norm(states[-1]), trunk(x), atol=1e-6)
    lower = replace(CFG, depth=1)
    assert lower.make_trunk(rngs=nnx.Rngs(0)).states(x).shape[0] == 3


def test_drop_path_grows_through_both_stacks():
    trunk = build(drop_path=0.4).trunk
    assert trunk.drop_rates(None) is None
    np.testing.assert_allclose(trunk.drop_rates(jax.random.key(0)).value, [0.2, 0.3, 0.4], rtol=1e-6)


@pytest.mark.rotates
@pytest.mark.parametrize("fields", [{"drop_path": 0.5}, {"layer_drop": 0.5}])
def test_what_is_dropped_is_of_a_key_alone(fields):
    model = build(**fields)
    np.testing.assert_array_equal(model(TOKENS), build()(TOKENS))
    assert float(jnp.abs(model(TOKENS, key=jax.random.key(3)) - model(TOKENS)).max()) > 1e-3


def test_routers_of_the_upper_blocks_are_told():
    told = build().observe(TOKENS)[1]
    assert {name: each.shape for name, each in told.items()} == dict.fromkeys(
        ("balance", "dropped", "router_z"), (3, 2)
    )


@pytest.mark.rotates
def test_laid_out_for_decoding_it_is_the_same_function():
    model = build()
    apart = model.for_decoding()
    caches = [each.prefill(TOKENS)[1].grow(6) for each in (model, apart)]
    assert [len(cache.layers) for cache in caches] == [2, 5]
    (one, _), (other, _) = (
        each.step(cache, jnp.array([3, 4])) for each, cache in zip((model, apart), caches, strict=True)
    )
    np.testing.assert_allclose(one, other, atol=2e-5)
    np.testing.assert_allclose(apart(TOKENS), model(TOKENS), atol=2e-5)


def test_a_config_goes_through_json_and_may_have_no_dense_block():
    assert from_json(to_json(CFG)) == CFG
    assert not hasattr(build(dense_depth=0).trunk, "dense_blocks")


def test_what_two_stacks_cannot_share_is_refused():
    for fields in ({"window": (3, None)}, {"falling_scale": True}):
        with pytest.raises(ValueError, match="two stacks of blocks have nothing that is shared by them or goes by"):
            replace(CFG, **fields)
