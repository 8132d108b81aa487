"""Products of bfloat16: equal to those of float32 rounded once, in all of JAX's transforms, and multiplied as such."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh

from flax_transformer.nn.linear import flat_dot_general, last_axes
from flax_transformer.ops.float32 import product
from flax_transformer.ops.rounded_product import product_tangent, rounded_product

PATTERNS = ["mk,kn->mn", "mk,nk->mn", "km,kn->mn", "km,kn->nm", "...kgth,...skh->...kgts", "...kgts,...skh->...kgth"]
SIZES = dict(zip("mnkgtsh", (5, 3, 7, 2, 4, 6, 8), strict=True))


def operands(pattern, seed=0, dtype=jnp.bfloat16):
    random, parts = np.random.default_rng(seed), pattern.split("->")[0].split(",")
    shapes = [(*((2,) if "..." in part else ()), *(SIZES[each] for each in part.replace("...", ""))) for part in parts]
    return [jnp.asarray(random.normal(size=shape), dtype) for shape in shapes]


def exact(pattern, x, y):
    return np.einsum(pattern, np.asarray(x, np.float64), np.asarray(y, np.float64))


@pytest.mark.rotates
@pytest.mark.proves("short floats", "products of bfloat16 and their gradients are exact sums, rounded once")
@given(pattern=st.sampled_from(PATTERNS), seed=st.integers(0, 99))
def test_a_product_and_its_gradients_are_rounded_once(pattern, seed):
    x, y = operands(pattern, seed)
    given_, made = pattern.split("->")
    of_x, of_y = given_.split(",")
    found, pull = jax.vjp(lambda x, y: rounded_product(pattern, x, y), x, y)
    weights = jnp.asarray(np.random.default_rng(seed + 1).normal(size=found.shape), jnp.bfloat16)
    by_x, by_y = pull(weights)
    wanted = (
        exact(pattern, x, y), exact(f"{made},{of_y}->{of_x}", weights, y), exact(f"{of_x},{made}->{of_y}", x, weights),
    )  # fmt: skip
    for ours, theirs in zip((found, by_x, by_y), wanted, strict=True):
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=2**-8, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("pattern", PATTERNS)
def test_all_of_jax_s_transforms_work(pattern):
    x, y = operands(pattern)
    plain = lambda x, y: jnp.einsum(pattern, x, y).astype(jnp.float32).sum()  # noqa: E731
    ours = lambda x, y: rounded_product(pattern, x, y).astype(jnp.float32).sum()  # noqa: E731
    close = lambda a, b: np.testing.assert_allclose(*(np.asarray(e, np.float32) for e in (a, b)), rtol=2e-2, atol=0.1)  # noqa: E731
    close(jax.jvp(ours, (x, y), (x, y))[1], jax.jvp(plain, (x, y), (x, y))[1])
    close(jax.vmap(ours, (0, None))(jnp.stack([x, -x]), y), jax.vmap(plain, (0, None))(jnp.stack([x, -x]), y))
    twice = [jax.jvp(jax.grad(f, 1), (x, y), (x, y))[1] for f in (ours, plain)]
    close(*twice)
    for f in (ours, plain):
        assert jax.jit(jax.grad(jax.checkpoint(f)))(x, y).shape == x.shape


def multiplied_in_float32(function, *given):
    """Return where a compiled program of bfloat16 makes float32 of its operands."""
    text = jax.jit(function).lower(*given).compile().as_text()
    return re.findall(r"= f32\S* convert\(.*", text)


def test_no_operand_of_a_layer_becomes_float32():
    """That of a kernel's gradient neither, where the CPU multiplies bfloat16: XLA itself makes float32 of some."""
    x, kernel = jnp.ones((4, 32, 64), jnp.bfloat16), jnp.ones((64, 128), jnp.bfloat16)
    weights = jnp.ones((4, 32, 128), jnp.bfloat16)
    if multiplied_in_float32(lambda x, y: jnp.matmul(x, y, preferred_element_type=jnp.float32), x[0], kernel):
        pytest.skip("this CPU has no instructions for bfloat16")

    def gradients(multiply):
        return lambda x, kernel: jax.vjp(lambda *both: multiply(*both, last_axes(x, 1)), x, kernel)[1](weights)

    assert multiplied_in_float32(gradients(jax.lax.dot_general), x, kernel)
    assert not multiplied_in_float32(gradients(flat_dot_general), x, kernel)
    assert not multiplied_in_float32(lambda x, y: product("tv,td->vd", x, y), x[0], x[1])


def test_other_types_and_other_devices_have_einsum_s_own_program():
    pattern = "...kgth,...skh->...kgts"
    plain = lambda x, y: jnp.einsum(pattern, x, y)  # noqa: E731
    ours = lambda x, y: rounded_product(pattern, x, y)  # noqa: E731
    text = lambda f, *given: str(jax.make_jaxpr(lambda *both: jax.vjp(f, *both)[1](f(*both)))(*given))  # noqa: E731
    assert text(ours, *operands(pattern, dtype=jnp.float32)) == text(plain, *operands(pattern, dtype=jnp.float32))
    x, y = operands(pattern)
    assert text(ours, x, y) != text(plain, x, y)
    chip = AbstractDevice(device_kind="TPU v5 lite", num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("data",), abstract_device=chip)):
        assert text(ours, x, y) == text(plain, x, y)


def test_a_tangent_that_is_none_is_zero():
    x, y = operands("mk,kn->mn")
    np.testing.assert_array_equal(product_tangent("mk,kn->mn", (x, y), (x, None)), rounded_product("mk,kn->mn", x, y))
