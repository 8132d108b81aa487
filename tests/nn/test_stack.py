"""A stack under a mesh with stages is a pipeline, and nobody can tell by the result."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from fake_devices import on_eight
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.nn import Block, apply_stack, extend_stack, init_stack, transformer_block, unstack
from flax_transformer.nn.pipeline import has_rows, microbatch_count, pipeline_stages
from flax_transformer.ops import Mask, capture
from flax_transformer.parallel import MeshConfig, abstract_mesh

ROOT = Path(__file__).parent.parent.parent
CONFIG = transformer_block(embed=16, heads=4, inner=32)


def errors_of(*cases):
    return on_eight(Path(__file__).parent / "pipelines.py", *cases)[0]


@pytest.mark.slow
def test_a_pipeline_gives_what_the_stack_gives():
    """The result and every gradient, with dropout: of blocks, of x and of a bias."""
    assert errors_of("packed rows")["packed rows"] < 1e-5


@pytest.mark.slow
def test_a_pipeline_gives_what_the_stack_gives_with_a_memory_and_with_a_bias_for_each_row():
    assert max(errors_of("a memory", "a bias for each row").values()) < 1e-5


@pytest.mark.slow
def test_a_pipeline_of_short_floats_is_as_near_to_float32_as_the_stack():
    on_mesh, on_one_device = errors_of("bfloat16")["bfloat16"]
    assert 0 < on_mesh < 1.5 * on_one_device


@contextmanager
def mesh(**sizes):
    with jax.sharding.use_abstract_mesh(abstract_mesh(MeshConfig(data=1, **sizes))):
        yield


def run(depth, x, *args, **kwargs):
    make = lambda: init_stack(lambda rngs: Block(CONFIG, rngs=rngs), depth, key=jax.random.key(0))  # noqa: E731
    return jax.eval_shape(lambda: apply_stack(make(), x, *args, **kwargs))


def test_only_a_stack_under_a_mesh_with_stages_is_one():
    assert pipeline_stages() == 1
    with mesh(pipeline=1, fsdp=4):
        assert pipeline_stages() == 1
    x, blocks = jnp.ones((8, 3, 16)), init_stack(lambda r: Block(CONFIG, rngs=r), 4, key=jax.random.key(0))
    with mesh(pipeline=4):
        assert pipeline_stages() == 4
        assert "shard_map" in str(jax.make_jaxpr(lambda b: apply_stack(b, x))(blocks))
        assert "shard_map" not in str(jax.make_jaxpr(lambda b: apply_stack(b, x))(unstack(blocks)))
        cache = jax.vmap(lambda block: block.attention.init_cache(8, 3))(blocks)
        assert "shard_map" not in str(jax.make_jaxpr(lambda b: extend_stack(b, x, cache)[0])(blocks))


@pytest.mark.parametrize(
    ("depth", "x", "message"),
    [
        (6, jnp.ones((8, 3, 16)), "layers must be a multiple of the pipeline's stages, got L=6, pipeline=4"),
        (4, jnp.ones((3, 16)), r"x must be \[B, T, D\], got \(3, 16\)"),
        (4, jnp.ones((3, 3, 16)), "there are 3 rows, 4 stages, data × fsdp is 1; 4 or a multiple would do"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(depth, x, message):
    with mesh(pipeline=4), pytest.raises(ValueError, match=message):
        run(depth, x)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 200))
def test_microbatches_are_the_most_that_keep_rows_even(stages, parts, rows):
    possible = [m for m in range(stages, 4 * stages + 1) if rows % m == 0 and rows // m % parts == 0]
    if possible:
        assert microbatch_count(rows, stages, parts) == max(possible)
    else:
        with pytest.raises(ValueError, match=f"there are {rows} rows, {stages} stages, data × fsdp is {parts}"):
            microbatch_count(rows, stages, parts)


@pytest.mark.parametrize(
    ("name", "shape", "cut"),
    [
        ("lengths", (8,), True),
        ("lengths", (1,), False),
        ("segments", (8, 5), True),
        ("segments", (8,), False),
        ("positions", (8, 5), True),
        ("positions", (1, 5), False),
        ("positions", (8,), False),
        ("memory", (8, 5, 16), True),
        ("bias", (8, 4, 5, 5), True),
        ("bias", (8, 5, 5), False),
        ("dense", (1, 1, 5, 5), False),
        ("temperature", (8,), False),
        (None, (8,), False),
    ],
)
def test_arguments_are_cut_that_have_rows(name, shape, cut):
    assert has_rows(name, jnp.zeros(shape), 8) is cut


def test_numbers_stay_numbers():
    with mesh(pipeline=2):
        assert run(2, jnp.ones((8, 3, 16)), mask=Mask(causal=True, offset=0)).shape == (8, 3, 16)


def test_values_inside_a_pipeline_cannot_be_captured():
    blocks = init_stack(lambda rngs: Block(CONFIG, rngs=rngs), 2, key=jax.random.key(0))
    with mesh(pipeline=2), pytest.raises(ValueError, match="must not be inside 'shard_map'"):
        jax.eval_shape(capture(lambda x: apply_stack(blocks, x), "hidden_states"), jnp.ones((8, 3, 16)))


def test_offloading_needs_memory_of_the_host(monkeypatch):
    device = SimpleNamespace(addressable_memories=lambda: [SimpleNamespace(kind="device")])
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    with pytest.raises(ValueError, match="remat 'offload' needs pinned host memory, the device has device"):
        run(2, jnp.ones((2, 3, 16)), remat="offload")
