"""Recurrent encoder-decoders: step by step as all at once, with any attention, and found by every search there is."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx

from flax_transformer.decode import Beam, PowerPenalty
from flax_transformer.models.text.recurrent import RecurrentSeq2Seq, luong_lstm, rnn_search
from flax_transformer.models.text.recurrent_attention import RecurrentAttentionConfig
from flax_transformer.nn import with_fields, with_precision
from flax_transformer.ops import capture
from flax_transformer.task.translator import decode_batch
from tests.shares import only, share

pytestmark = pytest.mark.proves("recurrent", "decode", "cache = all at once; a beam as wide as the tree finds the best")

V, S, T = 12, 6, 5
SMALL = with_fields(luong_lstm(V), embed=8, hidden=6, depth=2, dropout=0.0)
LENGTHS = jnp.array([6, 2, 1])


def config(cell="lstm", look=None, feeding=False, both=True):
    sides = with_fields(SMALL, cell=cell, look=look, feeding=feeding)
    return with_fields(sides, encoder=with_fields(sides.encoder, bidirectional=both))


KINDS = {
    "no attention": {},
    "no attention, one way": {"both": False},
    "fed": {"feeding": True},
    "Bahdanau": {"cell": "gru", "look": RecurrentAttentionConfig(before=True)},
    "Luong, dot": {"look": RecurrentAttentionConfig(score="dot"), "both": False},
    "Luong, general, fed": {"look": RecurrentAttentionConfig(score="general"), "feeding": True},
    "Luong, concat": {"cell": "gru", "look": RecurrentAttentionConfig()},
    "monotonic": {"look": RecurrentAttentionConfig(score="general", local="monotonic", window=1), "feeding": True},
    "predictive": {"cell": "gru", "look": RecurrentAttentionConfig(local="predictive", window=2)},
}


def model(kind):
    made = RecurrentSeq2Seq(config(**KINDS[kind]), rngs=nnx.Rngs(0))
    return jax.tree.map(lambda leaf: 2 * leaf, made)  # so that outputs differ by more than rounding


def tokens(*shape, seed=0):
    return jax.random.randint(jax.random.key(seed), shape, 1, V)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", share(KINDS, 0, of=3))
def test_step_by_step_is_all_at_once_and_hypotheses_share_their_source(kind):
    one, source, target = model(kind), tokens(3, S), tokens(6, T, seed=1)
    cache, found = one.init_cache(one.encode(source, LENGTHS), LENGTHS, T, beams=2), []
    step = jax.jit(type(one).step)
    for position in range(T):
        logits, cache = step(one, cache, target[:, position])
        found.append(logits)
    expected = one(jnp.repeat(source, 2, axis=0), target, jnp.repeat(LENGTHS, 2))
    np.testing.assert_allclose(jnp.stack(found, axis=1), expected, atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", share(KINDS, 1, of=3))
def test_what_padding_holds_says_nothing(kind):
    one, source, target = model(kind), tokens(3, S), tokens(3, T, seed=1)
    other = jnp.where(jnp.arange(S + 2) < LENGTHS[:, None], jnp.pad(source, ((0, 0), (0, 2))), 7)
    np.testing.assert_allclose(one(other, target, LENGTHS), one(source, target, LENGTHS), atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", share(KINDS, 2, of=3))
def test_the_future_is_unseen_and_everything_else_learns(kind):
    one, source, target = model(kind), tokens(3, S), tokens(3, T, seed=1)
    changed = target.at[:, 3].set((target[:, 3] + 1) % V)
    before, after = (one(source, given, LENGTHS) for given in (target, changed))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6)
    assert np.abs(after[:, 3:] - before[:, 3:]).max() > 1e-4
    slopes = jax.grad(lambda one: jnp.sum(jnp.sin(one(source, target, LENGTHS))))(one)
    assert all(np.abs(leaf).max() > 1e-7 for leaf in jax.tree.leaves(slopes))


@pytest.mark.rotates
@pytest.mark.parametrize("kind", only(["fed", "Bahdanau", "Luong, dot"], "Bahdanau"))
def test_a_beam_as_wide_as_the_tree_is_exhaustive_search(kind):
    """Of all that can be written in three tokens, the likeliest that ends, or that is as long as may be."""
    one, source, end, longest = model(kind), tokens(1, S), 2, 3
    lengths = jnp.array([S])
    scored = {}
    for words in itertools.product(range(V), repeat=longest):
        cut = words.index(end) + 1 if end in words else longest
        scored[words[:cut]] = None
    texts = list(scored)
    rows = np.array([[*words, *[0] * (longest - len(words))] for words in texts])
    fed = np.concatenate([np.ones((len(rows), 1), int), rows[:, :-1]], axis=1)
    logits = one(jnp.repeat(source, len(rows), axis=0), jnp.asarray(fed), jnp.repeat(lengths, len(rows)))
    each = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), rows[..., None], axis=-1)[..., 0]
    total = [each[number, : len(words)].sum() for number, words in enumerate(texts)]
    best = texts[int(np.argmax(total))]
    search = Beam(
        beams=V**2, max_length=longest, eos=end, length_penalty=PowerPenalty(alpha=0.0), early_stopping="never"
    )
    found = decode_batch(one, source, lengths, config=search, bos=1)
    assert tuple(np.asarray(found.tokens[0, 0])[: len(best)].tolist()) == best
    np.testing.assert_allclose(found.scores[0, 0], max(total), rtol=1e-4)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", only(["Bahdanau", "Luong, general, fed", "Luong, concat"], "Luong, concat"))
def test_what_is_looked_at_is_captured(kind):
    one, source, target = model(kind), tokens(3, S), tokens(3, T, seed=1)
    _, (shares,) = capture(type(one).decode, "attention_weights")(one, target, one.encode(source, LENGTHS), LENGTHS)
    assert shares.shape == (1, 3, 1, T, S)
    np.testing.assert_allclose(shares.sum(-1), 1, atol=1e-5)
    assert np.all(np.asarray(shares)[0, 1, ..., 2:] == 0)


@pytest.mark.rotates
@pytest.mark.parametrize("kind", only(["Luong, general, fed", "Luong, concat"], "Luong, general, fed"))
def test_dropout_is_drawn_by_its_key_and_sound_where_weights_are_short(kind):
    cfg = with_fields(config(**KINDS[kind]), dropout=0.4)
    one, source, target = RecurrentSeq2Seq(cfg, rngs=nnx.Rngs(0)), tokens(3, S), tokens(3, T, seed=1)
    see = lambda key: one.hidden_states(source, target, lengths=LENGTHS, key=key)  # noqa: E731
    np.testing.assert_array_equal(see(jax.random.key(1)), see(jax.random.key(1)))
    assert np.abs(see(jax.random.key(1)) - see(jax.random.key(2))).max() > 1e-2
    short = RecurrentSeq2Seq(with_precision(cfg, compute="bfloat16"), rngs=nnx.Rngs(0))
    near = short.hidden_states(source, target, lengths=LENGTHS)
    assert near.dtype == jnp.bfloat16
    np.testing.assert_allclose(near.astype(jnp.float32), see(None), atol=5e-2)


def test_sides_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="as many layers of one kind"):
        with_fields(SMALL, decoder=with_fields(SMALL.decoder, depth=1))
    with pytest.raises(ValueError, match="feeding must be False"):
        with_fields(SMALL, look=RecurrentAttentionConfig(before=True), feeding=True)
    with pytest.raises(ValueError, match="reads in one direction"):
        with_fields(SMALL, decoder=with_fields(SMALL.decoder, bidirectional=True))
    with pytest.raises(ValueError, match="must read embeddings"):
        with_fields(SMALL, encoder=with_fields(SMALL.encoder, embed=9))


def test_published_sizes():
    """GRUs of 1,000 that read 620 in both directions, and one that reads 620 and what it saw, 2,000 (A.2.3)."""
    gru = lambda inputs: 3 * 1000 * (inputs + 1000) + 2 * 3000  # noqa: E731
    one = nnx.eval_shape(lambda: RecurrentSeq2Seq(rnn_search(), rngs=nnx.Rngs(0)))
    rows = -(-30_000 // rnn_search().embedding.multiple) * rnn_search().embedding.multiple
    look = 1000 * 1000 + 2000 * 1000 + 1000 + 1000
    expected = rows * 620 + 2 * gru(620) + gru(620) + 3000 * 2000 + look + (2000 * 1000 + 1000) + (3000 * 620 + 620)
    assert sum(leaf.size for leaf in jax.tree.leaves(one)) == expected


EIGHT = """
import json, jax, numpy as np
from tests.models.test_recurrent_seq2seq import KINDS, model, tokens
from flax_transformer.objective import TokenLoss
from flax_transformer.parallel import MeshConfig, make_mesh, tree_shardings
import jax.numpy as jnp

source, target, found = tokens(8, 6), tokens(8, 5, seed=1), {}
batch = {"inputs": {"source": source, "target": target[:, :-1], "lengths": jnp.arange(8) % 6 + 1},
         "labels": target[:, 1:], "weights": jnp.ones((8, 4))}
loss = jax.jit(jax.value_and_grad(lambda one: TokenLoss()(one, batch, key=None)[0]))
for kind in ("no attention", "Bahdanau", "Luong, general, fed"):
    one = model(kind)
    expected, mesh = loss(one), make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    with jax.set_mesh(mesh):
        got = loss(jax.device_put(one, tree_shardings(one, mesh)))
    pairs = zip(jax.tree.leaves(jax.device_get(got)), jax.tree.leaves(jax.device_get(expected)), strict=True)
    found[kind] = max(float(np.abs(mine - its).max()) for mine, its in pairs)
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.proves("recurrent", "shard", "data × fsdp × tensor, gradients too")
def test_eight_devices_are_one():
    found, _ = on_eight("-c", EIGHT)
    assert len(found) == 3
    assert max(found.values()) < 1e-4, found
