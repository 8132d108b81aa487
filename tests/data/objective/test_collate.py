import jax
import numpy as np
import pytest

from flax_transformer.data.text import Pairs, Rows
from flax_transformer.data.text.batch import Tokenized, ragged


def test_rows_pad_each_field():
    examples = [
        {"tokens": np.array([5, 6, 7]), "weights": np.array([0.0, 1.0, 1.0]), "labels": 2},
        {"tokens": np.array([8]), "weights": np.array([1.0]), "labels": 1},
        None,
    ]
    batch = Rows(length=4, pad=9)(examples)
    assert batch["inputs"]["tokens"].tolist() == [[5, 6, 7, 9], [8, 9, 9, 9], [9, 9, 9, 9]]
    assert batch["weights"].tolist() == [[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert batch["labels"].tolist() == [2, 1, 0]
    assert batch["inputs"]["lengths"].tolist() == [3, 1, 0]
    assert jax.tree.map(lambda array: array.dtype, batch) == {
        "inputs": {"tokens": np.int32, "lengths": np.int32}, "labels": np.int32, "weights": np.float32,
    }  # fmt: skip


def test_a_label_a_row_counts_once_and_an_empty_row_never():
    batch = Rows(length=2)([{"tokens": np.array([5]), "labels": 0, "types": np.array([1])}, None])
    assert batch["weights"].tolist() == [1, 0]
    assert batch["inputs"]["types"].tolist() == [[1, 0], [0, 0]]
    assert "weights" not in Rows(length=2)([{"tokens": np.array([5])}])


def test_pairs_are_laid_out_as_translations_are():
    rows = ([[5, 6], [7]], [[8], [9, 5, 6]])
    theirs = Tokenized(*map(ragged, rows)).lay_out(np.array([0, 1, -1]), 6)
    examples = [{"source": np.array([*s, 2]), "target": np.array([*t, 2])} for s, t in zip(*rows, strict=True)]
    ours = Pairs(source_length=6, target_length=6, start=1)([*examples, None])
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    assert jax.tree.map(lambda array: array.dtype, ours) == jax.tree.map(lambda array: array.dtype, theirs)


def test_what_does_not_fit_is_refused():
    long = {"tokens": np.arange(5), "source": np.arange(2), "target": np.arange(5)}
    with pytest.raises(ValueError, match="tokens must fit its row, got 5 values, 4 positions"):
        Rows(length=4)([long])
    with pytest.raises(ValueError, match="target must fit its row, got 5 values, 4 positions"):
        Pairs(source_length=4, target_length=4, start=0)([long])
    with pytest.raises(ValueError, match="equally long, got 2 tokens, 3 weights"):
        Rows(length=4)([{"tokens": np.arange(2), "weights": np.ones(3)}])
    with pytest.raises(ValueError, match="at least one example, got 2 empty rows"):
        Rows(length=4)([None, None])
    with pytest.raises(ValueError, match="an example must have tokens, got label"):
        Rows(length=4)([{"label": 1}])
    with pytest.raises(ValueError, match="length must be at least 1 position, got 0"):
        Rows(length=0)
