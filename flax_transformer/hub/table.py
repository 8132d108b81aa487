"""Weight tables: which of our parameters is which tensor of a checkpoint, in both directions.

A table is a tuple of rows. A row names parameters of ours by path and a tensor of theirs by name; `{}` in the name is
the layer, and what it names is then one slice of the leading layer axis of ours; a second `{}` is the expert, of the
axis after it; `{1}` is one of layers that are counted from 1, where the first is apart. How one is made from the other
is a layout: the order of axes, and whether several of ours lie in one tensor of theirs.
"""

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

Shape = tuple[int, ...]


LAYER = re.compile(r"\{(\d*)\}")
"""Where a name has the number of a layer, and the first of them."""


@runtime_checkable
class Layout(Protocol):
    """How a tensor of theirs holds parameters of ours."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """Return the shape of their tensor for the shapes of our parameters."""

    def split(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """Turn their tensor into our parameters, without copying where strides will do."""

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Turn our parameters into their tensor, contiguous in memory."""


@dataclass(frozen=True)
class Matrix:
    """The kernel of a linear layer, or its bias; of several layers one after another along the output axis.

    `inputs` axes of ours, from the front, are the inputs and the rest the outputs; a vector has outputs alone.
    PyTorch's linear layers keep a matrix [outputs, inputs], its transpose.
    """

    inputs: int
    transposed: bool = False

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Layout`."""
        rows = math.prod(shapes[0][: self.inputs])
        columns = sum(math.prod(shape[self.inputs :]) for shape in shapes)
        if self.inputs == 0:
            return (columns,)
        return (columns, rows) if self.transposed else (rows, columns)

    def split(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """See `Layout`."""
        matrix = tensor.T if self.transposed else tensor
        ends = np.cumsum([math.prod(shape[self.inputs :]) for shape in shapes])
        parts = np.split(matrix, ends[:-1], axis=-1)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """See `Layout`."""
        flat = [part.reshape(*[math.prod(part.shape[: self.inputs])] * bool(self.inputs), -1) for part in parts]
        matrix = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=-1)
        return np.ascontiguousarray(matrix.T if self.transposed else matrix)


@dataclass(frozen=True)
class Grouped:
    """Queries, keys and values [D, N, H] and [D, K, H] in one tensor [outputs, D], those of each group side by side.

    For each of the K groups it has N / K heads of queries, one of keys and one of values; biases lie likewise.
    """

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Layout`."""
        return (sum(math.prod(shape[-2:]) for shape in shapes), *shapes[0][:-2])

    def split(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """See `Layout`."""
        (*inputs, _, width), groups = shapes[0], shapes[1][-2]
        ends = np.cumsum([shape[-2] // groups for shape in shapes])
        parts = np.split(tensor.T.reshape(*inputs, groups, int(ends[-1]), width), ends[:-1], axis=-2)
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """See `Layout`."""
        (*inputs, _, width), groups = parts[0].shape, parts[1].shape[-2]
        together = np.concatenate([part.reshape(*inputs, groups, -1, width) for part in parts], axis=-2)
        return np.ascontiguousarray(together.reshape(*inputs, -1).T)


@dataclass(frozen=True)
class Headwise:
    """Several layers [C, N, H], each with heads of its own width, in one tensor [outputs, C]: head by head, what all
    layers have of it.
    """

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Layout`."""
        return (sum(math.prod(shape[-2:]) for shape in shapes), *shapes[0][:-2])

    def split(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """See `Layout`."""
        *inputs, heads, _ = shapes[0]
        return np.split(tensor.T.reshape(*inputs, heads, -1), np.cumsum([shape[-1] for shape in shapes])[:-1], axis=-1)

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """See `Layout`."""
        together = np.concatenate(parts, axis=-1)
        return np.ascontiguousarray(together.reshape(*together.shape[:-2], -1).T)


@dataclass(frozen=True)
class Kernel:
    """The kernel of a convolution of any rank, grouped or not; of several one after another along the output axis.

    Ours is [*space, inputs of a group, outputs], PyTorch's [outputs, inputs of a group, *space, *ones], and of a
    transposed convolution [inputs, outputs, *space].
    """

    ones: int = 0
    """Axes of theirs that ours lacks: a convolution of one point is a linear layer here."""
    transposed: bool = False
    """Whether it is that of a transposed convolution."""

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Layout`."""
        *space, inputs, _ = shapes[0]
        outputs = sum(shape[-1] for shape in shapes)
        both = (inputs, outputs) if self.transposed else (outputs, inputs)
        return (*both, *space, *(1,) * self.ones)

    def split(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """See `Layout`."""
        tensor = tensor.reshape(tensor.shape[: tensor.ndim - self.ones])
        ends = np.cumsum([shape[-1] for shape in shapes])
        return np.split(np.moveaxis(tensor, (0, 1), self._ends), ends[:-1], axis=-1)

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """See `Layout`."""
        kernel = np.moveaxis(np.concatenate(parts, axis=-1), self._ends, (0, 1))
        return np.ascontiguousarray(kernel).reshape(*kernel.shape, *(1,) * self.ones)

    @property
    def _ends(self) -> tuple[int, int]:
        """Where their first two axes are of ours."""
        return (-2, -1) if self.transposed else (-1, -2)


@dataclass(frozen=True)
class Same:
    """One parameter as it is, or behind axes of one: a class token is [1, 1, D] where ours is [D]."""

    ones: int = 0

    def shape(self, shapes: Sequence[Shape]) -> Shape:
        """See `Layout`."""
        return (1,) * self.ones + shapes[0]

    def split(self, tensor: np.ndarray, shapes: Sequence[Shape]) -> list[np.ndarray]:
        """See `Layout`."""
        return [tensor.reshape(shapes[0])]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """See `Layout`."""
        return np.asarray(parts[0], order="C").reshape(self.shape([parts[0].shape]))


SAME, VECTOR = Same(), Matrix(inputs=0)


@dataclass(frozen=True)
class TensorRow:
    """One tensor of theirs and what it is of ours."""

    ours: tuple[str, ...]
    theirs: str
    layout: Layout = SAME
    given: str = ""
    """A parameter of ours without which the row does not hold."""
    unless: str = ""
    """A parameter of ours with which the row does not hold: another tensor has what it names."""
    fit: Callable[..., np.ndarray] | None = None
    """`fit(tensor, before, after)`: a tensor of theirs for other fields of config.json than it was made with, as a
    table of positions for another `image_size`; None: it fits no others."""
    absent: float | None = None
    """What ours is in the first layer, where it has no use and they have no tensor; None: they have one of each."""
    counter: str = ""
    """A whole number of theirs besides, that counts batches: not read, and written as 0."""
    above: str = ""
    """A parameter of ours, of a stack that lies below this one: their numbers of layers go on from that."""

    @property
    def stacked(self) -> bool:
        """Whether there is one tensor a layer."""
        return LAYER.search(self.theirs) is not None

    @property
    def turned(self) -> bool:
        """Whether it is a matrix of theirs with inputs first, as GPT-2's."""
        return isinstance(self.layout, Matrix) and self.layout.inputs > 0 and not self.layout.transposed

    @property
    def pattern(self) -> str:
        """A pattern of the names of its tensors."""
        return LAYER.sub(r"\\d+", self.theirs.replace(".", r"\."))

    def under(self, ours: str, theirs: str) -> "TensorRow":
        """Put a prefix before our paths and one before their name."""
        paths = {name: getattr(self, name) and ours + getattr(self, name) for name in ("given", "unless", "above")}
        moved, counter = tuple(ours + path for path in self.ours), self.counter and theirs + self.counter
        return replace(self, ours=moved, theirs=theirs + self.theirs, counter=counter, **paths)

    def holds(self, paths: Collection[str]) -> bool:
        """Return whether a model with parameters of these paths has what the row names."""
        return {self.ours[0], self.given or self.ours[0]} <= set(paths) and self.unless not in paths


Table = tuple[TensorRow, ...]


def linear(ours: str | tuple[str, ...], theirs: str, *, inputs: int = 1) -> Table:
    """Return kernel and bias of a linear layer, or of several that are one there; PyTorch keeps [outputs, inputs]."""
    return _layer(ours, theirs, Matrix(inputs, transposed=True))


def grouped(ours: tuple[str, str, str], theirs: str) -> Table:
    """Return kernels and biases of queries, keys and values that are one layer there, those of a group side by side."""
    return (
        TensorRow(tuple(f"{part}.kernel" for part in ours), f"{theirs}.weight", Grouped()),
        TensorRow(tuple(f"{part}.bias" for part in ours), f"{theirs}.bias", Grouped()),
    )


def headwise(ours: tuple[str, ...], theirs: str) -> Table:
    """Return kernels of several layers without biases that are one there, head by head."""
    return (TensorRow(tuple(f"{part}.kernel" for part in ours), f"{theirs}.weight", Headwise()),)


def matrix(ours: str | tuple[str, ...], theirs: str, *, inputs: int = 1) -> Table:
    """Return kernel and bias of a linear layer that is kept as [inputs, outputs], as GPT-2's are."""
    return _layer(ours, theirs, Matrix(inputs))


def conv(ours: str | tuple[str, ...], theirs: str, *, ones: int = 0, transposed: bool = False) -> Table:
    """Return kernel and bias of a convolution over one axis, an image or a video, be it grouped or depthwise.

    Args:
      ones: how many axes of theirs, each of one point, ours lacks, where it is a linear layer.
      transposed: whether it is a transposed convolution.
    """
    return _layer(ours, theirs, Kernel(ones, transposed))


def norm(ours: str, theirs: str, *, later: bool = False) -> Table:
    """Return scale and bias of a normalisation; `later`: of all layers but the first, which has none there."""
    scale, bias = TensorRow((f"{ours}.scale",), f"{theirs}.weight"), TensorRow((f"{ours}.bias",), f"{theirs}.bias")
    return (replace(scale, absent=1.0), replace(bias, absent=0.0)) if later else (scale, bias)


def batch_norm(ours: str, theirs: str, *, counted: bool = True) -> Table:
    """Return scale, bias and running statistics of a batch normalisation.

    Args:
      counted: whether theirs also counts batches, as PyTorch's own does and a frozen one does not.
    """
    counter = f"{theirs}.num_batches_tracked" if counted else ""
    return (
        *norm(ours, theirs),
        TensorRow((f"{ours}.mean",), f"{theirs}.running_mean", counter=counter),
        TensorRow((f"{ours}.var",), f"{theirs}.running_var"),
    )


def parameter(ours: str, theirs: str, *, ones: int = 0, fit: Callable[..., np.ndarray] | None = None) -> Table:
    """Return one parameter, a class token or a table of positions, that has so many axes of one before ours.

    Args:
      fit: as a `TensorRow` has it.
    """
    return (TensorRow((ours,), theirs, Same(ones), fit=fit),)


def embedding(ours: str, theirs: str) -> Table:
    """Return a table of embeddings."""
    return (TensorRow((f"{ours}.embedding",), f"{theirs}.weight"),)


def _layer(ours: str | tuple[str, ...], theirs: str, layout: Layout) -> Table:
    parts = (ours,) if isinstance(ours, str) else ours
    return (
        TensorRow(tuple(f"{part}.kernel" for part in parts), f"{theirs}.weight", layout),
        TensorRow(tuple(f"{part}.bias" for part in parts), f"{theirs}.bias", VECTOR),
    )


def under(table: Table, ours: str, theirs: str) -> Table:
    """Put a prefix before our paths and one before their names."""
    return tuple(row.under(ours, theirs) for row in table)


def stacked_above(table: Table, below: str) -> Table:
    """Say of the rows of a stack that it lies above another, which has the parameter `below`."""
    return tuple(replace(row, above=below) for row in table)


def as_decoder(table: Table) -> Table:
    """Map the rows of a trunk to the decoder of a `Seq2Seq`."""
    return tuple(replace(row, ours=tuple(path.replace("trunk.", "decoder.") for path in row.ours)) for row in table)
