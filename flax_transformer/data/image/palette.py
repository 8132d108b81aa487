"""Images as sequences of few colours, line after line (Chen et al. 2020, "Generative Pretraining from Pixels").

Axes: B images, H W height and width in pixels, C channels, T = H·W pixels of an image, V colours, N points.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int, UInt8

from flax_transformer.data.examples import Arrays
from flax_transformer.data.image.batch import Draw
from flax_transformer.frozen import frozen

HALF = 127.5
"""Bytes are told from -1 to 1, as published palettes are."""
PIECE = 1 << 23
"""Distances that exist at a time."""


@frozen
class Palette:
    """A few colours, and images made of them."""

    colours: tuple[tuple[float, ...], ...]
    """V colours of C channels, from -1 to 1."""

    def __post_init__(self) -> None:
        if not self.colours or len({len(colour) for colour in self.colours}) > 1 or not self.colours[0]:
            raise ValueError(f"a palette must have colours, all of as many channels, got {self.colours!s:.60}")
        if not all(-1 <= value <= 1 for colour in self.colours for value in colour):
            raise ValueError(f"colours must be from -1 to 1, got {self.colours!s:.60}")

    def __len__(self) -> int:
        return len(self.colours)

    @property
    def channels(self) -> int:
        """C."""
        return len(self.colours[0])

    def tokens(self, images: UInt8[np.ndarray, "B H W C"]) -> Int[np.ndarray, "B T"]:
        """Number the nearest colour of every pixel.

        Raises:
          ValueError: images of other channels than the colours.
        """
        if images.shape[-1] != self.channels:
            raise ValueError(f"images must have C={self.channels}, as the palette, got {images.shape[-1]}")
        colours = np.array(self.colours, np.float32)
        if self.channels == 1:
            levels = np.arange(256, dtype=np.uint8)[:, None]
            return _nearest(levels, colours)[images.reshape(len(images), -1)]
        return _nearest(images.reshape(-1, self.channels), colours).reshape(len(images), -1)

    def pixels(self, tokens: Int[np.ndarray, "... T"], height: int) -> UInt8[np.ndarray, "... H W C"]:
        """Paint images of so many lines in the colours of their numbers."""
        colours = np.rint((np.array(self.colours) + 1) * HALF).astype(np.uint8)
        return colours[tokens].reshape(*tokens.shape[:-1], height, -1, self.channels)


@frozen
class PaletteRows:
    """Change a batch of images into one of colours to be told, each from those before it.

    Its inputs are `tokens` [B, T], the pixels but the last behind a token V that begins every image; labels [B, T]
    are the pixels.
    """

    palette: Palette

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Number the colours of a batch; images of weight 0 have pixels of weight 0."""
        pixels = self.palette.tokens(batch["inputs"]["images"])
        tokens = np.pad(pixels[:, :-1], ((0, 0), (1, 0)), constant_values=len(self.palette))
        weights = np.broadcast_to(batch["weights"][:, None], pixels.shape)
        return {"inputs": {"tokens": tokens}, "labels": pixels, "weights": np.ascontiguousarray(weights)}


def find_palette(pixels: UInt8[np.ndarray, "N C"], colours: int, *, seed: int = 0, rounds: int = 20) -> Palette:
    """Find the colours that pixels are nearest to, by k-means that begins as k-means++ does; the darkest comes first.

    Args:
      pixels: to be seen; if they have not as many colours as are asked for, the palette has theirs.
      colours: V.
      seed: of the beginning.
      rounds: of means at most.

    Raises:
      ValueError: less than two colours asked for.
    """
    if colours < 2:
        raise ValueError(f"colours must be at least 2, got {colours}")
    points, counts = np.unique(pixels, axis=0, return_counts=True)
    if len(points) <= colours:
        return _ordered(_scaled(points))
    rng, centres = np.random.default_rng(seed), np.empty((0, points.shape[1]), np.float32)
    far = np.ones(len(points))
    for _ in range(colours):
        chosen = rng.choice(len(points), p=far * counts / np.sum(far * counts))
        centres = np.concatenate([centres, _scaled(points[chosen : chosen + 1])])
        distances = np.sum(np.square(_scaled(points) - centres[-1]), axis=1)
        far = distances if len(centres) == 1 else np.minimum(far, distances)
    for _ in range(rounds):
        nearest = _nearest(points, centres)
        mass = np.bincount(nearest, counts, colours)
        means = [np.bincount(nearest, counts * channel, colours) for channel in _scaled(points).T]
        moved = np.where(mass[:, None] > 0, np.stack(means, 1) / np.maximum(mass, 1)[:, None], centres)
        if np.array_equal(moved.astype(np.float32), centres):
            break
        centres = moved.astype(np.float32)
    return _ordered(centres)


def _scaled(pixels: UInt8[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
    return pixels.astype(np.float32) / np.float32(HALF) - 1


def _ordered(centres: Float[np.ndarray, "V C"]) -> Palette:
    order = np.argsort(centres.sum(axis=1), kind="stable")
    return Palette(colours=tuple(tuple(map(float, np.clip(centre, -1, 1))) for centre in centres[order]))


def _nearest(points: UInt8[np.ndarray, "N C"], colours: Float[np.ndarray, "V C"]) -> Int[np.ndarray, " N"]:
    """Number the nearest colour of every point, a piece of them at a time."""
    half = np.sum(np.square(colours), axis=1) / 2
    found = [np.argmin(half - _scaled(piece) @ colours.T, axis=1) for piece in _pieces(points, len(colours))]
    return np.concatenate(found).astype(np.int32)


def _pieces(points: UInt8[np.ndarray, "N C"], colours: int) -> Iterator[np.ndarray]:
    step = max(PIECE // colours, 1)
    return (points[begin : begin + step] for begin in range(0, len(points), step))
