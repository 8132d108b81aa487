"""A draft changes how many passes decoding takes and nothing else: tokens, distributions, lengths and scores stay."""

from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from flax_transformer.decode import (
    Beam,
    Constraints,
    Draft,
    Greedy,
    Proposal,
    Sampling,
    assisted,
    greedy,
    lookup_draft,
    make_process,
    model_draft,
    sample,
)
from flax_transformer.ops.sampling import row_keys

pytestmark = pytest.mark.proves("generation", "drafts, whose greedy tokens and distributions are those without")

V, EOS, PAD, STATES, ROWS, M = 7, 2, 1, 101, 6, 40
PROMPT = jnp.arange(ROWS, dtype=jnp.int32) % V


def table(seed, scale=2.0):
    return jnp.array(np.random.default_rng(seed).normal(size=(STATES, V)).astype("float32") * scale)


LARGE = table(0)
DRAFTS = {"good": LARGE + 0.4 * table(1), "poor": table(2), "the same": LARGE}


def move(state, token):
    return (state * 31 + token + 1) % STATES


def step(logits, state, token):
    state = move(state, token)
    return logits[state], state


def extend(logits, states, tokens, t):
    """An automaton whose cache has the state before each place of a row, whatever stood there later."""
    rows, found = jnp.arange(len(t)), []
    for i in range(tokens.shape[1]):
        states = states.at[rows, t + i + 1].set(move(states[rows, t + i], tokens[:, i]))
        found.append(logits[states[rows, t + i + 1]])
    return jnp.stack(found, 1), states


def states(count, room=M):
    """States of which all but the first are wrong, as those of a text that has been taken back."""
    return jnp.full((len(PROMPT), room + count + 2), 57).at[:, 0].set(0)


def draft(name, count):
    return model_draft(partial(extend, DRAFTS[name]), states(count), count)


def run(config, made, process=None, key=None):
    return jax.jit(lambda: assisted(partial(extend, LARGE), states(made.count), PROMPT, config, made, key=key,
                                    process=process))()  # fmt: skip


@pytest.mark.rotates
@pytest.mark.parametrize(("name", "count"), product(DRAFTS, (1, 4)))
def test_greedy_tokens_are_those_without_a_draft(name, count):
    process = make_process(Constraints(no_repeat_ngram=3, repetition_penalty=1.3, min_length=5, eos=EOS, last=4),
                           PROMPT[:, None])  # fmt: skip
    for config in (Greedy(max_length=M, eos=EOS, pad=PAD), Greedy(max_length=M, eos=(), stop=((3, 4), (5,)), limit=23)):
        for rules in (None, process):
            want = greedy(partial(step, LARGE), jnp.zeros(ROWS, int), PROMPT, config, process=rules)
            got, drafted = run(config, draft(name, count), rules)
            for field in ("tokens", "lengths"):
                np.testing.assert_array_equal(getattr(got, field), getattr(want, field), err_msg=field)
            np.testing.assert_allclose(got.scores, want.scores, rtol=1e-5)
            np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=1e-5, atol=1e-6)
            lengths = got.lengths[:, 0]
            assert (drafted.passes <= lengths).all()
            assert (drafted.accepted + drafted.passes >= lengths).all()
            if name == "the same":
                np.testing.assert_array_equal(drafted.passes, -(-lengths // (count + 1)))


def all_sequences(config, rules=None):
    """The probability of every sequence of three tokens of row 0, up to its end."""
    found = {}

    def grow(sequence, probability):
        if len(sequence) == 3 or (sequence and sequence[-1] == EOS):
            found[(*sequence, *[PAD] * (3 - len(sequence)))] = probability
            return
        state = jnp.zeros(1, int)
        for token in (int(PROMPT[0]), *sequence):
            logits, state = step(LARGE, state, jnp.array([token]))
        tokens = jnp.array([[*sequence, *[PAD] * (3 - len(sequence))]])
        if rules is not None:
            logits = rules(logits, tokens, jnp.array(len(sequence)))
        for token, p in enumerate(np.asarray(jax.nn.softmax(logits / config.temperature)[0], np.float64)):
            if p > 0:
                grow((*sequence, token), probability * p)

    grow((), 1.0)
    return found


DRAWS = 40_000


@pytest.mark.rotates
@pytest.mark.parametrize("name", ["good", "poor", "lookup", "rules"])
def test_drawn_sequences_have_the_distribution_without_a_draft(name):
    """All 259 sequences of three tokens, counted: a chi-square that a right loop exceeds once in 10,000 times."""
    config = Sampling(max_length=3, eos=EOS, pad=PAD, temperature=1.5)
    prompt = jnp.broadcast_to(PROMPT[:1], DRAWS)
    rules = make_process(Constraints(bad_words=((4,), (3, 5)), no_repeat_ngram=1)) if name == "rules" else None
    start = jnp.full((DRAWS, 8), 57).at[:, 0].set(0)
    if name == "lookup":
        made = lookup_draft(jnp.broadcast_to(jnp.array([3, 0, 4, 5, 0]), (DRAWS, 5)), 2)
    else:  # flatter than the model
        made = model_draft(partial(extend, 0.5 * DRAFTS["poor" if name == "poor" else "good"]), start, 2)
    got, drafted = jax.jit(
        lambda key: assisted(partial(extend, LARGE), start, prompt, config, made, key=key, process=rules)
    )(jax.random.key(3))
    want = all_sequences(config, None if rules is None else make_process(rules.constraints))
    assert abs(sum(want.values()) - 1) < 1e-6
    tokens, counts = np.unique(np.asarray(got.tokens[:, 0]), axis=0, return_counts=True)
    seen = {tuple(row): count for row, count in zip(tokens.tolist(), counts, strict=True)}
    assert not set(seen) - set(want)
    order = sorted(want, key=want.get)
    expected, observed = (np.array([of.get(key, 0) for key in order], float) for of in (want, seen))
    expected *= DRAWS
    groups = np.minimum(np.cumsum(expected) // 10, np.cumsum(expected)[-1] // 10 - 1)  # each of at least some ten
    _, groups = np.unique(groups, return_inverse=True)
    expected, observed = np.bincount(groups, expected), np.bincount(groups, observed)
    assert chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1) > 1e-4
    assert 0 < drafted.accepted.sum() < 2 * drafted.passes.sum()


@pytest.mark.rotates
def test_log_probabilities_are_those_of_the_filtered_model():
    config = Sampling(max_length=9, eos=(), temperature=0.8, top_k=4, top_p=0.9)
    got, _ = run(config, draft("good", 3), key=jax.random.key(1))
    forced = jnp.array(np.asarray(got.tokens[:, 0]))

    def only(logits, tokens, t):
        return jnp.where(jnp.arange(V) == forced[:, t, None], logits, -jnp.inf)

    again = greedy(partial(step, LARGE), jnp.zeros(ROWS, int), PROMPT, Greedy(max_length=9, eos=()), process=only)
    np.testing.assert_array_equal(again.tokens, got.tokens)
    same = sample(partial(step, LARGE), jnp.zeros(ROWS, int), PROMPT, jax.random.key(0), config)
    assert same.tokens.shape == got.tokens.shape
    assert np.isfinite(got.logprobs).all()
    np.testing.assert_allclose(got.scores, got.logprobs.sum(-1), rtol=1e-5)


@pytest.mark.rotates
def test_a_row_draws_the_same_in_any_batch_and_place():
    config, key = Sampling(max_length=12, eos=EOS, pad=PAD), jax.random.key(8)

    def draws(prompt, key):
        made = model_draft(partial(extend, DRAFTS["good"]), states(3)[: len(prompt)], 3)
        return assisted(partial(extend, LARGE), states(3)[: len(prompt)], prompt, config, made, key=key)[0].tokens

    whole, rows = draws(PROMPT, key), np.array([3, 0, 4])
    np.testing.assert_array_equal(draws(PROMPT[rows], row_keys(key, rows)), whole[rows])
    assert (draws(PROMPT, jax.random.key(9)) != whole).any()


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("prompt", "said", "proposed"),
    [
        ([5, 6, 7, 8, 9, 5, 6], [], [7, 8, 9]),
        ([-1, 5, 6, 7, 4, 6, 9, 5, 6], [], [7, 4, 6]),  # both tokens before the last one alone
        ([5, 6, 7, 8, 9, 4, 6], [], [7, 8, 9]),  # the last one alone
        ([5, 6, 7], [8, 6, 7], [8, 6, 7]),  # and among what was generated
        ([5, 6, 7], [8, 9, 9], [9, 9, 9]),  # what follows ends with the text
        ([-1, -1, 5], [], [5, 5, 5]),  # nothing to be found
        ([5, 6, 7, -1, -1, 6], [], [7, 6, 6]),  # what follows ends
    ],
)
def test_lookup_proposes_what_followed_the_first_time(prompt, said, proposed):
    from flax_transformer.decode import Seen

    made, padded = lookup_draft(jnp.array([prompt]), 3), jnp.array([[*said, *[1] * (5 - len(said))]])
    seen = Seen(jnp.array([(prompt + said)[-1]]), padded, jnp.array([len(said)]))
    assert made.propose(made.state, seen, lambda *_: None)[0].tokens[0].tolist() == proposed


def test_lookup_needs_few_passes_for_what_repeats_itself():
    cycle = jnp.where(jnp.arange(V) == (jnp.arange(V)[:, None] + 1) % V, 5.0, 0.0)
    own = lambda cache, tokens, t: (cycle[tokens], cache)  # noqa: E731
    prompt = jnp.array([[0, 1, 2, 3, 4, 5, 6, 0, 1]])
    config = Greedy(max_length=30, eos=())
    got, drafted = assisted(own, (), prompt[:, -1], config, lookup_draft(prompt, 5))
    assert got.tokens[0, 0].tolist() == [(2 + i) % V for i in range(30)]
    assert drafted.passes.tolist() == [5]
    assert drafted.accepted.tolist() == [25]


@pytest.mark.rotates
def test_caches_grow_with_what_is_read():
    sizes = []

    def grow(states, length):
        sizes.append(length)
        return jnp.pad(states, ((0, 0), (0, length + 2 - states.shape[1])))

    config = Greedy(max_length=100, eos=())
    small = states(0, 0)
    made = model_draft(partial(extend, DRAFTS["good"]), small, 4, grow)
    got, _ = assisted(partial(extend, LARGE), small, PROMPT, config, made, grow=grow)
    want = greedy(partial(step, LARGE), jnp.zeros(ROWS, int), PROMPT, config)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert sizes == [36, 36, 68, 68, 104, 104]


@pytest.mark.rotates
def test_logits_that_are_no_numbers_are_an_error():
    bad = LARGE.at[:].set(jnp.where(jnp.arange(STATES)[:, None] % 9 == 4, jnp.nan, LARGE))
    config = Greedy(max_length=M, eos=())
    with pytest.raises(ValueError, match=r"logits must be numbers, those of row \d are NaN within"):
        assisted(partial(extend, bad), states(3), PROMPT, config, draft("poor", 3))
    config, made = Sampling(max_length=M, eos=()), model_draft(partial(extend, bad), states(3), 3)
    with pytest.raises(ValueError, match="logits must be numbers"):
        assisted(partial(extend, LARGE), states(3), PROMPT, config, made, key=jax.random.key(0))


@pytest.mark.parametrize(
    ("made", "config", "key", "message"),
    [
        (lambda: draft("good", 0), Greedy(max_length=3, eos=()), None, "a draft proposes at least 1 token, got 0"),
        (lambda: lookup_draft(PROMPT[:, None], 3, 0), Greedy(max_length=3, eos=()), None, "looks for at least 1 token"),
        (lambda: draft("good", 2), Beam(max_length=3, eos=()), None, "a draft is for greedy decoding, or for sampling"),
        (lambda: draft("good", 2), Sampling(max_length=3, eos=()), None, "or for sampling with a key, got"),
        (lambda: draft("good", 2), Greedy(max_length=3, eos=()), jax.random.key(0), "or for sampling with a key, got"),
        (
            lambda: Draft(lambda *_: (Proposal(jnp.zeros((ROWS, 2), int), jnp.zeros((ROWS, 2, 9))), None), 2),
            Sampling(max_length=3, eos=()), jax.random.key(0), "has the model's vocabulary, got 9 and 7",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(made, config, key, message):
    with pytest.raises(ValueError, match=message):
        assisted(partial(extend, LARGE), states(2), PROMPT, config, made(), key=key)
