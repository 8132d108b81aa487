"""What a finished model is tested on: rows of a table, and what is done to them before they are laid out."""

from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int

from flax_transformer.data.examples import Chain, Transform
from flax_transformer.frozen import frozen


@frozen
class HeldOut:
    """Held-out rows as a model sees them."""

    table: Any
    """A `Table`, or what gives rows as it does."""
    transforms: tuple[Transform, ...]
    """Before rows are laid out."""

    what: ClassVar[str] = "rows"

    @property
    def labels(self) -> Int[np.ndarray, " B"]:
        """The numbers of their classes."""
        return np.asarray(self.table["label"])

    def name(self, index: int) -> str:
        """Return where a row comes from."""
        return self.table["name"][index]

    def example(self, index: int) -> Any:
        """Return a row as the model gets it."""
        return Chain(self.transforms)(self.table[index], np.random.default_rng(0))


@frozen
class HeldSeen(HeldOut):
    """Held-out rows that are looked at; a subclass says how a report shows one."""

    def seen(self, index: int) -> Any:
        """Return what a report shows of a row, an image of Pillow's."""
        raise NotImplementedError

    def facts(self, index: int) -> dict[str, Any]:
        """Return what else a report must know of how it is shown."""
        return {}
