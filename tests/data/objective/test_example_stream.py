import itertools
import json
import re

import grain
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.data import ExampleStream, each_once, mixture, proportional, shuffled
from flax_transformer.data.text import (
    Blocks,
    Denoise,
    Infill,
    MLMMasking,
    Packed,
    Pairs,
    Rows,
    SpanCorruption,
    TextToText,
    TokenWindows,
    WordIds,
    train_byte_bpe,
)
from flax_transformer.data.text.batch import ragged

DOCUMENTS = ragged([[4 + (d * 7 + k) % 90 for k in range(3 + d % 20)] for d in range(40)])
MASKED = MLMMasking(vocab_size=100, mask=3, special=(0, 1, 2))
BLOCKS = Blocks(documents=DOCUMENTS, length=12, begin=(1,), end=(2,))


def masked(seed=0, rows=4, documents=DOCUMENTS, objective=MASKED, pad=0, **options):
    blocks = Blocks(documents=documents, length=12, begin=(1,), end=(2,))
    return ExampleStream(shuffled(blocks, objective, seed=seed), Rows(length=12, pad=pad), rows=rows, **options)


def mixed(seed=0, rows=4, weights=(1, 3), **options):
    raw = Blocks(documents=DOCUMENTS, length=12)
    parts = {
        "spans": shuffled(
            Blocks(documents=ragged([[5, 6, 7]] * 3), length=12), SpanCorruption(sentinel=999), seed=seed
        ),
        "denoise": shuffled(raw, Denoise(noises=(Infill(mask=3),)), seed=seed),
    }
    examples = mixture(parts, dict(zip(("spans", "denoise"), weights, strict=True)))
    return ExampleStream(examples, Pairs(source_length=32, target_length=32, start=0), rows=rows, **options)


def packed(rows=4, **options):
    examples = shuffled(Packed(documents=DOCUMENTS, length=16), seed=5)
    return ExampleStream(examples, Rows(length=16), rows=rows, **options)


STREAMS = pytest.mark.parametrize("make", [masked, mixed, packed])


def take(stream, count):
    batches = [next(stream) for _ in range(count)]
    stream.close()
    return batches


def assert_same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@STREAMS
@pytest.mark.parametrize("count", [2, 4])
def test_processes_hold_contiguous_rows_of_the_same_batches(make, count):
    parts = [take(make(process_index=index, process_count=count), 8) for index in range(count)]
    joined = [jax.tree.map(lambda *rows: np.concatenate(rows), *step) for step in zip(*parts, strict=True)]
    assert_same(joined, take(make(), 8))


@pytest.mark.rotates
@STREAMS
@pytest.mark.parametrize("step", [0, 1, 17])
def test_resuming_is_continuing(make, step):
    whole = take(make(), step + 4)
    first = make(process_index=1, process_count=2)
    take(first, step)
    second = make()
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert_same(take(second, 4), whole[step:])
    assert_same(take(make(start=step), 4), whole[step:])


@STREAMS
def test_batches_have_one_shape_and_depend_on_step_alone(make):
    stream = make()
    batches = take(stream, 30)
    assert len({str(jax.tree.map(lambda value: (value.shape, value.dtype), batch)) for batch in batches}) == 1
    assert_same([stream.make(step) for step in (29, 3, 29)], [batches[step] for step in (29, 3, 29)])
    assert any((one["labels"] != two["labels"]).any() for one, two in itertools.pairwise(batches))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "'seed': 0}, now"),
        ({"rows": 8}, "rows: saved 4, now 8"),
        ({"pad": 7}, "collate: saved 'Rows(length=12, pad=0)', now 'Rows(length=12, pad=7)'"),
        ({"documents": ragged([[5, 6]])}, "examples: saved"),
        ({"objective": MLMMasking(vocab_size=100, mask=3, special=(0, 1, 2), share=0.2)}, "share=0.2"),
    ],
)
def test_a_position_of_another_stream_is_refused(change, message):
    state = json.loads(json.dumps(masked().get_state()))
    masked().set_state(state)
    with pytest.raises(ValueError, match=re.escape(message)):
        masked(**change).set_state(state)


def test_a_position_of_another_mixture_is_refused():
    state = mixed().get_state()
    with pytest.raises(ValueError, match=re.escape("'weight': 3.0, ")):
        mixed(weights=(1, 2)).set_state(state)


def test_every_item_comes_once_an_epoch_in_new_order_and_with_new_draws():
    plain = shuffled(range(50), seed=3)
    epochs = [[plain[50 * epoch + i] for i in range(50)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert [shuffled(range(50), seed=4)[i] for i in range(50)] != epochs[0]
    one = shuffled(Blocks(documents=ragged([list(range(10, 60))]), length=50), MASKED, seed=0)
    assert (one[0]["weights"] != one[1]["weights"]).any()


@pytest.mark.rotates
@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(0, 10**12))
def test_an_example_is_a_function_of_seed_and_number(seed, number):
    one, two = (shuffled(BLOCKS, MASKED, seed=seed) for _ in range(2))
    two[number + 1]
    for name, value in one[number].items():
        np.testing.assert_array_equal(value, two[number][name])


def test_transforms_serve_grain_as_they_are():
    dataset = grain.MapDataset.source(BLOCKS).seed(7).random_map(MASKED)
    assert dataset[3]["weights"].sum() >= 1


def test_evaluation_sees_every_item_once_and_the_same_way():
    runs = [list(each_once(BLOCKS, MASKED, rows=7, collate=Rows(length=12))) for _ in range(2)]
    assert_same(*runs)
    assert {batch["inputs"]["tokens"].shape for batch in runs[0]} == {(7, 12)}
    seen = [
        row[:length].tolist()
        for batch in runs[0]
        for row, length in zip(batch["labels"], batch["inputs"]["lengths"], strict=True)
        if length
    ]
    assert seen == [block["tokens"].tolist() for block in BLOCKS]
    assert len(BLOCKS) % 7
    assert runs[0][-1]["weights"][-1].sum() == 0


def test_windows_stream_as_random_windows():
    tokens = np.arange(200, dtype=np.uint16)
    stream = ExampleStream(shuffled(TokenWindows(tokens=tokens, length=8), seed=0), Rows(length=8), rows=16)
    starts = np.concatenate([batch["inputs"]["tokens"][:, 0] for batch in take(stream, 12)])
    assert sorted(starts) == list(range(192))  # every window once in an epoch
    assert (np.diff(starts) != 1).any()


@pytest.mark.rotates
def test_the_mixture_follows_the_weights_in_every_stretch():
    parts = {name: shuffled([{"task": name, "item": k} for k in range(50)], seed=0) for name in ("a", "b", "c")}
    examples = mixture(parts, {"a": 5, "b": 3, "c": 2})
    names = [examples[i]["task"] for i in range(1000)]
    for first in range(0, 1000, 10):
        stretch = names[first : first + 10]
        assert [stretch.count(name) for name in "abc"] == [5, 3, 2]
    items = [examples[i]["item"] for i in range(1000) if names[i] == "c"]
    assert sorted(items) == sorted(list(range(50)) * 4)  # none of the source is passed over
    assert all(sorted(items[k : k + 50]) == list(range(50)) for k in range(0, 200, 50))


def test_odd_weights_are_kept_closely():
    weights = proportional({"a": 6_920, "b": 1_234_567, "c": 77}, temperature=2.0)
    examples = mixture({name: shuffled([name] * 999, seed=0) for name in weights}, weights)
    drawn = [examples[i] for i in range(5_000)]
    for name, weight in weights.items():
        assert abs(drawn.count(name) - 5_000 * weight) <= 1


def test_items_and_transforms_are_told_apart_by_content():
    rows = [{"tokens": np.array([5, 6]), "label": np.int64(1)}], [{"tokens": np.array([5, 7]), "label": np.int64(1)}]
    names = [shuffled(items, seed=0).identity["data"] for items in (*rows, [{"tokens": [5, 6], "label": 1}])]
    assert names[0] == names[2] != names[1]
    many = [WordIds(continuing=tuple(range(4, n)), special=(0,)) for n in (5000, 5001)]
    named = [shuffled(BLOCKS, each, seed=0).identity["transforms"][0] for each in many]
    assert named[0] != named[1]
    assert max(map(len, named)) < 100


@pytest.mark.parametrize(
    ("sizes", "options", "weights"),
    [
        ({"a": 10, "b": 30}, {}, [0.25, 0.75]),
        ({"a": 10, "b": 1000}, {"limit": 30}, [0.25, 0.75]),
        ({"a": 1, "b": 16}, {"temperature": 4.0}, [1 / 3, 2 / 3]),
        ({"a": 1, "b": 16}, {"temperature": 1e9}, [0.5, 0.5]),
    ],
)
def test_proportional_weights(sizes, options, weights):
    np.testing.assert_allclose(list(proportional(sizes, **options).values()), weights, rtol=1e-6)


def test_tasks_as_texts_with_prefixes():
    tokenizer = train_byte_bpe(["copy: reverse: abc def"], vocab_size=262)
    pairs = [{"source": "abc", "target": "cba"}, {"source": "de", "target": "ed"}]
    parts = {
        name: shuffled(pairs, TextToText(tokenizer=tokenizer, prefix=f"{name}: "), seed=2)
        for name in ("copy", "reverse")
    }
    stream = ExampleStream(
        mixture(parts, {"copy": 1, "reverse": 1}), Pairs(source_length=24, target_length=8, start=tokenizer.pad), rows=4
    )
    batch = next(stream)
    stream.close()
    sources = tokenizer.decode(batch["inputs"]["source"])
    assert sorted(sources) == ["copy: abc", "copy: de", "reverse: abc", "reverse: de"]
    targets = tokenizer.decode(batch["labels"])
    assert targets == [{"abc": "cba", "de": "ed"}[text.split()[-1]] for text in sources]
    state = stream.get_state()
    parts["copy"] = shuffled(pairs, TextToText(tokenizer=tokenizer, prefix="same: "), seed=2)
    other = ExampleStream(
        mixture(parts, {"copy": 1, "reverse": 1}), Pairs(source_length=24, target_length=8, start=tokenizer.pad), rows=4
    )
    with pytest.raises(ValueError, match="examples: saved"):
        other.set_state(state)


def test_what_cannot_be_streamed_is_refused():
    examples = shuffled(BLOCKS, MASKED, seed=0)
    with pytest.raises(ValueError, match="multiple of the processes, got 6 rows, 4 processes"):
        ExampleStream(examples, Rows(length=12), rows=6, process_count=4)
    with pytest.raises(ValueError, match=re.escape("process_index must be in 0..1, got 2")):
        ExampleStream(examples, Rows(length=12), rows=6, process_index=2, process_count=2)
    with pytest.raises(ValueError, match="at least one item, got 0"):
        shuffled([], seed=0)
    with pytest.raises(ValueError, match=re.escape("seed must be in 0..2**32 - 1, got -1")):
        shuffled(BLOCKS, seed=-1)
    with pytest.raises(ValueError, match="frozen dataclass or a module-level function"):
        shuffled(BLOCKS, lambda example, rng: example, seed=0)
    with pytest.raises(ValueError, match=re.escape("each part needs one weight, got parts ['a'], weights ['b']")):
        mixture({"a": examples}, {"b": 1.0})
    with pytest.raises(ValueError, match=re.escape("weights must be positive, got {'a': 0.0}")):
        mixture({"a": examples}, {"a": 0.0})
    with pytest.raises(ValueError, match=r"temperature and limit must be positive, got 0\.0, None"):
        proportional({"a": 1}, temperature=0.0)
