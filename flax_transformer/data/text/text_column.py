"""Batches of rows of several texts.

Axes: B rows, C columns, T positions.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from flax_transformer.data.examples import Arrays
from flax_transformer.frozen import frozen


@frozen
class TextColumns:
    """Lay out rows of C texts each, `tokens` a tuple of arrays, all as long as the first of some lengths that has room.

    >>> row = {"tokens": (np.array([5, 6]), np.array([7])), "labels": 1.0}
    >>> batch = TextColumns(lengths=(2, 8), columns=2)([row, None])
    >>> batch["inputs"]["tokens"].tolist(), batch["inputs"]["lengths"].tolist()
    ([[[5, 6], [7, 0]], [[0, 0], [0, 0]]], [[2, 1], [0, 0]])
    """

    lengths: tuple[int, ...]
    """That batches may have, growing."""
    columns: int
    """C."""
    pad: int = 0

    def __call__(self, examples: Sequence[Mapping[str, object] | None]) -> Arrays:
        """Lay out one batch; a row that is None is all padding, its lengths and weight are 0."""
        longest = max((len(text) for row in examples if row is not None for text in row["tokens"]), default=0)
        length = next((each for each in self.lengths if each >= longest), self.lengths[-1])
        shape = len(examples), self.columns
        tokens, lengths = np.full((*shape, length), self.pad, np.int32), np.zeros(shape, np.int32)
        labels, weights = np.zeros(shape[0], np.float32), np.zeros(shape[0], np.float32)
        for i, row in enumerate(examples):
            if row is None:
                continue
            labels[i], weights[i] = row["labels"], 1
            for column, text in enumerate(row["tokens"]):
                tokens[i, column, : len(text)], lengths[i, column] = text, len(text)
        return {"inputs": {"tokens": tokens, "lengths": lengths}, "labels": labels, "weights": weights}
