import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.decode import Beam, GNMTPenalty, Greedy, PowerPenalty, beam_search, greedy

EOS, PAD = 2, 1


def markov(cache, token):
    """Logits from a table by a state that digests every token; the state's batch is on axis 1."""
    state = (cache["state"][0] * 3 + token) % cache["table"].shape[0]
    return cache["table"][state], {**cache, "state": state[None]}


def move(cache, rows):
    return {**cache, "state": cache["state"][:, rows]}


def start(table, rows, beams):
    """The table is the shared memory that beams need not move."""
    return {"table": jnp.asarray(table), "state": jnp.repeat(jnp.arange(rows)[None], beams, axis=1)}


def random_table(seed, vocabulary, states=17, scale=2.0):
    return np.random.default_rng(seed).normal(size=(states, vocabulary)).astype("float32") * scale


def rescore(table, row, prompt, tokens):
    """Log-probability of each token, in float64 NumPy."""
    table, state, token, out = table.astype(np.float64), row, prompt, []
    for following in tokens:
        state = (state * 3 + token) % len(table)
        out.append(table[state, following] - np.log(np.exp(table[state]).sum()))
        token = following
    return out


def runner(config):
    return jax.jit(lambda cache, prompt: beam_search(markov, cache, prompt, config, reorder=move))


EXHAUSTIVE = {
    penalty: runner(
        Beam(max_length=3, eos=EOS, pad=PAD, beams=27, n_best=15, length_penalty=penalty, early_stopping="never")
    )
    for penalty in (PowerPenalty(alpha=0.0), PowerPenalty(alpha=1.0), PowerPenalty(alpha=-0.5), GNMTPenalty(alpha=0.8))
}


@pytest.mark.rotates
@pytest.mark.parametrize("penalty", EXHAUSTIVE)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**31), prompt=st.integers(0, 2), scale=st.floats(0.1, 4.0))
def test_a_beam_as_wide_as_the_tree_is_exhaustive_search(penalty, seed, prompt, scale):
    table = random_table(seed, 3, scale=scale)
    got = EXHAUSTIVE[penalty](start(table, 2, 27), jnp.full(2, prompt, jnp.int32))
    for row in range(2):
        every = [
            tokens
            for n in (1, 2, 3)
            for tokens in itertools.product(range(3), repeat=n)
            if EOS not in tokens[:-1] and (n == 3 or tokens[-1] == EOS)
        ]
        scored = sorted(((sum(rescore(table, row, prompt, t)) / penalty(len(t)), t) for t in every), reverse=True)
        assert len(scored) == 15
        np.testing.assert_allclose(got.scores[row], [score for score, _ in scored], rtol=1e-4, atol=1e-5)
        values = dict((tokens, score) for score, tokens in scored)
        found = [tuple(t[:n]) for t, n in zip(got.tokens[row].tolist(), got.lengths[row].tolist(), strict=True)]
        assert len(set(found)) == 15
        np.testing.assert_allclose([values[t] for t in found], got.scores[row], rtol=1e-4, atol=1e-5)


@pytest.mark.rotates
@settings(max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_one_beam_is_greedy(seed):
    table = random_table(seed, 7)
    prompt = jnp.arange(4, dtype=jnp.int32)
    a = ONE_BEAM(start(table, 4, 1), prompt)
    b = GREEDY(start(table, 4, 1), prompt)
    assert (a.tokens == b.tokens).all()
    assert (a.lengths == b.lengths).all()
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)
    np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)


SHORT = {"max_length": 6, "eos": EOS, "pad": PAD}
ONE_BEAM = runner(Beam(**SHORT, beams=1, early_stopping=True, length_penalty=PowerPenalty(alpha=0.0)))
GREEDY = jax.jit(lambda cache, prompt: greedy(markov, cache, prompt, Greedy(**SHORT)))
N_BEST = {
    stop: runner(Beam(**SHORT, beams=4, n_best=4, early_stopping=stop, length_penalty=GNMTPenalty()))
    for stop in (True, False, "never")
}


@pytest.mark.rotates
@pytest.mark.parametrize("stop", N_BEST)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**31))
def test_hypotheses_are_sorted_distinct_padded_and_score_what_they_claim(stop, seed):
    table = random_table(seed, 9)
    got = N_BEST[stop](start(table, 5, 4), jnp.arange(5, dtype=jnp.int32))
    assert (jnp.diff(got.scores, axis=-1) <= 0).all()
    for row, rank in np.ndindex(5, 4):
        tokens, n = got.tokens[row, rank].tolist(), int(got.lengths[row, rank])
        assert tokens[n:] == [PAD] * (6 - n)
        assert EOS not in tokens[: n - 1]
        assert n == 6 or tokens[n - 1] == EOS
        logprobs = rescore(table, row, row, tokens[:n])
        np.testing.assert_allclose(got.logprobs[row, rank], logprobs + [0] * (6 - n), atol=1e-5)
        np.testing.assert_allclose(got.scores[row, rank], sum(logprobs) / GNMTPenalty()(n), atol=1e-5)
    assert all(len({tuple(t) for t in row}) == 4 for row in got.tokens.tolist())


@pytest.mark.rotates
def test_rows_do_not_depend_on_their_batch():
    table = random_table(8, 9)
    whole = N_BEST[False](start(table, 5, 4), jnp.arange(5, dtype=jnp.int32))
    for row in range(5):
        cache = {"table": jnp.asarray(table), "state": jnp.full((1, 4), row)}
        alone = N_BEST[False](cache, jnp.array([row], jnp.int32))
        assert (alone.tokens[0] == whole.tokens[row]).all()
        np.testing.assert_allclose(alone.scores[0], whole.scores[row], atol=1e-6)


@pytest.mark.rotates
def test_gathering_rows_is_the_default_reorder():
    def step(cache, token):
        state = (cache["state"] * 3 + token) % cache["table"].shape[1]
        logits = jnp.take_along_axis(cache["table"], state[:, None, None], axis=1)[:, 0]
        return logits, {**cache, "state": state, "count": cache["count"] + 1}

    table = random_table(2, 9)
    config = Beam(**SHORT, beams=4, n_best=4)
    cache = {
        "table": jnp.broadcast_to(table, (12, *table.shape)),
        "state": jnp.repeat(jnp.arange(3), 4),
        "count": jnp.array(0),
    }
    got = beam_search(step, cache, jnp.arange(3), config)
    want = beam_search(markov, start(table, 3, 4), jnp.arange(3), config, reorder=move)
    assert (got.tokens == want.tokens).all()


@pytest.mark.rotates
def test_equal_scores_are_decided_by_the_lowest_token():
    def step(cache, token):
        return jnp.zeros((token.shape[0], 6)), cache

    got = beam_search(step, jnp.zeros(3), jnp.zeros(1, jnp.int32), Beam(max_length=2, eos=(), beams=3, n_best=3))
    assert got.tokens[0].tolist() == [[0, 0], [0, 1], [0, 2]]


def test_process_sees_the_history_of_each_beam():
    def no_repeat(logprobs, tokens, t):
        seen = jax.nn.one_hot(jnp.where(jnp.arange(tokens.shape[1]) < t, tokens, -1), 8).any(1)
        return jnp.where(seen, -jnp.inf, logprobs)

    config = Beam(max_length=6, eos=(), beams=4, n_best=4)
    got = beam_search(markov, start(random_table(1, 8), 3, 4), jnp.arange(3), config, reorder=move, process=no_repeat)
    assert all(len(set(tokens)) == 6 for row in got.tokens.tolist() for tokens in row)


def test_a_process_that_changes_nothing_changes_nothing():
    config = Beam(**SHORT, beams=4, n_best=4)
    args = (markov, start(random_table(6, 8), 3, 4), jnp.arange(3), config)
    a = beam_search(*args, reorder=move)
    b = beam_search(*args, reorder=move, process=lambda logprobs, tokens, t: logprobs)
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), a, b))


def test_one_trace_serves_every_batch_of_one_shape():
    traces = []

    def step(cache, token):
        traces.append(1)
        return markov(cache, token)

    config = Beam(**SHORT, beams=3)
    run = jax.jit(lambda cache, prompt: beam_search(step, cache, prompt, config, reorder=move))
    run(start(random_table(0, 8), 4, 3), jnp.zeros(4, jnp.int32))
    once = len(traces)
    for seed in range(1, 4):
        run(start(random_table(seed, 8), 4, 3), jnp.full(4, seed, jnp.int32))
    assert len(traces) == once
    assert run._cache_size() == 1


@pytest.mark.rotates
def test_the_loop_stops_when_no_row_can_improve():
    calls = []

    def step(cache, token):
        jax.debug.callback(lambda: calls.append(1))
        return jnp.broadcast_to(jnp.array([0.0, 0.0, 9.0, 0.0]), (token.shape[0], 4)), cache

    # One end token per step reaches the first ranks from each live beam: two hypotheses need two steps.
    config = Beam(max_length=50, eos=EOS, beams=2, early_stopping=True)
    jax.block_until_ready(beam_search(step, jnp.zeros(6), jnp.zeros(3, jnp.int32), config))
    jax.effects_barrier()
    assert len(calls) == 2


@pytest.mark.rotates
def test_vmap_over_models_equals_a_loop_over_them():
    tables = jnp.stack([random_table(seed, 8) for seed in range(3)])
    config = Beam(**SHORT, beams=3, n_best=2)

    @jax.jit
    def run(table):
        return beam_search(markov, start(table, 4, 3), jnp.arange(4), config, reorder=move)

    together = jax.vmap(run)(tables)
    for i in range(3):
        assert (together.tokens[i] == run(tables[i]).tokens).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Beam(max_length=4, eos=1, beams=0), "beams must be at least 1, got 0"),
        (lambda: Beam(max_length=4, eos=1, beams=2, n_best=3), "got n_best=3, beams=2"),
        (
            lambda: beam_search(
                lambda cache, token: (jnp.zeros((2, 2)), cache),
                jnp.zeros(2),
                jnp.zeros(1, jnp.int32),
                Beam(max_length=4, eos=(0, 1), beams=2),
            ),
            "vocabulary of at least 3 tokens, .* got V=2",
        ),
    ],
)
def test_impossible_settings_are_refused_with_their_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()
