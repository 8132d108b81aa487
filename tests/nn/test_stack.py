"""A stack under a mesh with stages is a pipeline, and nobody can tell by the result."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.nn import (
    Block,
    Cycle,
    PerLayer,
    apply_stack,
    every_layer,
    extend_stack,
    init_stack,
    layer,
    transformer_block,
    unstack,
)
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
def test_a_pipeline_gives_what_the_stack_gives_of_masks_in_turns_and_of_experts():
    assert max(errors_of("turns, and experts", "experts that drop nothing").values()) < 1e-5


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


@pytest.mark.rotates
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


TURNS = Mask(causal=True, window=(1, 0)), Mask(causal=True), Mask(causal=True, lengths=jnp.array([3, 5]))


def stack(depth):
    return init_stack(lambda rngs: Block(CONFIG, rngs=rngs), depth, key=jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"unroll": True, "remat": "full"}])
def test_layers_that_take_turns_are_those_of_a_loop(options):
    """Of three masks, among other arguments that are each layer's own; values and gradients."""
    x, blocks, rates = jax.random.normal(jax.random.key(1), (2, 5, 16)), stack(6), jnp.linspace(0, 0.5, 6)
    key, bias = jax.random.key(2), jax.random.normal(jax.random.key(3), (6, 4, 5, 5))

    def scanned(blocks):
        given = {"mask": Cycle(TURNS), "bias": PerLayer(bias), "drop_path": PerLayer(rates), "key": key}
        return every_layer(blocks, x, **given, **options)

    def looped(blocks):
        h, found, keys = x, [], jax.random.split(key, 6)
        for i in range(6):
            h = layer(blocks, i)(h, mask=TURNS[i % 3], bias=bias[i], drop_path=rates[i], key=keys[i])
            found.append(h)
        return jnp.stack(found)

    np.testing.assert_allclose(jax.jit(scanned)(blocks), jax.jit(looped)(blocks), rtol=1e-4, atol=1e-5)
    ours, theirs = (jax.jit(jax.grad(lambda b, f=f: (f(b) ** 2).sum()))(blocks) for f in (scanned, looped))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), ours, theirs)


@pytest.mark.rotates
def test_turns_are_taken_one_token_at_a_time_and_apart():
    x, blocks = jax.random.normal(jax.random.key(1), (2, 4, 16)), stack(4)
    turns = Cycle((Mask(window=(1, 0)), Mask()))
    causal = Cycle(tuple(mask & Mask(causal=True) for mask in turns.values))
    whole = jax.jit(lambda blocks: apply_stack(blocks, x, mask=causal))(blocks)
    np.testing.assert_allclose(jax.jit(lambda b: apply_stack(b, x, mask=causal))(unstack(blocks)), whole, atol=1e-5)
    cache, found = jax.vmap(lambda block: block.attention.init_cache(2, 4))(blocks), []
    step = jax.jit(lambda x, cache: extend_stack(blocks, x, cache, mask=turns))
    for t in range(4):
        y, cache = step(x[:, t : t + 1], cache)
        found.append(y)
    np.testing.assert_allclose(jnp.concatenate(found, 1), whole, atol=1e-5)


def test_a_program_of_turns_is_as_large_for_any_depth():
    x = jax.ShapeDtypeStruct((2, 5, 16), jnp.float32)

    def size(depth):
        blocks = jax.eval_shape(lambda: stack(depth))
        lowered = jax.jit(lambda b, x: apply_stack(b, x, mask=Cycle(TURNS[:2]))).lower(blocks, x)
        return len(lowered.as_text().splitlines())

    assert size(4) == size(12)


@pytest.mark.parametrize("depth", [12, 14])
def test_layers_in_turns_are_computed_again_from_the_stack_itself(depth):
    """Kept for the backward pass beside it, they would be all layers' weights once more; with whole rounds, or not."""

    class Product(nnx.Module):
        def __init__(self, rngs):
            self.kernel = nnx.Param(jax.random.normal(rngs.params(), (128, 128)))

        def __call__(self, x, scale, key=None):
            return x + jnp.tanh(x @ self.kernel[...]) * scale

    blocks = jax.eval_shape(lambda: init_stack(Product, depth, key=jax.random.key(0)))

    def loss(blocks, x):
        return apply_stack(blocks, x, Cycle((1.0, 2.0, 3.0)), remat="full").sum()

    program = jax.jit(jax.grad(loss)).lower(blocks, jax.ShapeDtypeStruct((8, 128), jnp.float32)).compile()
    assert program.memory_analysis().temp_size_in_bytes < 0.5 * depth * 128 * 128 * 4


@pytest.mark.rotates
def test_turns_go_on_in_the_layers_that_are_left():
    """Of five layers by two and by three turns, of two by three; each layer's output, and with a cache."""
    x = jax.random.normal(jax.random.key(1), (2, 4, 16))
    for depth, turns in ((5, TURNS[:2]), (5, TURNS), (2, TURNS)):
        blocks, h, found = stack(depth), x, []
        for i in range(depth):
            h = layer(blocks, i)(h, mask=turns[i % len(turns)])
            found.append(h)
        np.testing.assert_allclose(every_layer(blocks, x, mask=Cycle(turns)), jnp.stack(found), atol=1e-5)
    cache = jax.vmap(lambda block: block.attention.init_cache(2, 4))(blocks)
    masks = Cycle(tuple(Mask(window=width) for width in ((1, 0), (2, 0), (3, 0))))
    whole = apply_stack(blocks, x, mask=Cycle(tuple(mask & Mask(causal=True) for mask in masks.values)))
    found, cache = extend_stack(blocks, x[:, :3], cache, mask=masks)
    last, cache = extend_stack(blocks, x[:, 3:], cache, mask=masks)
    np.testing.assert_allclose(jnp.concatenate([found, last], 1), whole, atol=1e-5)


def test_the_stages_of_a_pipeline_have_all_turns_alike():
    with mesh(pipeline=2), pytest.raises(ValueError, match=r"of a pipeline's stage must .* got L=3, 2 turns"):
        run(6, jnp.ones((4, 5, 16)), mask=Cycle(TURNS[:2]))
