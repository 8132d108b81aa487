"""Examples of different lengths laid out as batches of one shape.

B rows, T positions, S source positions. An example that is None makes an empty row: all padding, length 0.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from flax_transformer.data.examples import Arrays
from flax_transformer.frozen import frozen


@frozen
class Rows:
    """Lay out single sequences: every array of an example becomes [B, T], every number [B]; ``length`` [B] joins.

    ``tokens`` are padded with ``pad``, every other array with 0; arrays must be as long as the tokens.

    >>> Rows(length=3, pad=9)([{"tokens": np.array([5, 6]), "label": 1}, None])["tokens"].tolist()
    [[5, 6, 9], [9, 9, 9]]

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
                batch[name], lengths = _fill(name, values, self.length, self.pad if name == "tokens" else 0)
            else:
                batch[name] = np.array([0 if value is None else value for value in values], _narrow(np.asarray(value)))
        batch["length"] = lengths
        return batch


@frozen
class Pairs:
    """Lay out ``source`` and ``target`` arrays as ``collate`` of sentence pairs does.

    Returns int32 arrays ``source`` [B, S], ``source_length`` [B], ``target`` [B, T+1] and ``target_length`` [B]. The
    target begins with ``start``, which the length does not count, so the labels are ``target[:, 1:]``. End marks are
    the example's own. T5 starts with its padding, BART with its end mark.

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
        batch = {}
        for name, length in (("source", self.source_length), ("target", self.target_length)):
            values = [None if example is None else np.asarray(example[name]) for example in examples]
            batch[name], batch[f"{name}_length"] = _fill(name, values, length, self.pad)
        start = np.where(batch["target_length"] > 0, self.start, self.pad).astype(np.int32)
        batch["target"] = np.concatenate([start[:, None], batch["target"]], axis=1)
        return batch


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


def _fill(
    name: str, values: Sequence[Shaped[np.ndarray, "_"] | None], width: int, pad: int
) -> tuple[Shaped[np.ndarray, "B width"], Int[np.ndarray, " B"]]:
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
