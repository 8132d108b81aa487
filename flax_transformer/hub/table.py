"""Weight tables: which of our parameters is which tensor of a checkpoint, in both directions.

A table is a tuple of rows. A row names parameters of ours by path and a tensor of theirs by name; `{}` in the name is
the layer, and what it names is then one slice of the leading layer axis of ours. How one is made from the other is a
layout: the order of axes, and whether several of ours lie in one tensor of theirs.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a tensor of theirs holds parameters of ours, one after another along the output axis.

    `inputs` axes of ours, from the front, are the inputs of a linear layer and the rest its outputs; a vector has
    outputs alone. PyTorch's linear layers keep a matrix [outputs, inputs], its transpose; None is no matrix at all:
    theirs has the shape of ours.
    """

    inputs: int | None = None
    transposed: bool = False

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Give the shape of their tensor for the shapes of our parameters."""
        if self.inputs is None:
            return shapes[0]
        rows = math.prod(shapes[0][: self.inputs])
        columns = sum(math.prod(shape[self.inputs :]) for shape in shapes)
        if self.inputs == 0:
            return (columns,)
        return (columns, rows) if self.transposed else (rows, columns)

    def split(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """Turn their tensor into our parameters, without copying where strides will do."""
        if self.inputs is None:
            return [tensor]
        matrix = tensor.T if self.transposed else tensor
        ends = np.cumsum([math.prod(shape[self.inputs :]) for shape in shapes])
        parts = np.split(matrix, ends[:-1], axis=-1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Turn our parameters into their tensor, contiguous in memory."""
        if self.inputs is None:
            return np.asarray(parts[0], order="C")
        flat = [part.reshape(*[math.prod(part.shape[: self.inputs])] * bool(self.inputs), -1) for part in parts]
        matrix = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=-1)
        return np.ascontiguousarray(matrix.T if self.transposed else matrix)


SAME, VECTOR = Layout(), Layout(inputs=0)


@dataclass(frozen=True)
class Row:
    """One tensor of theirs and what it is of ours."""

    ours: tuple[str, ...]
    theirs: str
    layout: Layout = SAME
    given: str = ""
    """A parameter of ours without which the row does not hold."""
    unless: str = ""
    """A parameter of ours with which the row does not hold: another tensor has what it names."""

    @property
    def stacked(self) -> bool:
        """Whether there is one tensor a layer."""
        return "{}" in self.theirs

    def under(self, ours: str, theirs: str) -> "Row":
        """Put a prefix before our paths and one before their name."""
        given, unless = (path and ours + path for path in (self.given, self.unless))
        moved = tuple(ours + path for path in self.ours)
        return replace(self, ours=moved, theirs=theirs + self.theirs, given=given, unless=unless)

    def holds(self, paths: Collection[str]) -> bool:
        """Say whether a model with parameters of these paths has what the row names."""
        return {self.ours[0], self.given or self.ours[0]} <= set(paths) and self.unless not in paths


Table = tuple[Row, ...]


def linear(ours: str | tuple[str, ...], theirs: str, *, inputs: int = 1) -> Table:
    """Give kernel and bias of a linear layer; PyTorch keeps [outputs, inputs]."""
    return _layer(ours, theirs, Layout(inputs, transposed=True))


def conv(ours: str | tuple[str, ...], theirs: str, *, inputs: int = 1) -> Table:
    """Give kernel and bias of a linear layer that is kept as [inputs, outputs], as GPT-2's are."""
    return _layer(ours, theirs, Layout(inputs))


def norm(ours: str, theirs: str) -> Table:
    """Give scale and bias of a normalisation."""
    return Row((f"{ours}.scale",), f"{theirs}.weight"), Row((f"{ours}.bias",), f"{theirs}.bias")


def embedding(ours: str, theirs: str) -> Table:
    """Give a table of embeddings."""
    return (Row((f"{ours}.embedding",), f"{theirs}.weight"),)


def _layer(ours: str | tuple[str, ...], theirs: str, layout: Layout) -> Table:
    parts = (ours,) if isinstance(ours, str) else ours
    return (
        Row(tuple(f"{part}.kernel" for part in parts), f"{theirs}.weight", layout),
        Row(tuple(f"{part}.bias" for part in parts), f"{theirs}.bias", VECTOR),
    )


def under(table: Table, ours: str, theirs: str) -> Table:
    """Put a prefix before our paths and one before their names."""
    return tuple(row.under(ours, theirs) for row in table)
