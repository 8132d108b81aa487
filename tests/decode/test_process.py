import re
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.decode import Beam, Constraints, Greedy, Sampling, beam_search, greedy, make_process, sample
from flax_transformer.decode.process import forbid_repeated_ngram, forbid_words, penalize_repetition

V, M, EOS, PAD, STATES = 7, 8, 2, 1, 17
BEAMS = 3


def markov(cache, token):
    state = (cache["state"] * 3 + token) % STATES
    return cache["table"][state], {**cache, "state": state}


def reorder(cache, rows):
    return {**cache, "state": cache["state"][rows]}


def start(seed, rows):
    table = np.random.default_rng(seed).normal(size=(STATES, V)).astype("float32") * 2
    return {"table": jnp.array(table), "state": jnp.arange(rows) % STATES}


def decoder(constraints=None, stop=(), eos=EOS):
    """Greedy, sampling and beam search under one set of rules: hypotheses as lists of tokens, in rows."""
    common = {"max_length": M, "eos": eos, "pad": PAD, "stop": stop}

    @jax.jit
    def run(cache, prompt, key):
        process = None if constraints is None else make_process(constraints, prompt)
        wide = {**cache, "state": jnp.repeat(cache["state"], BEAMS)}
        beam = Beam(**common, beams=BEAMS, n_best=BEAMS)
        return (
            greedy(markov, cache, prompt[:, -1], Greedy(**common), process=process),
            sample(markov, cache, prompt[:, -1], key, Sampling(**common, temperature=2.0), process=process),
            beam_search(markov, wide, prompt[:, -1], beam, reorder=reorder, process=process),
        )

    def hypotheses(seed, prompt):
        prompt = np.array(prompt, np.int32)
        found = run(start(seed, len(prompt)), prompt, jax.random.key(seed))
        for decoded in jax.device_get(found):
            for row, n in np.ndindex(decoded.lengths.shape):
                yield row, decoded.tokens[row, n], int(decoded.lengths[row, n])

    return hypotheses


logits_of = st.integers(0, 2**31).map(lambda seed: np.random.default_rng(seed).normal(size=(2, V)).astype("float32"))
histories = st.lists(st.lists(st.integers(0, 3), min_size=9, max_size=9), min_size=2, max_size=2)


@settings(max_examples=40)
@given(logits=logits_of, tokens=histories, count=st.integers(0, 9), first=st.lists(st.integers(0, 9), min_size=2))
def test_the_penalty_falls_once_on_each_token_between_first_and_count(logits, tokens, count, first):
    got = PENALIZE(logits, jnp.array(tokens), jnp.array(first[:2]), count)
    want = logits.copy()
    for row in range(2):
        for token in set(tokens[row][first[row] : count]):
            want[row, token] *= np.float32(1.5) if want[row, token] < 0 else 1 / np.float32(1.5)
    np.testing.assert_allclose(got, want, rtol=1e-6)


PENALIZE = jax.jit(lambda *args: penalize_repetition(*args, 1.5))
REPEATED = {
    n: jax.jit(lambda logits, tokens, count, n=n: forbid_repeated_ngram(logits, tokens, count, n))
    for n in (1, 2, 3, 12)
}


@pytest.mark.rotates
@pytest.mark.parametrize("n", REPEATED)
@settings(max_examples=40)
@given(logits=logits_of, tokens=histories, count=st.integers(0, 9))
def test_what_would_repeat_an_ngram_is_forbidden_and_nothing_else(n, logits, tokens, count):
    got = REPEATED[n](logits, jnp.array(tokens), count)
    for row in range(2):
        seen = tokens[row][:count]
        grams = {tuple(seen[i : i + n]) for i in range(count - n + 1)}
        for token in range(V):
            banned = len(seen) >= n - 1 and (*seen[count - n + 1 :], token) in grams
            assert got[row, token] == (-np.inf if banned else logits[row, token])


WORDS = ((4,), (0, 1), (1, 1), (3, 2, 0), (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5))


@settings(max_examples=40)
@given(logits=logits_of, tokens=histories, count=st.integers(0, 9))
def test_what_would_complete_a_word_is_forbidden_and_nothing_else(logits, tokens, count):
    got = FORBID(logits, jnp.array(tokens), count)
    for row in range(2):
        seen = tokens[row][:count]
        banned = {word[-1] for word in WORDS if seen[max(0, count - len(word) + 1) :] == [*word[:-1]]}
        want = [-np.inf if token in banned else logits[row, token] for token in range(V)]
        np.testing.assert_array_equal(got[row], np.array(want, np.float32))


FORBID = jax.jit(lambda logits, tokens, count: forbid_words(logits, tokens, count, WORDS))
PROMPTS = st.lists(st.lists(st.integers(3, V - 1), min_size=3, max_size=3), min_size=4, max_size=4)
BIGRAM = decoder(Constraints(no_repeat_ngram=2))
RULED = decoder(
    Constraints(bad_words=((5,), (3, 4), (4, 3, 6), (EOS,)), min_length=3, eos=EOS, first=4, last=0, suppress=(PAD,))
)


@pytest.mark.rotates
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), prompt=PROMPTS)
def test_no_loop_repeats_an_ngram_of_prompt_and_output(seed, prompt):
    for row, tokens, n in BIGRAM(seed, prompt):
        whole = [*prompt[row], *tokens[:n].tolist()]
        before, new = {*pairwise(prompt[row])}, [*pairwise(whole[2:])]
        assert len({*new}) == len(new)
        assert not {*new} & before


@pytest.mark.rotates
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), prompt=PROMPTS)
def test_every_loop_keeps_within_the_rules(seed, prompt):
    for row, tokens, n in RULED(seed, prompt):
        tokens = tokens[:n].tolist()
        whole = [*prompt[row], *tokens]
        assert tokens[0] == 4
        assert EOS not in tokens[:3]
        assert n < M or tokens[-1] == 0
        assert not {5, PAD} & {*tokens}
        # Forced tokens may complete a bad word, as they come later.
        for i in range(4, len(whole) - (n == M)):
            assert whole[i - 1 : i + 1] != [3, 4]
            assert whole[i - 2 : i + 1] != [4, 3, 6]


def test_a_forced_token_costs_a_hypothesis_nothing():
    process = make_process(Constraints(first=4, last=EOS))
    cache = {**start(0, 2), "state": jnp.zeros(2 * BEAMS, int)}
    config = Beam(max_length=M, eos=(), pad=PAD, beams=BEAMS)
    run = jax.jit(lambda cache, prompt: beam_search(markov, cache, prompt, config, reorder=reorder, process=process))
    got = run(cache, jnp.array([3, 5])).best
    assert got.tokens[:, 0].tolist() == [4, 4]
    assert got.tokens[:, -1].tolist() == [EOS, EOS]
    assert not got.logprobs[:, [0, -1]].any()
    assert got.logprobs[:, 1:-1].all()


def test_where_nothing_is_asked_there_is_no_process():
    assert make_process(Constraints(), jnp.zeros((2, 3), int)) is None
    assert make_process(Constraints(eos=EOS)) is None


def test_no_array_has_both_positions_and_vocabulary():
    process = make_process(
        Constraints(repetition_penalty=2.0, no_repeat_ngram=3, bad_words=((4, 5), (3,))), jnp.zeros((2, 300), int)
    )
    jaxpr = jax.make_jaxpr(process)(jnp.zeros((6, 1000)), jnp.zeros((6, 100), int), jnp.array(3))
    shapes = re.findall(r"\w+\[([\d,]+)\]", str(jaxpr))
    assert max(np.prod([int(n) for n in shape.split(",")]) for shape in shapes) == 6 * 1000


def test_equal_constraints_share_one_compiled_program():
    @jax.jit
    def run(process, logits, tokens, t):
        return process(logits, tokens, t)

    for token in range(3):
        process = make_process(Constraints(no_repeat_ngram=2, suppress=(0,)), jnp.full((2, 3), token))
        got = run(process, jnp.zeros((4, V)), jnp.zeros((4, M), int), jnp.array(0))
        assert (got[:, [0, token]] == -jnp.inf).all()
    assert run._cache_size() == 1


STOP = ((3, 4), (5,), (6, 6, 6), (0, PAD))
FREE, STOPPED = decoder(), decoder(stop=STOP)


def first_end(tokens):
    """Count tokens up to the first end token or stop sequence."""
    for n in range(1, len(tokens) + 1):
        if tokens[n - 1] == EOS or any(tuple(tokens[max(0, n - len(s)) : n]) == s for s in STOP):
            return n
    return len(tokens)


@pytest.mark.rotates
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), prompt=PROMPTS)
def test_a_row_ends_with_its_first_stop_sequence_and_keeps_it(seed, prompt):
    free, stopped = [*FREE(seed, prompt)], [*STOPPED(seed, prompt)]
    for _, tokens, n in stopped:
        tokens_only = tokens[:n].tolist()
        assert n in (0, first_end(tokens_only))
        assert n in (0, M) or first_end([*tokens_only, EOS]) == n
        assert (tokens[n:] == PAD).all()
    # Greedy and sampling are what they are without the rule, cut off.
    for (_, tokens, n), (_, cut, m) in zip(free[:8], stopped[:8], strict=True):
        assert m == first_end(tokens[:n].tolist())
        assert cut[:m].tolist() == tokens[:m].tolist()


def test_padding_is_no_stop_sequence():
    """The first row ends before anything else could: what pads it would stop it again, and earlier than it says."""

    def step(cache, token):
        return cache[token], cache

    table = 9 * jax.nn.one_hot(jnp.array([0, PAD, 0, EOS, 5, 6, 5]), V)
    config = Greedy(max_length=M, eos=EOS, pad=PAD, stop=((EOS, PAD), (5, 6, 5, 6), (6,) * 20))
    got = jax.jit(lambda table, prompt: greedy(step, table, prompt, config))(table, jnp.array([3, 4])).best
    assert got.tokens.tolist() == [[EOS] + [PAD] * 7, [5, 6, 5, 6] + [PAD] * 4]
    assert got.lengths.tolist() == [1, 4]
    assert not got.logprobs[0, 1:].any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constraints(repetition_penalty=0.0), r"repetition_penalty must be positive .*, got 0.0"),
        (lambda: Constraints(no_repeat_ngram=-1), "must not be negative, got -1 and 0"),
        (lambda: Constraints(bad_words=((3,), ())), r"at least one token each, got \(\(3,\), \(\)\)"),
        (lambda: Constraints(suppress=(4, -2)), "tokens must not be negative, got -2"),
        (lambda: Constraints(min_length=2), "min_length needs eos, .* got min_length=2"),
        (lambda: Constraints(last=(3, 4), suppress=(4,)), r"both forced and suppressed, got \[4\]"),
        (lambda: Greedy(max_length=3, eos=1, stop=((2,), ())), r"stop sequences must have tokens, .*\(\(2,\), \(\)\)"),
        (lambda: Greedy(max_length=3, eos=1, stop=((2, -1),)), r"none of them negative, got \(\(2, -1\),\)"),
        (
            lambda: make_process(Constraints(first=3), None, jnp.zeros(3, int)),
            r"one number for each row of the prompt, got \(3,\), prompt=None",
        ),
        (lambda: _call(Constraints(suppress=(V,))), f"below the vocabulary size, got {V}, V={V}"),
        (lambda: _call(Constraints(first=1), rows=3), "rows must be a multiple of the prompt's, got R=4, B=3"),
    ],
)
def test_impossible_constraints_are_refused_with_their_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _call(constraints, rows=2):
    process = make_process(constraints, jnp.zeros((rows, 3), int))
    return process(jnp.zeros((4, V)), jnp.zeros((4, M), int), jnp.array(0))
