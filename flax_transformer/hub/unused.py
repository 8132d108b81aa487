"""Tensors of a checkpoint that its model does not use: kept on the host as they were stored, and saved again."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.file import DTYPES, OTHERS, Tensor

Parts = Mapping[str, tuple[int, Callable[[], np.ndarray]]]
"""Of each tensor of a file, its bytes and how to make it."""
READABLE = {*DTYPES.values(), *OTHERS.values()}


@dataclass(frozen=True)
class Kept:
    """One tensor, with its content."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    content: bytes

    def array(self) -> np.ndarray:
        """Return it as it is written."""
        return np.frombuffer(self.content, jnp.dtype(self.dtype)).reshape(self.shape)


@dataclass(frozen=True)
class Unused:
    """What a checkpoint has beside the parameters of its model: hashable, equal where the contents are.

    A pooler that a class does not call, buffers, counts of batches, and output layers stored beside the table to which
    they are tied.
    """

    architecture: str = ""
    """The class whose checkpoint it was: one of another class has no use for them."""
    tensors: tuple[Kept, ...] = ()
    copies: tuple[tuple[str, str, bool], ...] = ()
    """Of tensors that are another one again: name, name of that one, and whether that one was stored too."""

    @cached_property
    def _hash(self) -> int:
        return hash((self.architecture, self.tensors, self.copies))

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Unused({len(self.tensors)} tensors, {len(self.copies)} copies)"

    @classmethod
    def of(
        cls, architecture: str, tensors: Mapping[str, Tensor], copies: Iterable[tuple[str, str, bool]],
        dtype: str | None,
    ) -> "Unused":  # fmt: skip
        """Read the tensors that a model leaves; floats are rounded where other numbers are asked for."""
        known: dict[bytes, bytes] = {}  # masks and the like are often the same in every layer
        found = []
        for name, tensor in tensors.items():
            if tensor.dtype not in READABLE:
                continue
            kind = dtype if dtype and tensor.dtype in DTYPES.values() else tensor.dtype
            content = np.asarray(tensor.read()).astype(jnp.dtype(kind), copy=False).tobytes()
            found.append(Kept(name, tensor.shape, kind, known.setdefault(content, content)))
        return cls(architecture, tuple(found), tuple(copies))

    def beside(self, parts: Parts, architecture: str) -> Parts:
        """Return all tensors of a file: those made of a model of this class, and what was stored beside them."""
        if architecture != self.architecture:
            return parts
        found = {**parts, **{each.name: (len(each.content), each.array) for each in self.tensors}}
        found |= {copy: parts[original] for copy, original, _ in self.copies if original in parts}
        alone = {original for _, original, both in self.copies if not both}
        return {name: part for name, part in found.items() if name not in alone}
