import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flax_transformer.decode import Decoded, Greedy, Sampling, greedy, sample

V, M, EOS, PAD = 7, 6, 2, 1


def markov(cache, token):
    """Logits are the row of a table chosen by a state that digests every token seen."""
    state = (cache["state"] * 3 + token) % cache["table"].shape[0]
    return cache["table"][state], {**cache, "state": state}


def start(seed, rows, states=13):
    table = np.random.default_rng(seed).normal(size=(states, V)).astype("float32") * 2
    return {"table": jnp.array(table), "state": jnp.zeros(rows, jnp.int32)}


@jax.jit
def run_greedy(cache, prompt):
    return greedy(markov, cache, prompt, Greedy(max_length=M, eos=EOS, pad=PAD))


@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), prompt=st.lists(st.integers(0, V - 1), min_size=3, max_size=3))
def test_greedy_is_the_chain_of_argmaxes(seed, prompt):
    cache = start(seed, 3)
    got = run_greedy(cache, jnp.array(prompt, jnp.int32))
    table = np.array(cache["table"], np.float64)
    for row, token in enumerate(prompt):
        state, tokens, logprobs = 0, [], []
        while len(tokens) < M and (not tokens or tokens[-1] != EOS):
            state = (state * 3 + token) % len(table)
            token = int(table[state].argmax())
            tokens.append(token)
            logprobs.append(table[state, token] - np.log(np.exp(table[state]).sum()))
        n = len(tokens)
        assert got.tokens[row, 0].tolist() == tokens + [PAD] * (M - n)
        assert got.lengths[row, 0] == n
        np.testing.assert_allclose(got.logprobs[row, 0], logprobs + [0] * (M - n), atol=1e-5)
        np.testing.assert_allclose(got.scores[row, 0], sum(logprobs), atol=1e-5)


def constant(logits):
    def step(cache, token):
        return jnp.broadcast_to(jnp.array(logits), (*token.shape, len(logits))), cache + 1

    return step


def steps_taken(step, cache, prompt, config):
    """Count calls at run time."""
    calls = []

    def counted(cache, token):
        jax.debug.callback(lambda: calls.append(1))
        return step(cache, token)

    out = jax.block_until_ready(greedy(counted, cache, prompt, config))
    jax.effects_barrier()
    return out, len(calls)


@pytest.mark.rotates
def test_the_loop_stops_as_soon_as_every_row_has_ended():
    step = constant([0.0, 0.0, 5.0])
    out, calls = steps_taken(step, jnp.array(0), jnp.zeros(4, jnp.int32), Greedy(max_length=50, eos=2, pad=1))
    assert calls == 1
    assert (out.lengths == 1).all()
    assert (out.tokens[:, 0, 1:] == 1).all()
    _, calls = steps_taken(step, jnp.array(0), jnp.zeros(4, jnp.int32), Greedy(max_length=5, eos=(), pad=1))
    assert calls == 5


def test_pad_may_be_the_end_token():
    out = greedy(constant([0.0, 0.0, 5.0]), jnp.array(0), jnp.zeros(2, jnp.int32), Greedy(max_length=4, eos=2, pad=2))
    assert out.lengths.tolist() == [[1], [1]]
    assert (out.logprobs[..., 1:] == 0).all()


def test_any_of_several_end_tokens_ends():
    cache = start(3, 5)
    prompt = jnp.arange(5)
    free = greedy(markov, cache, prompt, Greedy(max_length=M, eos=(), pad=PAD))
    ends = tuple({int(x) for x in free.tokens[:2, 0, 2]})
    got = greedy(markov, cache, prompt, Greedy(max_length=M, eos=ends, pad=PAD))
    for row in range(5):
        tokens = free.tokens[row, 0].tolist()
        n = next((i + 1 for i, token in enumerate(tokens) if token in ends), M)
        assert got.tokens[row, 0].tolist() == tokens[:n] + [PAD] * (M - n)


def test_process_sees_what_was_generated_and_changes_the_choice():
    """A processor that forbids repetition, written from `tokens` and `t` alone."""

    def no_repeat(logits, tokens, t):
        seen = jax.nn.one_hot(jnp.where(jnp.arange(tokens.shape[1]) < t, tokens, -1), V).any(1)
        return jnp.where(seen, -jnp.inf, logits)

    out = greedy(markov, start(5, 8), jnp.arange(8) % V, Greedy(max_length=V, eos=(), pad=0), process=no_repeat).best
    assert all(sorted(row.tolist()) == list(range(V)) for row in out.tokens)


def test_one_trace_serves_every_batch_of_one_shape():
    traces = []

    def step(cache, token):
        traces.append(1)
        return markov(cache, token)

    @jax.jit
    def run(cache, prompt, key):
        return greedy(step, cache, prompt, Greedy(max_length=M, eos=EOS)), sample(
            step, cache, prompt, key, Sampling(max_length=M, eos=EOS, top_k=3, top_p=0.9)
        )

    run(start(0, 4), jnp.zeros(4, jnp.int32), jax.random.key(0))
    once = len(traces)
    for seed in range(1, 4):
        run(start(seed, 4), jnp.full(4, seed, jnp.int32), jax.random.key(seed))
    assert len(traces) == once
    assert run._cache_size() == 1


def test_sampled_frequencies_are_those_of_the_distribution():
    logits = np.array([0.5, -1.0, 1.5, 0.0, -0.5])
    config = Sampling(max_length=8, eos=(), temperature=0.7)
    out = sample(constant(logits), jnp.array(0), jnp.zeros(2000, jnp.int32), jax.random.key(1), config)
    expected = np.exp(logits / 0.7) / np.exp(logits / 0.7).sum()
    # Over all positions, and for pairs of neighbours, whose independence a reused key would break.
    tokens = np.array(out.tokens[:, 0])
    assert stats.chisquare(np.bincount(tokens.ravel(), minlength=5), expected * tokens.size).pvalue > 1e-3
    pairs = np.bincount(tokens[:, 0] * 5 + tokens[:, 1], minlength=25)
    assert stats.chisquare(pairs, np.outer(expected, expected).ravel() * 2000).pvalue > 1e-3
    np.testing.assert_allclose(out.logprobs[:, 0], np.log(expected)[tokens], atol=1e-5)


@pytest.mark.rotates
def test_sampling_stays_in_the_support_of_its_filters():
    cache, prompt, key = start(9, 300), jnp.arange(300) % V, jax.random.key(0)
    for config, support in [
        (Sampling(max_length=1, eos=EOS, top_k=2), lambda p: np.sort(p)[-2]),
        (Sampling(max_length=1, eos=EOS, top_p=0.5), lambda p: nucleus(p, 0.5)),
    ]:
        out = sample(markov, cache, prompt, key, config).best
        for row in range(300):
            logits = np.array(cache["table"][int(prompt[row]) % 13], np.float64)
            p = np.exp(logits) / np.exp(logits).sum()
            assert p[out.tokens[row, 0]] >= support(p)


def nucleus(p, mass):
    ordered = np.sort(p)[::-1]
    return ordered[np.searchsorted(np.cumsum(ordered), mass)]


@pytest.mark.rotates
def test_sampling_with_one_candidate_is_greedy():
    cache, prompt = start(4, 6), jnp.arange(6)
    a = sample(markov, cache, prompt, jax.random.key(0), Sampling(max_length=M, eos=EOS, pad=PAD, top_k=1))
    b = run_greedy(cache, prompt)
    assert (a.tokens == b.tokens).all()
    np.testing.assert_allclose(a.logprobs, 0, atol=1e-6)


@pytest.mark.rotates
def test_a_longer_limit_continues_the_same_sample():
    cache, prompt, key = start(4, 6), jnp.arange(6), jax.random.key(5)
    short, long = (sample(markov, cache, prompt, key, Sampling(max_length=n, eos=())) for n in (3, 9))
    assert (long.tokens[..., :3] == short.tokens).all()
    other = sample(markov, cache, prompt, jax.random.key(6), Sampling(max_length=9, eos=()))
    assert (other.tokens != long.tokens).any()


def test_decoded_is_a_pytree_with_a_best_view():
    out = run_greedy(start(0, 3), jnp.arange(3))
    assert isinstance(jax.tree.map(lambda x: x, out), Decoded)
    assert out.tokens.shape == (3, 1, M)
    assert out.best.tokens.shape == (3, M)
    assert out.best.scores.shape == (3,)
    shapes = jax.eval_shape(run_greedy, start(0, 3), jnp.arange(3))
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, out)


def test_half_precision_logits_are_normalised_in_float32():
    def step(cache, token):
        logits, cache = markov(cache, token)
        return logits.astype(jnp.bfloat16), cache

    out = greedy(step, start(1, 4), jnp.arange(4), Greedy(max_length=M, eos=EOS))
    assert out.logprobs.dtype == jnp.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Greedy(max_length=0, eos=1), "max_length must be at least 1, got 0"),
        (lambda: Greedy(max_length=4, eos=-1), "must not be negative, got eos=-1, pad=0"),
        (lambda: Sampling(max_length=4, eos=1, temperature=0.0), "temperature must be positive"),
        (lambda: Sampling(max_length=4, eos=1, top_k=0), "top_k must be at least 1, or None for no limit, got 0"),
        (lambda: Sampling(max_length=4, eos=1, top_p=0.0), "top_p must be above 0 and at most 1, got 0.0"),
        (lambda: Sampling(max_length=4, eos=1, top_p=1.5), "top_p must be above 0 and at most 1, got 1.5"),
    ],
)
def test_impossible_settings_are_refused_with_their_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_settings_are_static():
    assert hash(Sampling(max_length=3, eos=(1, 2))) == hash(Sampling(max_length=3, eos=(1, 2)))
    with pytest.raises(AttributeError):
        Greedy(max_length=3, eos=1).max_length = 4


@pytest.mark.rotates
def test_a_growing_cache_changes_nothing_and_grows_only_when_needed():
    """A step that writes into its cache would clamp, and read what it overwrote, had it not grown in time."""
    grown = []

    def step(cache, token):
        logits, inner = markov({"table": cache["table"], "state": cache["state"]}, token)
        room = jax.lax.dynamic_update_index_in_dim(cache["room"], token, cache["t"], axis=1)
        # Whatever was written first must still be there.
        lost = (room[:, 0] != cache["first"]) & (cache["t"] > 0)
        logits = jnp.where(lost[:, None], jnp.arange(V) * 100.0, logits)
        first = jnp.where(cache["t"] == 0, token, cache["first"])
        return logits, {**inner, "room": room, "first": first, "t": cache["t"] + 1}

    def grow(cache, length):
        jax.debug.callback(lambda: grown.append(length))
        return {**cache, "room": jnp.pad(cache["room"], ((0, 0), (0, length - cache["room"].shape[1])))}

    def cache(room):
        return {**start(0, 2), "room": jnp.zeros((2, room), int), "first": jnp.zeros(2, int), "t": jnp.zeros((), int)}

    prompt = jnp.array([3, 4])
    for eos, expected in (((), [32, 64, 128, 256, 400]), ((0, 2, 4, 5), [32, 64])):
        config = Greedy(max_length=400, eos=eos, pad=PAD)
        assert config.stages == (32, 64, 128, 256, 400)
        whole = jax.jit(lambda c, config=config: greedy(step, c, prompt, config))(cache(400))
        grown.clear()
        staged = jax.jit(lambda c, config=config: greedy(step, c, prompt, config, grow=grow))(cache(32))
        jax.effects_barrier()
        assert sorted(grown) == expected
        jax.tree.map(np.testing.assert_array_equal, staged, whole)
    assert Greedy(max_length=100, eos=0).stages == (32, 64, 100)
    assert Greedy(max_length=7, eos=0).stages == (7,)
    assert Greedy(max_length=32, eos=0).stages == (32,)


@pytest.mark.parametrize("length", [128, 512, 1024])
def test_memory_of_a_cache_that_grows(length):
    """All sizes of a cache of keys and values together take at most 1.5 times the memory of the largest."""
    rows, width = 2, 512

    def step(cache, token):
        new = jnp.full((rows, width), token[:, None], float)
        kept = [jax.lax.dynamic_update_index_in_dim(leaf, new, cache["t"], axis=1) for leaf in cache["kept"]]
        return sum(leaf.sum(1)[:, :V] for leaf in kept), {"t": cache["t"] + 1, "kept": kept}

    def grow(cache, length):
        wider = [jnp.pad(leaf, ((0, 0), (0, length - leaf.shape[1]), (0, 0))) for leaf in cache["kept"]]
        return {**cache, "kept": wider}

    def decode(prompt):
        cache = {"t": jnp.zeros((), int), "kept": 2 * [jnp.zeros((rows, config.stages[0], width))]}
        return greedy(step, cache, prompt, config, grow=grow)

    config = Greedy(max_length=length, eos=0)
    memory = jax.jit(decode).lower(jnp.array([3, 4])).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 1.5 * 4 * 2 * rows * length * width
