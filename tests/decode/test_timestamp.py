"""Times among words: which token may follow which, by all short histories."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.decode import Constraints, Greedy, Timestamps, greedy, make_process

END, NONE, FIRST, V = 3, 4, 5, 8
"""Words are 0 to 2, times 5 to 7."""
RULE = Timestamps(begin=FIRST, end=END, latest=1)


def allowed(history, logits=None):
    """List the tokens that may follow, where no sum of times outdoes the words."""
    logits = np.where(np.arange(V) >= FIRST, -5.0, 0.0) if logits is None else np.asarray(logits, float)
    tokens = np.zeros((1, 6), int)
    tokens[0, : len(history)] = history
    after = RULE(jnp.asarray(logits[None]), jnp.asarray(tokens), jnp.asarray(len(history)))
    return set(np.flatnonzero(np.isfinite(after[0])).tolist())


@pytest.mark.parametrize(
    ("history", "follow"),
    [
        ((), {5, 6}),  # a time, not later than one step
        ((5,), {0, 1, 2, END}),  # a text begins
        ((5, 1), {0, 1, 2, END, 6, 7}),  # goes on, ends, or is ended by a later time
        ((5, 1, 6), {END, 6, 7}),  # the next begins where it ended or later
        ((5, 1, 6, 6), {0, 1, 2, END}),
        ((5, 1, 6, 6, 2), {0, 1, 2, END, 7}),
    ],
)
def test_what_may_follow(history, follow):
    assert allowed(history) == follow


@pytest.mark.rotates
def test_times_never_go_back_and_stand_in_pairs():
    for history in itertools.product(range(V), repeat=3):
        told = [token for token in history if token >= FIRST]
        for token in allowed(history) & set(range(FIRST, V)):
            assert not told or token >= told[-1]
            assert history[-1] < FIRST or history[-2] < FIRST
        assert NONE not in allowed(history)


def test_a_time_is_taken_where_all_of_them_outdo_every_word():
    assert allowed((5, 1), [0.5, 0, 0, 0, 9, 9, 0, 0]) == {6, 7}  # each less than the word, the two together more
    assert allowed((5, 1), [0.8, 0, 0, 0, 9, 9, 0, 0]) == {0, 1, 2, END, 6, 7}


def test_a_loop_keeps_to_the_rules():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(V, V)))
    process = make_process(Constraints(timestamps=RULE))
    found = greedy(
        lambda cache, token: (table[token], cache), (), jnp.arange(5), Greedy(max_length=6, eos=END), process=process
    )
    for row, length in zip(np.asarray(found.tokens[:, 0]), np.asarray(found.lengths[:, 0]), strict=True):
        for t in range(length):
            assert row[t] in allowed(row[:t]) or row[t] >= FIRST


def test_rules_that_contradict_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match="times must come after the end token"):
        Timestamps(begin=3, end=5)
    with pytest.raises(ValueError, match="tokens must be below the vocabulary size, got 5, V=5"):
        make_process(Constraints(timestamps=RULE))(jnp.zeros((1, 5)), jnp.zeros((1, 3), int), jnp.array(0))
