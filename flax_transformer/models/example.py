"""Batches that models make of themselves, to be measured, compiled and tested on: generated, every row full.

Axes: B rows, T positions, I frames, H W height and width in pixels, C channels.
"""

from typing import Any

import numpy as np

from flax_transformer.models.protocol import Described

FIRST = 4
"""Generated tokens begin here, after the marks for padding, begin and end."""
LENGTH = 32
"""Positions of a row, where nobody says."""


def draw_tokens(vocab: int, *shape: int) -> np.ndarray:
    """Draw tokens that are no marks, the same ones every time."""
    return np.random.default_rng(0).integers(min(FIRST, vocab - 1), vocab, shape).astype(np.int32)


class ReadsTokens:
    """What models of one sequence of tokens have in common as `Measurable`s."""

    @classmethod
    def example_batch(cls, config: Any, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B rows of T tokens, each with a label."""
        tokens, labels = draw_tokens(config.embedding.vocab, 2, rows, length or LENGTH)
        inputs = {"tokens": tokens, "lengths": np.full(rows, tokens.shape[1], np.int32)}
        return {"inputs": inputs, "labels": labels, "weights": np.ones(labels.shape, np.float32)}

    @classmethod
    def describe_batch(cls, config: Any, batch: dict[str, Any]) -> Described:
        """Count B · T tokens."""
        rows, length = batch["inputs"]["tokens"].shape
        return Described({"rows": rows, "length": length, "vocab": config.embedding.vocab}, rows * length, "tokens")


IMAGE = (224, 224)
"""Height and width of an image, where a model is made for any."""


class ReadsImages:
    """What models of images have in common as `Measurable`s; configs have `patches` of an image, or `channels`."""

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: Any, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B images [H, W, C] of the size that the model is made for."""
        patches = getattr(config, "patches", config)
        shape = (rows, *getattr(patches, "image", IMAGE), patches.channels)
        return {"inputs": {"images": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}}

    @classmethod
    def describe_batch(cls, config: Any, batch: dict[str, Any]) -> Described:
        """Count B images."""
        rows, height, width, _ = batch["inputs"]["images"].shape
        return Described({"rows": rows, "height": height, "width": width}, rows, "images")


class ReadsVideos(ReadsImages):
    """What models of videos have in common as `Measurable`s; configs have `patches` of an image, and `frames`."""

    @classmethod
    def example_batch(cls, config: Any, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B videos [I, H, W, C], as the model is made for."""
        frames = getattr(config, "frames", None) or config.patches.frames
        shape = (rows, frames, *config.patches.image, config.patches.channels)
        return {"inputs": {"videos": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}}

    @classmethod
    def describe_batch(cls, config: Any, batch: dict[str, Any]) -> Described:
        """Count B videos."""
        rows, frames, height, width, _ = batch["inputs"]["videos"].shape
        return Described({"rows": rows, "frames": frames, "height": height, "width": width}, rows, "videos")
