"""Examples of different lengths laid out as batches of one shape.

A batch has what a model takes by name under ``inputs``, and beside it ``labels``, ``weights`` and whatever else an
objective asks for. B rows, T positions, S source positions. An example that is None makes an empty row: all padding,
length and weights 0.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from flax_transformer.data.examples import Arrays
from flax_transformer.frozen import frozen

INPUTS = ("tokens", "types", "positions", "segments")
"""Fields of an example that a model takes."""


@frozen
class Rows:
    """Lay out single sequences: every array of an example becomes [B, T], every number [B].

    ``tokens``, ``types``, ``positions`` and ``segments`` are inputs, and ``lengths`` [B] joins them. ``tokens`` are
    padded with ``pad``, every other array with 0; arrays must be as long as the tokens. Labels that are numbers, one a
    row, get ``weights`` [B]: 1, and 0 where a row is empty.

    >>> batch = Rows(length=3, pad=9)([{"tokens": np.array([5, 6]), "labels": 1}, None])
    >>> batch["inputs"]["tokens"].tolist(), batch["weights"].tolist()
    ([[5, 6, 9], [9, 9, 9]], [1.0, 0.0])

    Raises:
        ValueError: an example longer than T, of unequal arrays, or all rows empty.
    """

    length: int
    pad: int = 0

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length must be at least 1 position, got {self.length}")

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch."""
        present = _present(examples)
        if "tokens" not in present:
            raise ValueError(f"an example must have tokens, got {', '.join(present)}")
        batch = {}
        for name, value in present.items():
            values = [None if example is None else np.asarray(example[name]) for example in examples]
            if np.ndim(value):
                _check_equal(examples, name)
                batch[name], lengths = pad_arrays(name, values, self.length, self.pad if name == "tokens" else 0)
            else:
                batch[name] = np.array([0 if value is None else value for value in values], _narrow(np.asarray(value)))
        inputs = {name: batch.pop(name) for name in INPUTS if name in batch}
        if "labels" in batch and "weights" not in batch:
            batch["weights"] = (lengths > 0).astype(np.float32)
        return {"inputs": {**inputs, "lengths": lengths}, **batch}


@frozen
class FittedRows:
    """Lay out rows as `Rows` does, all as long as the first of some lengths that has room for the longest.

    >>> batch = FittedRows(lengths=(2, 8))([{"tokens": np.array([5, 6]), "labels": 1}, None])
    >>> batch["inputs"]["tokens"].shape
    (2, 2)

    Raises:
        ValueError: lengths that do not grow; also as `Rows`.
    """

    lengths: tuple[int, ...]
    pad: int = 0

    def __post_init__(self) -> None:
        if not self.lengths or self.lengths[0] < 1 or any(a >= b for a, b in pairwise(self.lengths)):
            raise ValueError(f"lengths must be at least 1, each larger than the one before, got {self.lengths}")

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch."""
        longest = max((len(example["tokens"]) for example in examples if example is not None), default=0)
        length = next((each for each in self.lengths if each >= longest), self.lengths[-1])
        return Rows(length=length, pad=self.pad)(examples)


@frozen
class Pairs:
    """Lay out ``source`` and ``target`` arrays as ``collate`` of sentence pairs does.

    The decoder reads the target behind ``start``; end marks are the example's own. T5 starts with its padding, BART
    with its end mark. See ``teacher_forcing_batch`` for the batch.

    Raises:
        ValueError: a side longer than S or T, or all rows empty.
    """

    source_length: int
    target_length: int
    start: int
    pad: int = 0

    def __post_init__(self) -> None:
        if min(self.source_length, self.target_length) < 1:
            raise ValueError(f"lengths must be at least 1, got {self.source_length} and {self.target_length}")

    def __call__(self, examples: Sequence[Mapping[str, Any] | None]) -> Arrays:
        """Lay out one batch."""
        _present(examples)
        sides = {}
        for name, length in (("source", self.source_length), ("target", self.target_length)):
            values = [None if example is None else np.asarray(example[name]) for example in examples]
            sides[name] = pad_arrays(name, values, length, self.pad)
        return teacher_forcing_batch(*sides["source"], *sides["target"], start=self.start, pad=self.pad)


def teacher_forcing_batch(
    source: Int[np.ndarray, "B S"],
    source_lengths: Int[np.ndarray, " B"],
    target: Int[np.ndarray, "B T"],
    target_lengths: Int[np.ndarray, " B"],
    *,
    start: int,
    pad: int,
) -> Arrays:
    """Make the batch of an encoder-decoder that is told every target token but the one to guess.

    Returns:
        ``inputs`` with ``source`` [B, S], its ``lengths`` [B], and the ``target`` [B, T] one to the right, behind
        ``start``; ``labels`` [B, T], the target, and ``weights`` [B, T], 1 where it has a token.
    """
    begin = np.where(target_lengths > 0, start, pad).astype(np.int32)
    read = np.concatenate([begin[:, None], target[:, :-1]], axis=1)
    weights = (np.arange(target.shape[1]) < target_lengths[:, None]).astype(np.float32)
    return {
        "inputs": {"source": source, "target": read, "lengths": source_lengths},
        "labels": target,
        "weights": weights,
    }


def _present(examples: Sequence[Mapping[str, Any] | None]) -> Mapping[str, Any]:
    example = next((example for example in examples if example is not None), None)
    if example is None:
        raise ValueError(f"a batch needs at least one example, got {len(examples)} empty rows")
    return example


def _check_equal(examples: Sequence[Mapping[str, Any] | None], name: str) -> None:
    for example in examples:
        if example is not None and len(example[name]) != len(example["tokens"]):
            raise ValueError(
                f"arrays of one example must be equally long, got {len(example['tokens'])} tokens, "
                f"{len(example[name])} {name}"
            )


def pad_arrays(
    name: str, values: Sequence[Shaped[np.ndarray, "_"] | None], width: int, pad: int
) -> tuple[Shaped[np.ndarray, "B width"], Int[np.ndarray, " B"]]:
    """Lay arrays of different lengths out as rows of one width, and give their lengths; None makes an empty row.

    Raises:
        ValueError: an array that is wider; names what it is.
    """
    kind = _narrow(next(value for value in values if value is not None))
    out = np.full((len(values), width), pad, kind)
    lengths = np.zeros(len(values), np.int32)
    for row, value in enumerate(values):
        if value is not None:
            if len(value) > width:
                raise ValueError(f"{name} must fit its row, got {len(value)} values, {width} positions")
            out[row, : len(value)] = value
            lengths[row] = len(value)
    return out, lengths


def _narrow(value: Shaped[np.ndarray, "..."]) -> type:
    return np.float32 if np.issubdtype(value.dtype, np.floating) else np.int32
