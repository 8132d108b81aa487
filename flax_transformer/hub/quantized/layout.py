"""How a matrix [O, I] of a file is cut into the kernels, or is the table, of a row of a weight table, and back.

Axes: O outputs, or rows of a table; I inputs, or columns; G groups of consecutive inputs.
"""

import math

import numpy as np

from flax_transformer.compress.kernel import is_table
from flax_transformer.compress.quantize import scale_shape
from flax_transformer.hub.table import Matrix, Same
from flax_transformer.hub.weights import Entry
from flax_transformer.nn.quantized import Quantized


def is_matrix(entry: Entry) -> bool:
    """Return whether a row is of kernels of linear layers, or of a table: both are a module's `weight`."""
    if isinstance(entry.row.layout, Matrix):
        ours, theirs = ((*entry.row.ours,), "kernel"), (entry.names, ".weight")
        return all(name.endswith(ending) for names, ending in (ours, theirs) for name in names)
    return entry.row.layout == Same() and is_table(entry.row.ours[0])


def is_turned(entry: Entry) -> bool:
    """Return whether the whole matrix of a row has inputs first, as GPT-2's."""
    return entry.row.turned


def turn(entry: Entry, matrix: np.ndarray) -> np.ndarray:
    """Turn a matrix [O, I] as the whole one of a row lies, or back."""
    return matrix.T if is_turned(entry) else matrix


def matrix_size(entry: Entry) -> tuple[int, int]:
    """Return O and I."""
    rows, columns = entry.shape
    return (columns, rows) if is_turned(entry) else (rows, columns)


def split(entry: Entry, matrix: np.ndarray) -> list[np.ndarray]:
    """Cut a matrix into the parameters of one layer."""
    return entry.row.layout.split(turn(entry, matrix), entry.shapes)


def join(entry: Entry, parts: list[np.ndarray]) -> np.ndarray:
    """Join the parameters of one layer into a matrix."""
    return turn(entry, entry.row.layout.join(parts))


def once(entry: Entry, part: np.ndarray, group: int | None) -> np.ndarray:
    """Take what all inputs of a group share once: from a parameter's shape to that of its scale.

    Raises:
      ValueError: groups that are no part of the parameter's axes.
    """
    if not isinstance(entry.row.layout, Matrix):
        return np.ascontiguousarray(part[:, :: group or part.shape[1]])
    inputs = entry.row.layout.inputs
    shape, outputs = part.shape[:inputs], part.shape[inputs:]
    flat = part.reshape(math.prod(shape), -1)[:: group or math.prod(shape)]
    return np.ascontiguousarray(flat.reshape(*scale_shape(part.shape, inputs, group), *outputs))


def group_count(entry: Entry, kernel: Quantized) -> int:
    """Return G."""
    if not isinstance(entry.row.layout, Matrix):
        return kernel.scale.shape[-1]
    start = len(entry.leads)
    return math.prod(kernel.scale.shape[start : start + entry.row.layout.inputs])
