"""Pools of tokens against loops over each row, with padding on either side and prompts left out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.models.text.sentence import DenseConfig, SentenceHeadConfig, sentence_encoder, unit
from flax_transformer.models.token_pool import TOKEN_POOLS, pool_tokens

HIDDEN = np.random.default_rng(0).standard_normal((4, 7, 3)).astype(np.float32)
LENGTHS = (7, 4, 1, 3)


def real(side):
    at = np.arange(7)
    return np.stack([at < n if side == "right" else at >= 7 - n for n in LENGTHS])


def expected(pool, rows, weights):
    """Pool one row by hand."""
    return {
        "first": lambda: rows[0],
        "last": lambda: rows[-1],
        "max": lambda: rows.max(0),
        "mean": lambda: rows.mean(0),
        "sum over root length": lambda: rows.sum(0) / np.sqrt(len(rows)),
        "mean by position": lambda: (rows * weights[:, None]).sum(0) / weights.sum(),
    }[pool]()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pool", TOKEN_POOLS)
def test_a_pool_is_what_a_loop_gives(pool, side):
    shown = real(side)
    for leave_out in (None, 2):
        got = pool_tokens(pool, jnp.asarray(HIDDEN), jnp.asarray(shown), leave_out=leave_out)
        for row, here, found in zip(HIDDEN, shown, got, strict=True):
            rows, weights = row[here], np.arange(1.0, here.sum() + 1)
            if len(rows) > (leave_out or 0):
                rows, weights = rows[leave_out or 0 :], weights[leave_out or 0 :]
                np.testing.assert_allclose(found, expected(pool, rows, weights), rtol=1e-6)


@pytest.mark.parametrize("pool", TOKEN_POOLS)
def test_a_row_of_padding_alone_has_finite_gradients(pool):
    nothing = jnp.zeros((1, 7), bool)

    def loss(hidden):
        return jnp.sum(unit(pool_tokens(pool, hidden, nothing)) ** 2)

    assert np.isfinite(jax.grad(loss)(jnp.asarray(HIDDEN[:1]))).all()


def test_a_vector_of_length_0_stays_one():
    assert unit(jnp.zeros((1, 3))).tolist() == [[0, 0, 0]]
    np.testing.assert_allclose(np.linalg.norm(unit(jnp.array([[3e-6, 4e-6]])), axis=-1), 1, rtol=1e-6)


def test_heads_say_how_wide_vectors_are_and_refuse_what_is_none():
    head = SentenceHeadConfig(embed=8, pools=("first", "max"), dense=(DenseConfig(width=5), DenseConfig(width=3)))
    assert (head.widths, head.width) == ((16, 5, 3), 3)
    with pytest.raises(ValueError, match="needs at least one way to pool, got none"):
        SentenceHeadConfig(embed=8, pools=())
    with pytest.raises(ValueError, match=r"pools must be a tuple of one of first, max, mean, .*got \('middle',\)"):
        SentenceHeadConfig(embed=8, pools=("middle",))
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        DenseConfig(width=0)
    from flax_transformer.models.text.bert import bert_base_uncased

    made = sentence_encoder(bert_base_uncased().encoder, pools=("mean",))
    assert (made.head.embed, made.head.init_std) == (768, 0.02)
