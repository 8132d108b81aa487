import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data.text import SpanCorruption

T5 = SpanCorruption(sentinel=999)


@settings(max_examples=150)
@given(st.integers(2, 400), st.integers(0, 999), st.floats(0.05, 0.8), st.floats(1, 8))
def test_restore_undoes_the_corruption(n, seed, density, mean):
    corrupt = SpanCorruption(sentinel=999, sentinels=400, density=density, mean=mean)
    tokens = np.random.default_rng(seed).integers(2, 500, n).astype(np.int32)
    pair = corrupt({"tokens": tokens}, np.random.default_rng(seed + 1))
    np.testing.assert_array_equal(corrupt.restore(pair["source"], pair["target"]), tokens)
    assert (len(pair["source"]), len(pair["target"])) == corrupt.lengths(n)


@pytest.mark.parametrize("n", range(2, 700, 3))
def test_lengths_follow_the_paper(n):
    """15 % of n tokens, in spans of 3 on average, each one sentinel on both sides, and an end mark."""
    gone = min(max(int(np.round(n * 0.15)), 1), n - 1)
    spans = max(int(np.round(gone / 3.0)), 1)
    assert T5.lengths(n) == (n - gone + spans + 1, gone + spans + 1)


@settings(max_examples=100)
@given(st.integers(3, 600), st.floats(0.05, 0.8), st.floats(1, 8))
def test_room_is_the_most_that_fits(length, density, mean):
    corrupt = SpanCorruption(sentinel=999, density=density, mean=mean)
    n = corrupt.room(length)
    assert corrupt.lengths(n)[0] <= length < corrupt.lengths(n + 1)[0]


def test_sentinels_descend_and_agree():
    pair = T5({"tokens": np.arange(2, 102)}, np.random.default_rng(3))
    gone, spans = T5.counts(100)
    assert (gone, spans) == (15, 5)
    for side in pair.values():
        assert side[side > 899].tolist() == [999, 998, 997, 996, 995]
        assert side[-1] == 1
    assert pair["target"][0] == 999
    kept, lost = (side[(side > 1) & (side < 900)] for side in (pair["source"], pair["target"]))
    assert sorted([*kept, *lost]) == list(range(2, 102))
    assert len(lost) == gone


def test_every_span_and_every_gap_has_its_mean_length():
    """85 tokens stay, each part before a sentinel, and 15 go; the first token stays, the last goes."""
    rng, kept, lost = np.random.default_rng(0), [], []
    for _ in range(2000):
        pair = T5({"tokens": np.arange(2, 102)}, rng)
        for side, sizes in ((pair["source"], kept), (pair["target"], lost)):
            marks = np.flatnonzero(side > 899)
            sizes.append(np.diff([-1, *marks] if sizes is kept else [*marks, len(side) - 1]) - 1)
    for sizes, mean in ((np.array(kept), 17), (np.array(lost), 3)):
        assert sizes.shape == (2000, 5)
        assert (sizes.sum(axis=1) == 5 * mean).all()
        assert sizes.min() == 1
        assert (np.abs(sizes.mean(axis=0) - mean) < 5 * sizes.std(axis=0) / np.sqrt(2000)).all()


def test_what_cannot_be_corrupted_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="needs at least 2 tokens, got 1"):
        T5({"tokens": np.array([5])}, rng)
    with pytest.raises(ValueError, match="tokens must not be sentinels, got 900, first sentinel 999"):
        T5({"tokens": np.array([5, 900])}, rng)
    with pytest.raises(ValueError, match="each span needs its sentinel, got 5 spans, 4 sentinels"):
        SpanCorruption(sentinel=999, sentinels=4)({"tokens": np.arange(2, 102)}, rng)
    with pytest.raises(ValueError, match=re.escape("density must be in (0, 1) and mean at least 1, got 1.5, 3.0")):
        SpanCorruption(sentinel=999, density=1.5)


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ([5, 999], [999, 6, 1], "must end with eos=1, got [999]"),
        ([5, 999, 1], [998, 6, 1], "the same sentinels, got [999], [998]"),
        ([5, 999, 998, 1], [999, 6, 1], "the same sentinels, got [999, 998], [999]"),
        ([5, 999, 1], [6, 999, 1], "the same sentinels"),
        ([5, 1], [6, 1], "the same sentinels, got [], []"),
    ],
)
def test_pairs_that_do_not_belong_together_are_refused(source, target, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        T5.restore(np.array(source), np.array(target))


def test_restore_of_a_pair_by_hand():
    source, target = np.array([5, 999, 6, 998, 1]), np.array([999, 7, 8, 998, 9, 1])
    assert T5.restore(source, target).tolist() == [5, 7, 8, 6, 9]
    assert T5.restore(np.array([999, 5, 1]), np.array([999, 7, 1])).tolist() == [7, 5]
