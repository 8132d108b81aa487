"""Block-sparse attention: plain attention with the mask that is drawn, and memory that grows as the text does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops import Mask, attention
from flax_transformer.ops.attention.block_sparse import block_sparse_attention, draw_blocks

pytestmark = pytest.mark.proves(
    "block-sparse attention (BigBird)", "equal to `attention` with the mask that is drawn; memory linear in T"
)


def heads(T, rows=2, N=3, H=4):
    return [jax.random.normal(key, (rows, T, N, H)) for key in jax.random.split(jax.random.key(0), 3)]


def picture(drawn, count, size):
    """Draw which keys each query sees, head by head: [N, T, T]."""
    seen = np.zeros((len(drawn), count, count), bool)
    seen[:, [0, -1]] = seen[:, :, [0, -1]] = True
    for row in range(1, count - 1):
        seen[:, row, row - 1 : row + 2] = True
        for head, rows in enumerate(drawn):
            seen[head, row, rows[row - 1]] = True
    return seen.repeat(size, 1).repeat(size, 2)


@pytest.mark.rotates
@pytest.mark.parametrize("T", [60, 58])
def test_it_is_attention_with_the_mask_that_is_drawn(T):
    size, count, lengths = 5, 12, jnp.array([T, 31])
    drawn = draw_blocks(60, block=size, count=2, heads=3, max_length=60, seed=3)
    q, k, v = heads(T)
    visible = jnp.arange(T) < lengths[:, None]
    dense = picture(drawn, count, size)[:, :T, :T]
    mask = Mask(dense=jnp.asarray(dense[None])) & Mask(dense=visible[:, None, None, :])

    def ours(q, k, v):
        return block_sparse_attention(q, k, v, jnp.asarray(drawn), visible, block=size)

    def plain(q, k, v):
        return attention(q, k, v, mask, backend="xla")

    np.testing.assert_allclose(ours(q, k, v), plain(q, k, v), atol=1e-6)
    pull = jax.random.normal(jax.random.key(9), q.shape)
    for a, b in zip(jax.vjp(ours, q, k, v)[1](pull), jax.vjp(plain, q, k, v)[1](pull), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-6)


def test_drawn_blocks_are_none_that_are_seen_anyway():
    drawn = draw_blocks(400, block=4, count=3, heads=2, max_length=400, seed=1)
    assert drawn.shape == (2, 98, 3)
    for head in drawn:
        for row, blocks in enumerate(head, start=1):
            assert len({*blocks, row - 1, row, row + 1, 0, 99}) == 3 + len({row - 1, row, row + 1, 0, 99})
    again = draw_blocks(400, block=4, count=3, heads=2, max_length=400, seed=2)
    assert (again != drawn).any()


def memory(T):
    x = jax.ShapeDtypeStruct((1, T, 2, 8), jnp.float32)
    drawn = jnp.zeros((2, T // 16 - 2, 1), jnp.int32)
    loss = lambda *x: block_sparse_attention(*x, drawn, block=16).sum()  # noqa: E731
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(x, x, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.rotates
def test_memory_is_linear_in_the_length():
    assert 3.5 < memory(4096) / memory(1024) < 4.6


def test_what_does_not_fit_is_refused():
    q, k, v = heads(16)
    with pytest.raises(ValueError, match="at least 5 blocks"):
        block_sparse_attention(q, k, v, jnp.zeros((3, 2, 1), jnp.int32), block=4)
    with pytest.raises(ValueError, match="blocks drawn for each"):
        block_sparse_attention(q, k, v, jnp.zeros((3, 5, 1), jnp.int32), block=2)
    with pytest.raises(ValueError, match="to draw R=2 of them there must be 10 blocks, got 9"):
        draw_blocks(72, block=8, count=2, heads=1, max_length=72, seed=0)
