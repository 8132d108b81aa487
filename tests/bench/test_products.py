"""The products of a compiled program by what is multiplied, in the words of each compiler, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.bench.product import Products, products_of

pytestmark = pytest.mark.proves("plan", "products of whole numbers, of float8 and of floats in a compiled program")

TPU = """HloModule step

%body (p: (s32[], s8[8,4096])) -> (s32[], s8[8,4096]) {
  %p = (s32[], s8[8,4096]{1,0}) parameter(0)
  %x = s8[8,4096]{1,0} get-tuple-element(%p), index=1
  %w = s8[4096,2752]{1,0} constant({...})
  ROOT %convolution.1 = s32[8,2752]{1,0:T(8,128)} convolution(%x, %w), dim_labels=bf_io->bf
}

%condition (p: (s32[], s8[8,4096])) -> pred[] {
  ROOT %t = pred[] constant(true)
}

ENTRY %main (a: bf16[8,1,4096]) -> f32[8,8000] {
  %a = bf16[8,1,4096]{2,1,0} parameter(0)
  %k = bf16[4096,8,128]{2,1,0} constant({...})
  %convolution.2 = f32[8,8,128]{2,0,1} convolution(%a, %k), window={size=8 pad=7_7 rhs_reversal=1}, dim_labels=b0f_i0o->b0f
  %q = s8[8,8,128]{2,1,0} constant({...})
  %r = s8[8,128,4096]{2,1,0} constant({...})
  %convolution.3 = s32[8,4096,1]{1,0,2} convolution(%q, %r), window={size=8}, dim_labels=b0f_0io->bf0
  ROOT %while.1 = (s32[], s8[8,4096]) while(%a), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"32"}}
}
"""  # noqa: E501
GPU = """HloModule step

%gemm_fusion (p0: s8[4,1024,16], p1: s8[8,4,1024]) -> s32[4,16,8] {
  %p0 = s8[4,1024,16]{2,1,0} parameter(0)
  %p1 = s8[8,4,1024]{2,1,0} parameter(1)
  ROOT %dot.1 = s32[4,16,8]{1,2,0} dot(%p0, %p1), lhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_batch_dims={1}, rhs_contracting_dims={2}
}

ENTRY %main (a: s8[4,1024,16], b: s8[8,4,1024]) -> f32[8,32] {
  %a = s8[4,1024,16]{2,1,0} parameter(0)
  %b = s8[8,4,1024]{2,1,0} parameter(1)
  %fusion.1 = s32[4,16,8]{1,2,0} fusion(%a, %b), kind=kCustom, calls=%gemm_fusion
  %x = f8e4m3fn[8,64]{1,0} constant({...})
  %y = f8e4m3fn[64,32]{1,0} constant({...})
  %cublas = (f32[8,32]{1,0}, s8[33554432]{0}) custom-call(%x, %y), custom_call_target="__cublas$lt$matmul$f8", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %other = f32[8,32]{1,0} custom-call(%x, %y), custom_call_target="Sharding"
  %l = bf16[8,64]{1,0} constant({...})
  %r = f32[64,32]{1,0} constant({...})
  ROOT %dot.2 = f32[8,32]{1,0} dot(%l, %r), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""  # noqa: E501


def test_tpus_write_products_as_convolutions_over_windows():
    looped, out = 32 * 2 * 8 * 4096 * 2752, 2 * 8 * 8 * 128 * 4096
    heads = 2 * 8 * 8 * 128 * 4096
    found = products_of(TPU)
    assert found[0] == Products(kind="int8", count=2, flops=looped + out)
    assert found[1] == Products(kind="bfloat16", count=1, flops=heads)


def test_gpus_have_dots_in_fusions_and_calls_of_cublas():
    found = {each.kind: each for each in products_of(GPU)}
    assert found["int8"] == Products(kind="int8", count=1, flops=2 * 4 * 16 * 8 * 1024)
    assert found["float8_e4m3fn"] == Products(kind="float8_e4m3fn", count=1, flops=2 * 8 * 32 * 64)
    assert found["float32"] == Products(kind="float32", count=1, flops=2 * 8 * 32 * 64)  # the wider of the two
    assert len(found) == 3


def test_a_program_of_this_machine_is_read_too():
    def product(x, y):
        return jax.lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)

    compiled = jax.jit(product).lower(jnp.ones((16, 48), jnp.int8), jnp.ones((48, 32), jnp.int8)).compile()
    assert products_of(compiled) == (Products(kind="int8", count=1, flops=2 * 16 * 48 * 32),)


def test_a_program_without_products_has_none():
    assert products_of(jax.jit(jnp.sin).lower(1.0).compile()) == ()


def test_of_branches_the_costliest_counts_in_a_compiled_program_too():
    def run(x, w, turn):
        return jax.lax.switch(turn, [lambda x: x @ w, lambda x: jnp.sin(x @ w) @ w, lambda x: x @ w], x)

    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, 128), (128, 128)))
    (found,) = products_of(jax.jit(run).lower(x, w, jax.ShapeDtypeStruct((), jnp.int32)).compile())
    assert found.flops == 2 * 2 * 64 * 128 * 128
