"""Models leave Python by `jax.export`: of a length that stays open, with parameters as arguments."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from flax import nnx
from jax import export

from flax_transformer.nn import Block, Embedding, EmbeddingConfig, Rotary, transformer_block
from flax_transformer.ops import Mask

CFG = transformer_block(embed=8, heads=2, inner=8, norm_position="pre", rotary=Rotary())
MASK = Mask(causal=True, window=3)


@pytest.fixture(scope="module", autouse=True)
def _unchecked():
    """Switch off the check of annotated shapes, where there is one: it knows no open lengths."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        yield


@pytest.fixture(scope="module")
def exported():
    """A block of any batch and length, from its leaves; and the block."""
    block = Block(CFG, rngs=nnx.Rngs(0))
    leaves, tree = jax.tree.flatten(block)
    run = jax.jit(lambda leaves, x: jax.tree.unflatten(tree, leaves)(x, mask=MASK))
    rows, length = export.symbolic_shape("b, t")
    return export.export(run)(leaves, jax.ShapeDtypeStruct((rows, length, 8), jnp.float32)), block


@pytest.mark.rotates
@pytest.mark.parametrize("shape", [(1, 5), (3, 7)])
def test_an_exported_block_takes_any_length(exported, shape):
    program, block = exported
    x = jax.random.normal(jax.random.key(1), (*shape, 8))
    np.testing.assert_allclose(program.call(jax.tree.leaves(block), x), block(x, mask=MASK), atol=1e-5)


def test_other_parameters_are_other_arguments(exported):
    program, _ = exported
    other, x = Block(CFG, rngs=nnx.Rngs(1)), jnp.ones((3, 7, 8))
    np.testing.assert_allclose(program.call(jax.tree.leaves(other), x), other(x, mask=MASK), atol=1e-5)


def test_an_exported_block_is_written_and_read(exported):
    pytest.importorskip("flatbuffers")
    program, block = exported
    again, x = export.deserialize(program.serialize()), jnp.ones((3, 7, 8))
    np.testing.assert_array_equal(again.call(jax.tree.leaves(block), x), program.call(jax.tree.leaves(block), x))


def test_learned_positions_say_how_long_an_open_length_may_be():
    cfg = EmbeddingConfig(vocab=8, embed=4, position="learned", max_length=16)
    embedding = nnx.eval_shape(lambda: Embedding(cfg, rngs=nnx.Rngs(0)))
    run = lambda length: export.export(jax.jit(lambda e, x: e(x)))(  # noqa: E731
        embedding, jax.ShapeDtypeStruct((2, length), jnp.int32)
    )
    with pytest.raises(
        ValueError, match=r"at most the 16 positions there are: symbolic_shape\(…, constraints=\['t <= "
    ):
        run(*export.symbolic_shape("t"))
    assert str(run(*export.symbolic_shape("t", constraints=["t <= 16"])).out_avals[0].shape) == "(2, t, 4)"
