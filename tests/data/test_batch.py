import itertools
import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data import Table
from flax_transformer.data.bucket import BucketPlan, bucket_boundaries, eval_batches
from flax_transformer.data.text import (
    Ragged,
    Tokenized,
    load_ragged,
    ragged,
    tokenize,
    tokenize_sources,
    train_word_bpe,
)

ROWS = st.lists(st.lists(st.integers(4, 60_000), max_size=12), max_size=20)
LENGTHS = st.lists(st.tuples(st.integers(0, 15), st.integers(0, 15)), min_size=1, max_size=200).map(
    lambda pairs: np.array(pairs)
)
PLANS = st.builds(
    lambda lengths, buckets, multiple, seed, more: (
        lengths,
        {"tokens": multiple * 16 + more, "boundaries": (*sorted(buckets), 16), "seed": seed, "multiple": multiple},
    ),
    LENGTHS,
    st.sets(st.integers(1, 15), max_size=4),
    st.integers(1, 4),
    st.integers(0, 5),
    st.integers(0, 100),
)


def examples_of(lengths):
    rows = [[4 + (7 * i + j) % 90 for j in range(size)] for i, size in enumerate(np.ravel(lengths))]
    return Tokenized(ragged(rows[0::2]), ragged(rows[1::2]))


@given(ROWS)
def test_ragged_rows_come_back(rows):
    packed = ragged(rows, np.uint16)
    assert [row.tolist() for row in packed] == rows
    assert packed.lengths.tolist() == [len(row) for row in rows]
    assert packed.flat.dtype == np.uint16
    assert [row.tolist() for row in packed.take(np.arange(len(rows))[::-1])] == rows[::-1]
    if rows:
        assert packed[-1].tolist() == rows[-1]
    with pytest.raises(IndexError):
        packed[len(rows)]


def test_ragged_is_mapped_from_its_files(tmp_path):
    packed = ragged([[5, 6], [], [7]], np.uint16)
    packed.save(tmp_path / "source")
    loaded = load_ragged(tmp_path / "source")
    assert isinstance(loaded.flat, np.memmap)
    assert [row.tolist() for row in loaded] == [[5, 6], [], [7]]
    Ragged(packed.flat[:2], packed.offsets).save(tmp_path / "source")
    with pytest.raises(ValueError, match="must rise from 0 to the 2 tokens, they end at 3"):
        load_ragged(tmp_path / "source")


def test_tokenize_is_the_tokenizer_whatever_the_chunk():
    pairs = Table({"source": ["a b", "ab", "b", "", "a"], "target": ["b", "", "a b a", "ab", "b b"]})
    tokenizer = train_word_bpe([*pairs["source"], *pairs["target"]], merges=2)
    whole, parts = tokenize(pairs, tokenizer), tokenize(pairs, tokenizer, chunk=2)
    assert [row.tolist() for row in whole.source] == tokenizer.encode(pairs["source"])
    assert [row.tolist() for row in whole.target] == tokenizer.encode(pairs["target"])
    assert whole.fingerprint == parts.fingerprint
    assert whole.tokenizer == tokenizer.fingerprint()
    other = tokenize(Table({"source": pairs["target"], "target": pairs["source"]}), tokenizer)
    assert other.fingerprint != whole.fingerprint
    alone = tokenize_sources(pairs["source"], tokenizer)
    assert [row.tolist() for row in alone.source] == tokenizer.encode(pairs["source"])
    assert alone.target.lengths.tolist() == [0] * 5


def test_batch_is_the_literal_array():
    examples = Tokenized(ragged([[5, 6], [7]]), ragged([[8], [9, 10, 11]]))
    batch = examples.lay_out(np.array([1, -1, 0]), 4)
    assert jax.tree.map(np.ndarray.tolist, batch) == {
        "inputs": {
            "source": [[7, 2, 0, 0], [0, 0, 0, 0], [5, 6, 2, 0]],
            "lengths": [2, 0, 3],
            "target": [[1, 9, 10, 11], [0, 0, 0, 0], [1, 8, 2, 0]],
        },
        "labels": [[9, 10, 11, 2], [0, 0, 0, 0], [8, 2, 0, 0]],
        "weights": [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]],
    }
    kinds = {array.dtype for array in jax.tree.leaves((batch["inputs"], batch["labels"]))}
    assert (kinds, batch["weights"].dtype) == ({np.dtype(np.int32)}, np.float32)


def test_a_batch_uses_the_marks_of_its_tokenizer():
    examples = Tokenized(ragged([[5]]), ragged([[6]]), pad=9, bos=8, eos=7)
    batch = examples.lay_out(np.array([0, -1]), 2)
    assert batch["inputs"]["source"].tolist() == [[5, 7], [9, 9]]
    assert batch["inputs"]["target"].tolist() == [[8, 6], [9, 9]]
    assert batch["labels"].tolist() == [[6, 7], [9, 9]]


def test_rows_that_do_not_fit_are_refused():
    examples = examples_of([[3, 1], [1, 1]])
    with pytest.raises(ValueError, match="got 3 tokens, width 3"):
        examples.lay_out(np.array([0]), 3)
    assert len(examples.within(3)) == 1
    assert examples.within(4) is examples


@given(PLANS, st.integers(0, 3))
def test_each_epoch_has_every_pair_once_within_the_budget(plan, epoch):
    lengths, options = plan
    plan = BucketPlan(lengths, **options)
    seen = []
    for boundary, indices in plan.epoch(epoch):
        real = indices[indices >= 0]
        seen += real.tolist()
        assert len(real) >= 1
        assert (lengths[real] + 1 <= boundary).all()
        assert len(indices) * boundary <= options["tokens"]
        assert len(indices) % options["multiple"] == 0
        assert len(indices) == plan.batch_sizes[boundary]
    assert sorted(seen) == list(range(len(lengths)))


@given(PLANS)
def test_empty_rows_are_in_one_batch_of_the_largest_boundary(plan):
    lengths, options = plan
    partial = [boundary for boundary, indices in BucketPlan(lengths, **options).epoch(0) if (indices < 0).any()]
    assert partial in ([], [16])


@settings(max_examples=30)
@given(PLANS)
def test_the_plan_is_pure_and_the_same_size_every_epoch(plan):
    lengths, options = plan
    one, two = BucketPlan(lengths, **options), BucketPlan(lengths, **options)
    count = one.batches_per_epoch
    order = [*range(3 * count), 0, 2 * count, count - 1]
    forward = {step: one[step] for step in order}
    for step in reversed(order):  # another order of reading
        boundary, indices = two[step]
        assert boundary == forward[step][0]
        np.testing.assert_array_equal(indices, forward[step][1])
    shapes = [sorted(boundary for boundary, _ in one.epoch(number)) for number in range(3)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert len(shapes[0]) == count


def test_epochs_and_seeds_shuffle_differently():
    lengths = np.full((64, 2), 3)
    plan = BucketPlan(lengths, tokens=32, boundaries=(4,), seed=0)
    flat = [np.concatenate([indices for _, indices in plan.epoch(number)]).tolist() for number in range(3)]
    other = BucketPlan(lengths, tokens=32, boundaries=(4,), seed=1)
    flat.append(np.concatenate([indices for _, indices in other.epoch(0)]).tolist())
    assert all(a != b for a, b in itertools.combinations([*flat, list(range(64))], 2))


def test_batches_of_different_shapes_are_mixed():
    plan = BucketPlan(np.repeat([[3, 3], [7, 7]], 200, axis=0), tokens=32, boundaries=(4, 8), seed=0)
    shapes = [boundary for boundary, _ in plan.epoch(0)]
    changes = sum(a != b for a, b in itertools.pairwise(shapes))
    assert changes > len(shapes) / 4


def test_padding_is_what_the_batches_hold():
    lengths = np.random.default_rng(0).integers(0, 15, (300, 2))
    plan = BucketPlan(lengths, tokens=64, boundaries=(5, 9, 16), seed=0)
    batches = [examples_of(lengths).lay_out(indices, boundary) for boundary, indices in plan.epoch(0)]
    places = sum(batch["inputs"]["source"].size + batch["labels"].size for batch in batches)
    tokens = sum(batch["inputs"]["lengths"].sum() + batch["weights"].sum() for batch in batches)
    assert plan.padding == pytest.approx(1 - tokens / places, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 15}, "got tokens=15 < 1 * 16"),
        ({"tokens": 63, "multiple": 4}, "got tokens=63 < 4 * 16"),
        ({"boundaries": (4, 8)}, "got 1 of up to 16 tokens with the end mark, boundary 8"),
        ({"boundaries": (16, 4)}, "must be positive and rise, got (16, 4)"),
        ({"boundaries": ()}, "must be positive and rise, got ()"),
        ({"multiple": 0}, "at least 1 row, got 0"),
    ],
)
def test_impossible_plans_say_both_numbers(options, message):
    lengths = np.array([[3, 2], [15, 3]])
    with pytest.raises(ValueError, match=re.escape(message)):
        BucketPlan(lengths, **{"tokens": 64, "boundaries": (4, 16), "seed": 0} | options)


def test_nothing_cannot_be_planned():
    with pytest.raises(ValueError, match="at least one row, got 0"):
        BucketPlan(np.empty((0, 2), int), tokens=8, boundaries=(4,), seed=0)
    with pytest.raises(IndexError, match="got -1"):
        BucketPlan(np.array([[1, 1]]), tokens=8, boundaries=(4,), seed=0)[-1]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 4))
def test_chosen_boundaries_are_the_best_of_all(sizes, count):
    lengths = np.array([[size, 0] for size in sizes])

    def cost(boundaries):
        return sum(min(boundary for boundary in boundaries if boundary > size) for size in sizes)

    chosen = bucket_boundaries(lengths, count)
    top = max(sizes) + 1
    every = ((*some, top) for few in range(count) for some in itertools.combinations(range(1, top), few))
    assert len(chosen) <= count
    assert chosen[-1] == top
    assert cost(chosen) == min(cost(boundaries) for boundaries in every)


def test_boundaries_are_multiples():
    lengths = np.random.default_rng(0).integers(0, 50, (300, 2))
    chosen = bucket_boundaries(lengths, 5, multiple=8)
    assert all(boundary % 8 == 0 for boundary in chosen)
    assert chosen[-1] == -(-(lengths.max() + 1) // 8) * 8
    with pytest.raises(ValueError, match="at least 1 boundary, got 0"):
        bucket_boundaries(lengths, 0)
    with pytest.raises(ValueError, match="got none"):
        bucket_boundaries(lengths[:0], 3)


@given(PLANS)
def test_evaluation_has_every_pair_once_shortest_first(plan):
    lengths, options = plan
    examples = examples_of(lengths)
    options = {name: options[name] for name in ("tokens", "boundaries", "multiple")}
    seen = []
    for indices, batch in eval_batches(examples, **options):
        real = indices[indices >= 0]
        seen += real.tolist()
        np.testing.assert_array_equal(batch["inputs"]["lengths"][indices >= 0], lengths[real, 0] + 1)
        assert not batch["weights"][indices < 0].any()
        for row, index in enumerate(indices):
            if index >= 0:
                size = lengths[index, 1]
                assert batch["labels"][row, :size].tolist() == examples.target[index].tolist()
    assert sorted(seen) == list(range(len(lengths)))
    longest = lengths.max(axis=1)[seen]
    assert (np.diff(longest) >= 0).all()


def test_evaluation_of_nothing_is_nothing():
    assert list(eval_batches(examples_of(np.empty((0, 2), int)), tokens=8, boundaries=(4,))) == []
