"""What examples of pairs have in common: halves that belong together, held out.

Axes: B pairs, H W height and width in pixels, C channels.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from flax_transformer.data.examples import Arrays, Chain
from flax_transformer.data.image import Pictures


@dataclass(frozen=True, eq=False)
class HeldMatches:
    """Held-out halves, each side by itself, and which belong together."""

    sides: tuple[str, str]
    """What the halves are called: "texts", "images"."""
    first: Callable[[], Iterable[Arrays]]
    """Gives batches of the first side's `inputs`, and `weights`, 0 where a row is empty."""
    second: Callable[[], Iterable[Arrays]]
    """The same of the second."""
    belong: Bool[np.ndarray, "_ _"]
    """True where the first of the row and the second of the column belong together."""
    show: tuple[Callable[[int], Any], Callable[[int], Any]]
    """Of each side, what a half is by its number: a text, or an image of Pillow's as the model sees it."""


def numbered(images: Any) -> Pictures:
    """Return images by their numbers in place of classes."""
    return Pictures(images, np.arange(len(images), dtype=np.int32))


def only(batch: Mapping[str, Any], name: str, called: str | None = None) -> Arrays:
    """Return a batch with one of its inputs alone, perhaps under another name."""
    return {**batch, "inputs": {called or name: batch["inputs"][name]}}


def as_seen(images: Any, fixed: Sequence[Any], index: int) -> Any:
    """Return an image of Pillow's as the model sees it."""
    return Chain(tuple(fixed))({"image": images[index]}, np.random.default_rng(0))["image"]
