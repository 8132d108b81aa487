"""What is not compiled in, rows that draw by their number, logits that are no numbers, and 64-bit types."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from flax_transformer.decode import (
    Beam,
    Constraints,
    Greedy,
    PowerPenalty,
    Sampling,
    beam_search,
    greedy,
    make_process,
    room,
    sample,
    stream,
)
from flax_transformer.ops.sampling import row_keys
from tests.shares import only

V, EOS, PAD = 7, 2, 1
TABLE = jnp.array(np.random.default_rng(3).normal(size=(13, V)).astype("float32") * 2)
PROMPT = jnp.arange(5, dtype=jnp.int32)


def markov(table, state, token):
    state = (state * 3 + token) % len(table)
    return table[state], state


STEP = Partial(markov, TABLE)


def search(config, cache, prompt, process=None):
    if isinstance(config, Beam):
        return beam_search(STEP, jnp.repeat(cache, config.beams), prompt, config, process=process)
    if isinstance(config, Sampling):
        return sample(STEP, cache, prompt, jax.random.key(4), config, process=process)
    return greedy(STEP, cache, prompt, config, process=process)


KINDS = {
    "greedy": lambda **options: Greedy(eos=EOS, pad=PAD, **options),
    "sample": lambda **options: Sampling(eos=EOS, pad=PAD, top_k=5, top_p=0.9, **options),
    "beam": lambda **options: Beam(eos=EOS, pad=PAD, beams=3, n_best=3, **options),
    "never": lambda **options: Beam(
        eos=EOS, pad=PAD, beams=3, early_stopping="never", length_penalty=PowerPenalty(alpha=2.0), **options
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", only(KINDS, "greedy", "beam"))
def test_a_limit_is_a_shorter_max_length_without_a_program_of_its_own(kind):
    make = KINDS[kind]
    constraints = Constraints(last=4, min_length=2, eos=EOS)
    run = jax.jit(lambda config, process: search(config, jnp.zeros(5, jnp.int32), PROMPT, process))
    for limit in (1, 5, 8):
        got = run(make(max_length=8, limit=limit), make_process(constraints, PROMPT[:, None], limit=limit))
        want = search(
            make(max_length=limit), jnp.zeros(5, jnp.int32), PROMPT, make_process(constraints, PROMPT[:, None])
        )
        np.testing.assert_array_equal(got.tokens[..., :limit], want.tokens)
        assert (got.tokens[..., limit:] == PAD).all()
        np.testing.assert_array_equal(got.lengths, want.lengths)
        np.testing.assert_allclose(got.scores, want.scores, rtol=1e-6)
    assert run._cache_size() == 1


@pytest.mark.rotates
def test_streams_share_a_program_whatever_their_numbers():
    traces = []

    def traced(table, state, token):
        traces.append(1)
        return markov(table, state, token)

    counts = []
    for temperature, top_k, top_p, min_p, penalty, least, length in (
        (0.8, 5, 0.9, 0.01, 1.2, 2, 20), (0.81, 6, 0.95, 0.02, 1.3, 3, 27), (1.7, 2, 1.0, 0.0, 0.9, 1, 32)
    ):  # fmt: skip
        config = Sampling(
            max_length=length, eos=EOS, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=top_p
        )
        constraints = Constraints(repetition_penalty=penalty, min_length=least, eos=EOS)
        process = make_process(constraints, PROMPT[:, None], limit=length)
        options = {"key": jax.random.key(0), "process": process, "chunk": 8}
        chunks = list(stream(Partial(traced, TABLE), jnp.zeros(5, jnp.int32), PROMPT, config, **options))
        want = sample(STEP, jnp.zeros(5, jnp.int32), PROMPT, jax.random.key(0), config, process=process)
        tokens = np.concatenate(chunks, axis=1)
        np.testing.assert_array_equal(tokens, want.tokens[:, 0, : tokens.shape[1]])
        counts.append(len(traces))
    assert counts == [counts[0]] * 3


def test_sizes_are_few():
    assert len({room(n) for n in range(1, 1025)}) == 6
    assert all(n <= room(n) < 2 * max(n, 32) for n in range(1, 1025))


@pytest.mark.slow
def test_a_row_draws_the_same_in_any_batch_and_place():
    key, config = jax.random.key(8), Sampling(max_length=9, eos=(), temperature=1.5)
    draws = lambda prompt, key: sample(STEP, jnp.zeros(len(prompt), jnp.int32), prompt, key, config).tokens[:, 0]  # noqa: E731
    whole = draws(PROMPT, key)
    np.testing.assert_array_equal(draws(PROMPT[:2], key), whole[:2])
    rows = np.array([3, 0, 4])
    np.testing.assert_array_equal(draws(PROMPT[rows], row_keys(key, rows)), whole[rows])
    again = stream(
        STEP, jnp.zeros(3, jnp.int32), PROMPT[rows], Sampling(max_length=9, eos=(), temperature=1.5),
        key=row_keys(key, rows), chunk=9,
    )  # fmt: skip
    np.testing.assert_array_equal(next(again), whole[rows])


def broken(cache, token):
    """Gives NaN to row 1 from the fourth token on, as a table of positions does that has come to its end."""
    logits, state = markov(TABLE, cache["state"], token)
    bad = cache["bad"] & (cache["t"] >= 3)
    return jnp.where(bad[:, None], jnp.nan, logits), {**cache, "state": state, "t": cache["t"] + 1}


@pytest.mark.rotates
@pytest.mark.parametrize("kind", ["greedy", "sample", "beam"])
def test_logits_that_are_no_numbers_are_an_error_or_poison(kind):
    config = KINDS[kind](max_length=8)
    config = type(config)(**{**vars(config), "eos": ()}) if kind != "sample" else Sampling(max_length=8, eos=())
    rows = len(PROMPT) * getattr(config, "beams", 1)

    def run(prompt):
        bad = jnp.repeat(jnp.arange(5) == 1, rows // 5)
        cache = {"state": jnp.zeros(rows, jnp.int32), "bad": bad, "t": jnp.array(0)}
        if kind == "beam":
            reorder = lambda cache, rows: {**cache, "state": cache["state"][rows]}  # noqa: E731
            return beam_search(broken, cache, prompt, config, reorder=reorder)
        return (greedy if kind == "greedy" else partial_sample)(broken, cache, prompt, config)

    with pytest.raises(ValueError, match="logits must be numbers, those of row 1 are NaN"):
        run(PROMPT)
    decoded = jax.jit(run)(PROMPT)
    assert np.isnan(decoded.scores).any(-1).tolist() == [False, True, False, False, False]


def partial_sample(step, cache, prompt, config):
    return sample(step, cache, prompt, jax.random.key(0), config)


def test_a_stream_of_what_is_no_number_ends_in_an_error():
    cache = {"state": jnp.zeros(5, jnp.int32), "bad": jnp.arange(5) == 1, "t": jnp.array(0)}
    with pytest.raises(ValueError, match="logits must be numbers"):
        list(stream(broken, cache, PROMPT, Greedy(max_length=8, eos=())))


def test_forbidding_everything_is_no_broken_model():
    process = make_process(Constraints(suppress=tuple(range(V))))
    assert (
        greedy(STEP, jnp.zeros(5, jnp.int32), PROMPT, Greedy(max_length=3, eos=()), process=process).scores < -1e6
    ).all()


@pytest.mark.rotates
@pytest.mark.parametrize(("length", "alpha"), [(300, 2.0), (2000, 1.0)])
def test_what_continues_no_hypothesis_is_none_however_long(length, alpha):
    """Where only one continuation is possible, the other beams are placeholders, whose scores lengths divide too."""

    def only(cache, token):
        return jnp.broadcast_to(jnp.where(jnp.arange(3) == 1, 0.0, -jnp.inf), (len(token), 3)), cache

    config = Beam(max_length=length, eos=(), pad=2, beams=2, n_best=2, length_penalty=PowerPenalty(alpha=alpha))
    found = jax.jit(lambda: beam_search(only, jnp.zeros(2), jnp.zeros(1, jnp.int32), config))()
    assert found.lengths.tolist() == [[length, 0]]
    assert found.scores[0, 0] == 0
    assert found.scores[0, 1] < -1e6
    assert (found.tokens[0, 1] == 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", only(KINDS, "sample", "beam"))
def test_64_bit_types_change_no_result(kind):
    config = KINDS[kind](max_length=8, stop=((3, 4),))
    constraints = Constraints(no_repeat_ngram=2, repetition_penalty=1.2, bad_words=((3, 4),), min_length=2, eos=EOS)
    run = lambda prompt: search(config, jnp.zeros_like(prompt), prompt, make_process(constraints, prompt[:, None]))  # noqa: E731
    want = run(PROMPT)
    with jax.enable_x64(True):
        for dtype in (jnp.int32, jnp.int64):
            got = run(PROMPT.astype(dtype))
            np.testing.assert_array_equal(got.tokens, want.tokens)
            np.testing.assert_allclose(got.scores, want.scores, rtol=1e-6)
            assert got.scores.dtype == jnp.float32


@pytest.mark.slow
def test_beams_of_a_model_search_under_64_bit_types():

    from flax import nnx

    from flax_transformer.models.seq2seq import DecoderCache, Seq2Seq
    from flax_transformer.models.text.transformer import transformer_tiny
    from flax_transformer.nn import with_fields

    model = Seq2Seq(with_fields(transformer_tiny(13), depth=1), rngs=nnx.Rngs(0))
    config = Beam(max_length=6, eos=EOS, beams=3, n_best=2)

    def run(model):
        cache = model.init_cache(jnp.ones((2, 5, 128), jnp.float32), None, config.max_length, beams=3)
        return beam_search(model.step, cache, jnp.array([3, 4]), config, reorder=DecoderCache.reorder)

    want = jax.jit(run)(model).tokens
    with jax.enable_x64(True):
        np.testing.assert_array_equal(jax.jit(run)(model).tokens, want)


@pytest.mark.rotates
def test_tokens_that_are_none_complete_nothing():
    """The places that fill a prompt up are negative: no n-gram, no bad word, no penalty comes from them."""
    constraints = Constraints(no_repeat_ngram=2, repetition_penalty=1.5, bad_words=((3, 4), (5,)))
    for n in (1, 2, 3):
        constraints = Constraints(no_repeat_ngram=n, repetition_penalty=1.5, bad_words=((3, 4), (5,)))
        tokens, logits = jnp.array([[4, 3, 0, 0], [6, 6, 0, 0]]), jnp.linspace(-1, 1, 2 * V).reshape(2, V)
        prompt, t = np.array([[3, 6], [6, 5]]), jnp.array(2)
        filled = np.pad(prompt, ((0, 0), (9, 0)), constant_values=-1)
        want = make_process(constraints, prompt, np.zeros(2, int))(logits, tokens, t)
        got = make_process(constraints, filled, np.full(2, 9))(logits, tokens, t)
        np.testing.assert_array_equal(got, want)
        empty = make_process(constraints, filled, np.full(2, 9))(logits, tokens, jnp.array(0))
        np.testing.assert_array_equal(empty, make_process(constraints, prompt)(logits, tokens, jnp.array(0)))


def test_first_tokens_are_suppressed_after_the_forced_one():
    logits, tokens = jnp.zeros((1, V)), jnp.zeros((1, 4), int)
    for constraints, at in ((Constraints(suppress_first=(3, 4)), 0), (Constraints(suppress_first=(3, 4), first=6), 1)):
        process = make_process(constraints)
        for t in range(4):
            forbidden = np.isneginf(process(logits, tokens, jnp.array(t)))[0, [3, 4]]
            assert forbidden.all() if t <= at else not forbidden.any(), (t, at)
