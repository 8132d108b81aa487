import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data.text import DeleteTokens, Denoise, Infill, MaskTokens, PermuteSentences, Rotate

MASK = 3
TOKENS = st.lists(st.integers(4, 30), max_size=50).map(lambda ids: np.array(ids, np.int32))
SEED = st.integers(0, 999)
SHARE = st.floats(0.01, 0.95)


def rng(seed=0):
    return np.random.default_rng(seed)


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(token in rest for token in part)


@pytest.mark.rotates
@settings(max_examples=100)
@given(TOKENS, SEED, SHARE)
def test_infilling_takes_its_share_and_keeps_the_rest_in_order(tokens, seed, share):
    out = Infill(mask=MASK, share=share)(tokens, rng(seed))
    kept = out[out != MASK]
    assert len(kept) == len(tokens) - round(share * len(tokens))
    assert is_subsequence(kept.tolist(), tokens.tolist())


def test_spans_are_poisson_and_an_empty_one_inserts_a_mask():
    """On numbered tokens each mask shows how many it stands for."""
    tokens, draw, found = np.arange(4, 2004, dtype=np.int32), rng(1), []
    for _ in range(60):
        out = [3, *Infill(mask=0)(tokens, draw), 2004]
        runs = [0, *[place for place in range(1, len(out)) if out[place]]]
        for left, right in itertools.pairwise(runs):
            masks = right - left - 1
            assert masks <= 1  # spans do not touch
            if masks:
                found.append(out[right] - out[left] - 1)
    expected = [np.exp(-3) * 3.0**k / np.prod(range(1, k + 1), dtype=float) for k in range(7)]
    n = len(found)
    assert n > 10_000
    for k, share in enumerate(expected):
        assert abs(np.mean(np.equal(found, k)) - share) < 5 * np.sqrt(share * (1 - share) / n)


def test_the_span_that_was_cut_to_fit_may_lie_anywhere():
    """The last one drawn is never empty, but the last in the text is, as often as the first."""
    draw, ends = rng(2), []
    for _ in range(3000):
        out = [3, *Infill(mask=0)(np.arange(4, 24, dtype=np.int32), draw), 24]
        masks = [place for place, token in enumerate(out) if not token]
        ends.append([out[place + 1] - out[place - 1] == 1 for place in (masks[0], masks[-1])])
    first, last = np.mean(ends, axis=0)
    assert first > 0.02
    assert abs(first - last) < 5 * np.sqrt(2 * first / 3000)


@pytest.mark.rotates
@settings(max_examples=100)
@given(TOKENS, SEED, SHARE)
def test_masking_and_deleting_take_their_share(tokens, seed, share):
    before = tokens.copy()
    gone = round(share * len(tokens))
    masked = MaskTokens(mask=MASK, share=share)(tokens, rng(seed))
    assert (masked == MASK).sum() == gone
    np.testing.assert_array_equal(masked[masked != MASK], tokens[masked != MASK])
    deleted = DeleteTokens(share=share)(tokens, rng(seed))
    assert len(deleted) == len(tokens) - gone
    assert is_subsequence(deleted.tolist(), tokens.tolist())
    np.testing.assert_array_equal(tokens, before)


@settings(max_examples=100)
@given(TOKENS, SEED)
def test_sentences_move_whole(tokens, seed):
    def sentences(row):
        parts = np.split(row, np.flatnonzero(np.isin(row, (5, 6))) + 1)
        return sorted(tuple(part.tolist()) for part in parts if len(part))

    if len(tokens):
        tokens[-1] = 5  # so that the last sentence has an end wherever it moves
    out = PermuteSentences(ends=(5, 6))(tokens, rng(seed))
    assert sentences(out) == sentences(tokens)


def test_every_order_of_sentences_comes_alike():
    permute, draw = PermuteSentences(ends=(5,)), rng(0)
    orders = [tuple(permute(np.array([7, 5, 8, 5, 9]), draw).tolist()) for _ in range(1200)]
    assert len(set(orders)) == 6
    assert min(orders.count(order) for order in set(orders)) > 200 - 5 * np.sqrt(1200 / 6)


@settings(max_examples=60)
@given(TOKENS, SEED)
def test_rotation_begins_at_a_token_of_the_document(tokens, seed):
    out = Rotate()(tokens, rng(seed)).tolist()
    whole = tokens.tolist()
    assert not whole or out in [whole[k:] + whole[:k] for k in range(len(whole))]


def test_rotation_begins_anywhere():
    assert {int(Rotate()(np.arange(5), rng(seed))[0]) for seed in range(60)} == set(range(5))


@settings(max_examples=60)
@given(TOKENS, SEED)
def test_the_target_is_the_whole_text_whatever_the_noise(tokens, seed):
    noises = (PermuteSentences(ends=(5,)), Rotate(), Infill(mask=MASK), DeleteTokens(), MaskTokens(mask=MASK))
    out = Denoise(noises=noises)({"tokens": tokens}, rng(seed))
    assert out["target"].tolist() == [0, *tokens.tolist(), 2]
    assert (out["source"][0], out["source"][-1]) == (0, 2)
    assert not np.isin(out["source"][1:-1], (0, 2)).any()


def test_noises_apply_in_their_order():
    tokens = np.arange(4, 30)
    masked_first = Denoise(noises=(MaskTokens(mask=MASK, share=0.5), DeleteTokens(share=0.5)))
    out = masked_first({"tokens": tokens}, rng(0))["source"]
    assert len(out) == 2 + 13
    assert 0 < (out == MASK).sum() < 13
    assert Denoise(noises=(), begin=(), end=())({"tokens": tokens}, rng())["source"].tolist() == tokens.tolist()


@pytest.mark.parametrize("noise", [MaskTokens, Infill])
def test_impossible_shares_are_refused(noise):
    with pytest.raises(ValueError, match=r"share must be in \(0, 1\), got 1.0"):
        noise(mask=MASK, share=1.0)
