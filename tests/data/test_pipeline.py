import json
import operator
import pickle
import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data.bucket import BucketPlan, BucketStream
from flax_transformer.data.examples import of_like_lengths, shuffled
from flax_transformer.data.text import Tokenized, ragged


def make(seed=0, pairs=60, multiple=4, **options):
    sizes = np.random.default_rng(7).integers(0, 15, (pairs, 2))
    examples = Tokenized(
        *(ragged([[4 + (i + j) % 50 for j in range(n)] for i, n in enumerate(side)]) for side in sizes.T), "bpe"
    )
    options = {"tokens": 64, "boundaries": (8, 16), "seed": seed, "multiple": multiple} | options
    return BucketPlan(examples.lengths, **options), examples


def take(stream, count):
    batches = [next(stream) for _ in range(count)]
    stream.close()
    return batches


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_stream_follows_the_plan_over_epochs():
    plan, examples = make()
    count = 2 * plan.batches_per_epoch + 3
    expected = [examples.lay_out(indices, boundary) for boundary, indices in map(plan.__getitem__, range(count))]
    assert_same(take(BucketStream(plan, examples), count), expected)


@settings(max_examples=15)
@given(st.integers(0, 40), st.booleans())
def test_restart_at_any_step_gives_the_same_batches(step, by_state):
    whole = take(BucketStream(*make()), step + 5)
    if by_state:
        first = BucketStream(*make())
        take(first, step)
        second = BucketStream(*make())
        second.set_state(json.loads(json.dumps(first.get_state())))
    else:
        second = BucketStream(*make(), start=step)
    assert second.step == step
    assert_same(take(second, 5), whole[step:])


def test_a_stream_can_be_moved_back():
    stream = BucketStream(*make())
    state = stream.get_state()
    first = [next(stream) for _ in range(7)]
    stream.set_state(state)
    assert_same(take(stream, 7), first)
    assert stream.step == 7


def test_closing_keeps_the_position():
    stream = BucketStream(*make())
    first = take(stream, 3)
    assert_same(first + take(stream, 3), take(BucketStream(*make()), 6))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_processes_hold_contiguous_rows_of_the_same_global_batch(count):
    parts = [take(BucketStream(*make(), process_index=index, process_count=count), 20) for index in range(count)]
    joined = [jax.tree.map(lambda *rows: np.concatenate(rows), *step) for step in zip(*parts, strict=True)]
    assert_same(joined, take(BucketStream(*make()), 20))


def test_a_position_moves_between_numbers_of_processes():
    two = BucketStream(*make(), process_index=1, process_count=2)
    take(two, 9)
    one = BucketStream(*make())
    one.set_state(two.get_state())
    assert_same(take(one, 3), take(BucketStream(*make()), 12)[9:])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"seed": 5}, "seed: saved 0, now 5"),
        ({"tokens": 128}, "tokens: saved 64, now 128"),
        ({"boundaries": (9, 16)}, "boundaries: saved [8, 16], now [9, 16]"),
        ({"multiple": 2}, "multiple: saved 4, now 2"),
        ({"pairs": 61}, "data: saved '"),
        ({"seed": 5, "tokens": 128}, "seed: saved 0, now 5; tokens: saved 64, now 128"),
    ],
)
def test_a_position_of_another_pipeline_is_refused(other, message):
    state = BucketStream(*make()).get_state()
    stream = BucketStream(*make(**other))
    with pytest.raises(ValueError, match=re.escape(message)):
        stream.set_state(state)
    assert stream.step == 0


def test_another_tokenizer_is_refused():
    state = BucketStream(*make()).get_state()
    plan, examples = make()
    stream = BucketStream(plan, Tokenized(examples.source, examples.target, "other"))
    with pytest.raises(ValueError, match="tokenizer: saved 'bpe', now 'other'"):
        stream.set_state(state)


def test_broken_positions_are_refused():
    stream = BucketStream(*make())
    state = stream.get_state()
    with pytest.raises(ValueError, match="step of at least 0, got -1"):
        stream.set_state(state | {"step": -1})
    with pytest.raises(ValueError, match="step of at least 0, got None"):
        stream.set_state({name: value for name, value in state.items() if name != "step"})
    with pytest.raises(ValueError, match="seed: saved None, now 0"):
        stream.set_state({"step": 3})


def test_impossible_processes_are_refused():
    plan, examples = make(multiple=2, tokens=36)
    with pytest.raises(
        ValueError, match=r"got 4 processes and rows by boundary \{16: 2\}; make the plan with multiple=4"
    ):
        BucketStream(plan, examples, process_count=4)
    with pytest.raises(ValueError, match=re.escape("process_index must be in 0..1, got 2")):
        BucketStream(plan, examples, process_index=2, process_count=2)
    with pytest.raises(ValueError, match="got 60 and 61 rows"):
        BucketStream(plan, make(pairs=61)[1])


def test_batches_of_like_lengths_are_all_items_in_an_order_of_their_own():
    lengths = np.random.default_rng(0).integers(1, 100, 512)
    items = [{"number": i, "length": int(length)} for i, length in enumerate(lengths)]
    examples = of_like_lengths(items, draw, seed=3, rows=8, lengths=lengths)
    epoch = [examples[i] for i in range(512)]
    assert sorted(each["number"] for each in epoch) == list(range(512))
    batches = np.array([each["length"] for each in epoch]).reshape(-1, 8)
    assert np.ptp(batches, axis=1).mean() < 3
    assert np.abs(np.diff(batches.mean(1))).mean() > 10  # neither long nor short ones come first
    again = pickle.loads(pickle.dumps(of_like_lengths(items, draw, seed=3, rows=8, lengths=lengths)))
    assert [again[i] for i in (700, 3, 511)] == [examples[i] for i in (700, 3, 511)]
    assert [examples[512 + i]["number"] for i in range(512)] != [each["number"] for each in epoch]
    plain = shuffled(items, draw, seed=3)
    key = operator.itemgetter("number")
    assert sorted(epoch, key=key) == sorted((plain[i] for i in range(512)), key=key)
    few = of_like_lengths(items[:9], seed=0, rows=16, lengths=lengths[:9])
    assert {few[i]["number"] for i in range(16)} == set(range(9))
    with pytest.raises(ValueError, match="a length for each of 512 items, got 9"):
        of_like_lengths(items, seed=0, rows=8, lengths=lengths[:9])


def draw(example, rng):
    return {**example, "drawn": float(rng.random())}
