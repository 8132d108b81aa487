"""Blocks of any sublayers: what each is given, and that blocks with names of their own are the same thing."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.video.divided_block import divided_block
from flax_transformer.models.vision.detr_block import detr_block
from flax_transformer.nn import (
    AttentionConfig,
    Block,
    BlockConfig,
    FeedForwardConfig,
    Grid,
    ResidualConfig,
    Sublayer,
    TrunkConfig,
    apply_stack,
    transformer_block,
    with_fields,
)
from flax_transformer.ops import Mask

D = 8
AROUND = ResidualConfig(embed=D, norm_position="pre", dropout=0.1)
ATTENTION, FEEDFORWARD = AttentionConfig(embed=D, heads=2), FeedForwardConfig(embed=D, inner=12)
PLAIN = transformer_block(embed=D, heads=2, inner=12, norm_position="pre", dropout=0.1, attention_dropout=0.1)
PADDED = Mask(lengths=jnp.array([5, 3]))


def block(*parts: Sublayer) -> Block:
    return BlockConfig(sublayers=parts).build(nnx.Rngs(0))


def inputs(*shape: int, seed: int = 1) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.rotates
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("key", [None, jax.random.key(5)], ids=["eval", "train"])
def test_a_block_of_sublayers_is_the_transformers_with_its_sublayers(cross, key):
    cfg = replace(PLAIN, cross=PLAIN.attention if cross else None)
    named, other = cfg.build(nnx.Rngs(3)), BlockConfig(sublayers=cfg.sublayers).build(nnx.Rngs(3))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(named), jax.tree.leaves(other))
    memory = (inputs(2, 4, D, seed=2),) if cross else ()
    given = {"memory_mask": Mask(lengths=jnp.array([4, 2]))} if cross else {}
    y = named(inputs(2, 5, D), *memory, mask=PADDED, key=key, **given)
    np.testing.assert_array_equal(y, other(inputs(2, 5, D), *memory, mask=PADDED, key=key, **given))


def test_sublayers_are_applied_in_their_order_and_each_with_its_arguments():
    made = block(
        Sublayer("first", FEEDFORWARD, AROUND), Sublayer("near", ATTENTION, AROUND), Sublayer("far", ATTENTION, AROUND)
    )
    x = inputs(2, 5, D)
    h = x + made.first(made.first_residual.norm(x))
    h = h + made.near(made.near_residual.norm(h), mask=PADDED)
    h = h + made.far(made.far_residual.norm(h), mask=PADDED)
    np.testing.assert_allclose(made(x, mask=PADDED), h, atol=1e-6)


@pytest.mark.rotates
def test_a_block_of_sublayers_decodes():
    cfg = BlockConfig(sublayers=(Sublayer("before", FEEDFORWARD, AROUND), *PLAIN.sublayers))
    made, x = cfg.build(nnx.Rngs(0)), inputs(2, 6, D)
    whole, cache, found = made(x, mask=Mask(causal=True)), made.init_cache(2, 6), []
    for t in range(6):
        y, cache = made.extend(x[:, t : t + 1], cache)
        found.append(y)
    np.testing.assert_allclose(jnp.concatenate(found, 1), whole, atol=2e-6)


def test_a_stack_of_sublayers_is_a_loop_over_them_and_passes_what_each_takes():
    trunk = TrunkConfig(block=BlockConfig(sublayers=PLAIN.sublayers), depth=3).build(nnx.Rngs(0))
    x = inputs(2, 5, D)
    assert trunk.cfg.end_norm
    np.testing.assert_allclose(trunk(x, mask=PADDED), trunk.norm(apply_stack(trunk.blocks, x, mask=PADDED)), atol=1e-6)


def test_what_experts_observe_of_two_sublayers_is_added_up():
    routed = with_fields(transformer_block(embed=D, heads=2, inner=12, experts=3), norm_position="pre").feedforward
    made = block(Sublayer("one", routed, AROUND), Sublayer("two", routed, AROUND))
    x = inputs(2, 5, D)
    y, aux = made.observe(x)
    first, a = made.one.observe(made.one_residual.norm(x))
    _, b = made.two.observe(made.two_residual.norm(x + first))
    np.testing.assert_allclose(aux["balance"], a["balance"] + b["balance"], atol=1e-6)
    np.testing.assert_array_equal(y, made(x))


DETR = detr_block(embed=D, heads=2, inner=12, cross=True)
DIVIDED = divided_block(transformer_block(embed=D, heads=2, inner=12))
WORDS = [
    (PLAIN, {"grid": Grid(1, 5)}, "no sublayer of the block takes grid; they take bias, mask, positions"),
    (PLAIN, {"shift": 1, "grid": Grid(1, 5)}, "takes grid, shift; they take bias"),
    (DIVIDED, {"mask": PADDED}, "takes mask; they take grid"),
    (DETR, {"memory": jnp.zeros((2, 4, D)), "bias": 0}, "takes bias; they take mask, memory, .*position_embedding"),
    (DETR, {"position_embedding": jnp.zeros((5, D))}, "a block with cross-attention needs a memory, got none"),
    (PLAIN, {"memory": jnp.zeros((2, 4, D))}, "a block without cross-attention takes no memory, got one"),
    (BlockConfig(sublayers=(Sublayer("mix", FEEDFORWARD, AROUND),)), {"mask": PADDED}, "takes mask; they take none"),
]  # fmt: skip


@pytest.mark.parametrize(("cfg", "arguments", "message"), WORDS)
def test_an_argument_that_no_sublayer_takes_is_refused(cfg, arguments, message):
    with pytest.raises(ValueError, match=message):
        cfg.build(nnx.Rngs(0))(inputs(2, 5, D), **arguments)


def test_sublayers_that_make_no_block_are_refused():
    part = Sublayer("mix", FEEDFORWARD, AROUND)
    with pytest.raises(ValueError, match="a block must have a sublayer, got none"):
        BlockConfig(sublayers=())
    with pytest.raises(ValueError, match="sublayers must have a name each, got mix, mix"):
        BlockConfig(sublayers=(part, part))
    with pytest.raises(ValueError, match="mix must be a config of a sublayer, got int, which has no embed"):
        Sublayer("mix", 3, AROUND)
    with pytest.raises(ValueError, match="one model width, got mix=8, residual=4"):
        BlockConfig(sublayers=(replace(part, residual=ResidualConfig(embed=4)),))
    with pytest.raises(ValueError, match="one sublayer with a cache, got none"):
        block(part).init_cache(1, 4)
    two = (Sublayer("near", ATTENTION, AROUND), Sublayer("far", ATTENTION, AROUND))
    with pytest.raises(ValueError, match="one sublayer with a cache, got near, far"):
        block(*two).init_cache(1, 4)
    with pytest.raises(ValueError, match="projected by one sublayer that attends to it, got 0"):
        block(part).project(jnp.zeros((2, 4, D)))
