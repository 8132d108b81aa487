"""Decoding all tokens at once: passes of mask-predict, lengths side by side, the best path of CTC."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.decode import Parallel, PowerPenalty, best_path, mask_predict
from flax_transformer.hub.processor.ctc import collapse

pytestmark = pytest.mark.proves("decoding all tokens at once", "one pass, an oracle, lengths by brute force, padding")

V, M, MASK = 11, 9, 10
LENGTHS = jnp.array([[4, 9], [1, 2], [7, 6]])


def weights(seed=0):
    draw = np.random.default_rng(seed)
    return [jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in ((V, 8), (40, 8), (8, V))]


def predict(tokens, lengths, seed=0):
    """A model in which every real position has a say in all others."""
    embed, place, out = weights(seed)
    x = embed[tokens] + place[: tokens.shape[1]]
    real = jnp.arange(tokens.shape[1]) < lengths[:, None]
    mean = jnp.sum(jnp.where(real[..., None], jnp.sin(x), 0), axis=1) / lengths[:, None]
    return 2 * (x + 3 * mean[:, None]) @ out


def config(**changes):
    return Parallel(**{"max_length": M, "mask": MASK, "iterations": 4, "beams": 2, **changes})


@pytest.mark.rotates
def test_one_pass_is_the_arg_max_of_what_is_all_masked():
    found = mask_predict(predict, LENGTHS[:, :1], config(iterations=1, beams=1))
    logits = predict(jnp.full((3, M), MASK), LENGTHS[:, 0])
    real = jnp.arange(M) < LENGTHS[:, :1]
    np.testing.assert_array_equal(found.best.tokens, jnp.where(real, logits.argmax(-1), 0))
    each = jnp.where(real, jax.nn.log_softmax(logits).max(-1), 0)
    np.testing.assert_allclose(found.best.logprobs, each, atol=1e-6)
    np.testing.assert_allclose(found.best.scores, each.sum(-1) / LENGTHS[:, 0], atol=1e-6)
    assert found.lengths.tolist() == LENGTHS[:, :1].tolist()


@pytest.mark.rotates
@pytest.mark.parametrize("iterations", [1, 2, 3, 7, 20])
def test_an_oracle_is_believed(iterations):
    """Of a model that knows the text, whatever it is shown."""
    wanted = jnp.asarray(np.random.default_rng(1).integers(1, 9, (3, M)))
    sure = lambda tokens, lengths: 9 * jax.nn.one_hot(wanted[:, : tokens.shape[1]], V)  # noqa: E731
    found = mask_predict(sure, LENGTHS[:, :1], config(iterations=iterations, beams=1))
    np.testing.assert_array_equal(found.best.tokens, jnp.where(jnp.arange(M) < LENGTHS[:, :1], wanted, 0))


@pytest.mark.rotates
@pytest.mark.parametrize("length", [1, 9, 10, 18, 19, 33])
def test_positions_behind_the_longest_are_neither_computed_nor_missed(length):
    """Of 36 all are computed, 18 or 9."""
    widths = []

    def watched(tokens, lengths):
        jax.debug.callback(lambda: widths.append(tokens.shape[1]))
        return predict(tokens, lengths)

    lengths, options = jnp.array([[length], [1]]), {"iterations": 3, "beams": 1}
    found = mask_predict(watched, lengths, config(max_length=36, **options))
    jax.effects_barrier()
    assert widths == [min(size for size in (9, 18, 36) if size >= length)] * 3
    tight = mask_predict(predict, lengths, config(max_length=length, **options))
    np.testing.assert_array_equal(found.tokens[..., :length], tight.tokens)
    assert not found.tokens[..., length:].any()
    np.testing.assert_allclose(found.scores, tight.scores, rtol=1e-5)


@pytest.mark.rotates
def test_more_passes_mend_what_one_cannot():
    """Of a model that can tell a token only once it sees the one before, tokens are right from the left on."""

    def chain(tokens, lengths):
        before = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
        right = (before + 1) % 9
        known = before != MASK
        return jax.nn.one_hot(jnp.where(known, right, 5), V) * jnp.where(known, 9, 2)[..., None]

    lengths = jnp.array([[6]])
    one, many = (mask_predict(chain, lengths, config(iterations=n, beams=1)).best.tokens[0] for n in (1, 6))
    assert many[:6].tolist() == [1, 2, 3, 4, 5, 6]
    assert one[:6].tolist() == [1, 5, 5, 5, 5, 5]


@pytest.mark.rotates
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_best_of_several_lengths_is_that_of_each_alone(alpha):
    penalty = PowerPenalty(alpha=alpha)
    tried = jnp.array([[3, 9, 1, 6], [2, 5, 8, 4]])
    together = mask_predict(predict, tried, config(beams=4, n_best=4, length_penalty=penalty))
    for row in range(2):
        alone = []
        for length in tried[row].tolist():
            found = mask_predict(predict, jnp.array([[length]]), config(beams=1, length_penalty=penalty)).best
            alone.append((float(found.scores[0]), length, found.tokens[0].tolist()))
        alone.sort(key=lambda each: -each[0])
        assert together.lengths[row].tolist() == [length for _, length, _ in alone]
        assert together.tokens[row].tolist() == [tokens for *_, tokens in alone]
        np.testing.assert_allclose(together.scores[row], [score for score, *_ in alone], atol=1e-5)
    best = mask_predict(predict, tried, config(beams=4, length_penalty=penalty))
    np.testing.assert_array_equal(best.tokens[:, 0], together.tokens[:, 0])


@pytest.mark.rotates
def test_rows_do_not_matter_to_each_other_nor_does_room():
    decode = jax.jit(lambda lengths, config: mask_predict(predict, lengths, config), static_argnames="config")
    together = decode(LENGTHS, config(n_best=2))
    for row in range(3):
        alone = decode(LENGTHS[row : row + 1], config(n_best=2))
        roomy = decode(LENGTHS[row : row + 1], config(n_best=2, max_length=M + 3))
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_array_equal(roomy.tokens[0, :, :M], together.tokens[row])
        assert not roomy.tokens[..., M:].any()
        np.testing.assert_allclose(alone.scores[0], together.scores[row], atol=1e-5)


@pytest.mark.rotates
def test_what_may_not_be_written_is_not():
    free = mask_predict(predict, LENGTHS, config())
    banned = int(free.tokens[0, 0, 0])
    found = mask_predict(predict, LENGTHS, config(never=(banned, MASK), pad=8, n_best=2))
    real = jnp.arange(M) < found.lengths[..., None]
    assert not (real & (found.tokens == banned)).any()
    assert (jnp.where(real, 8, found.tokens) == 8).all()


@pytest.mark.rotates
def test_what_is_no_number_is_refused():
    broken = lambda tokens, lengths: predict(tokens, lengths).at[2:3, 0].set(jnp.nan)  # noqa: E731
    with pytest.raises(ValueError, match="logits must be numbers, those of row 1 are NaN"):
        mask_predict(broken, LENGTHS, config())


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"beams": 10}, "there must be as many lengths as beams, got beams=10, 9 lengths"),
        ({"n_best": 3}, "n_best must be between 1 and beams, got n_best=3, beams=2"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"mask": -1}, "tokens must not be negative, got mask=-1"),
    ],
)
def test_what_cannot_be_is_refused(changes, rule):
    with pytest.raises(ValueError, match=rule):
        config(**changes)


@pytest.mark.rotates
def test_the_best_path_is_that_of_every_position():
    draw = np.random.default_rng(2)
    logits, lengths = jnp.asarray(draw.normal(size=(20, 8, 4)), jnp.float32) * 2, draw.integers(0, 9, 20)
    for blank in (0, 2):
        found = best_path(logits, jnp.asarray(lengths), blank=blank, pad=7)
        sure = np.asarray(jax.nn.log_softmax(logits).max(-1))
        for row, length in enumerate(lengths):
            path = np.asarray(logits[row, :length].argmax(-1))
            text = collapse(path, blank) if length else []
            assert found.tokens[row, 0].tolist() == [*text, *[7] * (8 - len(text))]
            assert found.lengths[row, 0] == len(text)
            np.testing.assert_allclose(found.scores[row, 0], sure[row, :length].sum(), rtol=1e-5)
            np.testing.assert_allclose(found.logprobs[row, 0].sum(), sure[row, :length].sum(), rtol=1e-5)


def test_the_best_path_is_the_likeliest_of_all():
    logits = jnp.asarray(np.random.default_rng(3).normal(size=(1, 4, 3)), jnp.float32)
    each = np.asarray(jax.nn.log_softmax(logits[0]))
    scores = {
        way: sum(each[at, token] for at, token in enumerate(way)) for way in itertools.product(range(3), repeat=4)
    }
    best = max(scores, key=scores.get)
    found = best_path(logits, jnp.array([4]))
    assert found.tokens[0, 0, : found.lengths[0, 0]].tolist() == collapse(np.array(best), 0)
    np.testing.assert_allclose(found.scores[0, 0], scores[best], rtol=1e-5)
