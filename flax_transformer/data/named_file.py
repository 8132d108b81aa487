"""Files of a folder by number, whatever they hold: what sources of images, clips and sounds have in common.

Axes: B files.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Int

from flax_transformer.data.identity import digest


@dataclass(frozen=True, eq=False)
class NamedFiles:
    """Files that lie in a folder; a subclass reads them."""

    root: Path
    names: Sequence[str]
    """Paths below the folder."""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def fingerprint(self) -> str:
        """Name which they are: by the paths of all files and how many bytes each has."""
        files = (file for name in self.names for file in self.files(self.root / name))
        return digest(*(f"{file.relative_to(self.root).as_posix()} {file.stat().st_size}\n" for file in files))

    def files(self, path: Path) -> Iterable[Path]:
        """List the files that one is made of."""
        return (path,)

    def name(self, index: int) -> str:
        """Say where one comes from."""
        return str(self.root / self.names[index])

    def take(self, indices: Int[np.ndarray, "_"]) -> "NamedFiles":
        """Pick some."""
        return replace(self, names=[self.names[index] for index in indices])
