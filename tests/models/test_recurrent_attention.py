"""Attention of recurrent decoders against the papers' formulas, worked one state and one source position at a time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.text.recurrent_attention import RecurrentAttention, RecurrentAttentionConfig
from flax_transformer.nn import Precision

pytestmark = pytest.mark.proves("recurrent layers", "additive, dot, general, local attention by the papers' formulas")

B, T, S, Q, W = 2, 3, 6, 4, 5
LENGTHS = np.array([6, 3])


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def made(**options):
    memory = Q if options.get("score") == "dot" else W
    return RecurrentAttention(RecurrentAttentionConfig(**options), Q, memory, Precision(), rngs=nnx.Rngs(1)), drawn(
        B, S, memory, seed=2
    )


def by_hand(look, query, memory, positions):
    """Return contexts and shares, by the formulas of Bahdanau et al. 2015 (A.1.2) and Luong et al. 2015 (§3)."""
    cfg, contexts, shares = look.cfg, np.zeros((B, T, memory.shape[-1])), np.zeros((B, T, S))
    kernel = lambda name: np.asarray(getattr(look, name).kernel[...])  # noqa: E731
    for row, t in itertools.product(range(B), range(T)):
        q, length = query[row, t], LENGTHS[row]
        scores = np.full(S, -np.inf)
        for s in range(length):
            m = memory[row, s]
            if cfg.score == "additive":
                bias = np.asarray(look.memory.bias[...])
                hidden = np.tanh(q @ kernel("state") + m @ kernel("memory") + bias)
                scores[s] = hidden @ kernel("score")[:, 0]
            else:
                scores[s] = q @ m if cfg.score == "dot" else q @ (m @ kernel("memory"))
        near = np.ones(S)
        if cfg.local is not None:
            if cfg.local == "monotonic":
                middle = min(positions[t], length - 1)
            else:
                predicted = np.tanh(q @ kernel("left")) @ kernel("middle")[:, 0]
                middle = length / (1 + np.exp(-predicted))
                near = np.exp(-((np.arange(S) - middle) ** 2) / (2 * (cfg.window / 2) ** 2))
            scores[np.abs(np.arange(S) - middle) > cfg.window] = -np.inf
        share = np.exp(scores - scores.max())
        shares[row, t] = share / share.sum() * near
        contexts[row, t] = shares[row, t] @ memory[row]
    return contexts, shares


KINDS = [
    {"score": "additive"}, {"score": "additive", "width": 7}, {"score": "dot"}, {"score": "general"},
    {"score": "general", "local": "monotonic", "window": 1}, {"score": "additive", "local": "predictive", "window": 2},
]  # fmt: skip


@pytest.mark.rotates
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_what_is_seen_is_what_the_papers_say(kind):
    look, memory = made(**kind)
    query, positions = drawn(B, T, Q, seed=3), np.array([0, 2, 5])
    given = jnp.asarray(query), look.keys(jnp.asarray(memory)), jnp.asarray(memory)
    context, shares = look(*given, jnp.asarray(LENGTHS), jnp.asarray(positions))
    expected = by_hand(look, query, memory, positions)
    np.testing.assert_allclose(shares, expected[1], atol=1e-6)
    np.testing.assert_allclose(context, expected[0], atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", KINDS[:1] + KINDS[-2:], ids=lambda kind: "-".join(map(str, kind.values())))
def test_an_empty_source_shows_nothing(kind):
    look, memory = made(**kind)
    memory = jnp.asarray(memory)
    see = lambda query: look(query, look.keys(memory), memory, jnp.array([0, 3]), jnp.arange(T))[0]  # noqa: E731
    query = jnp.asarray(drawn(B, T, Q))
    np.testing.assert_array_equal(see(query)[0], 0)
    assert np.isfinite(jax.jacobian(lambda query: see(query).sum())(query)).all()


def test_scores_that_need_equal_widths_say_so():
    with pytest.raises(ValueError, match="equally wide for score='dot', got 4 and 5"):
        RecurrentAttention(RecurrentAttentionConfig(score="dot"), Q, W, Precision(), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="window"):
        RecurrentAttentionConfig(window=0)
