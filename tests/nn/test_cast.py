"""A kernel that is cast in its own layer has the numbers, and the gradient, of one that is merely cast."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.nn.linear import cast_where_used
from flax_transformer.parallel import MeshConfig, abstract_mesh

SHARDED = abstract_mesh(MeshConfig(data=1, fsdp=4))


def test_no_number_changes():
    bits = jax.random.bits(jax.random.key(0), (1 << 14,), jnp.uint32)
    special = jnp.array([0.0, -0.0, 1e-45, -3e-39, jnp.inf, -jnp.inf, 3.4e38, 1.0 + 2**-8, 1.0 + 3 * 2**-8])
    kernel = jnp.concatenate([jax.lax.bitcast_convert_type(bits, jnp.float32), special])
    kernel = kernel[~jnp.isnan(kernel)]
    plain = kernel.astype(jnp.bfloat16)
    with jax.sharding.use_abstract_mesh(SHARDED):
        cast = jax.jit(lambda x: cast_where_used(x, jnp.bfloat16))(kernel)
        slope = jax.grad(lambda x: jnp.sum(cast_where_used(x, jnp.bfloat16).astype(jnp.float32) * 3.0))(kernel)
    np.testing.assert_array_equal(*(jax.lax.bitcast_convert_type(x, jnp.uint16) for x in (cast, plain)))
    assert (slope == 3).all()


@pytest.mark.parametrize(
    ("mesh", "dtype", "rounds"), [(1, "bfloat16", False), (4, "float32", False), (4, "bfloat16", True)]
)
def test_only_what_is_split_and_cast_is_rounded(mesh, dtype, rounds):
    """The compiler moves a cast out of the loop over layers, but nothing that is rounded."""
    with jax.sharding.use_abstract_mesh(abstract_mesh(MeshConfig(data=1, fsdp=mesh))):
        text = str(jax.make_jaxpr(lambda x: cast_where_used(x, dtype))(jnp.ones((2, 2))))
    assert ("reduce_precision" in text) == rounds
