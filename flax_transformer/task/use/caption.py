"""Say what is on images."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.task.use.image import batches
from flax_transformer.task.use.require import image_processor_of, positions_of, require_use
from flax_transformer.task.use.several import File

LONGEST = 40
"""Tokens of a caption at most, where nothing else is said."""


def caption(
    pretrained: Pretrained, files: Sequence[File | Any], *, max_new_tokens: int | None = None, **settings: Any
) -> list[str]:
    """Write a caption of each image, a file or an image of Pillow's.

    Args:
      max_new_tokens: of a caption at most; by default 40, or as many as the model has positions.
      settings: of generation, as `hub.generate` takes them; the checkpoint's own by default.

    Raises:
      ValueError: a checkpoint of another kind, without an image processor or a tokenizer; a file that is no image.
    """
    writes = "continue" if "continue" in pretrained.architecture.uses else "respond"
    require_use(pretrained, writes, "images")
    if pretrained.tokenizer is None:
        raise ValueError("captions need a tokenizer, the checkpoint has no tokenizer files")
    image_processor_of(pretrained)
    found: list[str] = []
    settings["max_new_tokens"] = room(pretrained, LONGEST) if max_new_tokens is None else max_new_tokens
    for inputs in batches(pretrained, files):
        found += pretrained.tokenizer.decode(np.asarray(pretrained.generate(**inputs, **settings)))
    return [" ".join(text.split()) for text in found]


def room(pretrained: Pretrained, most: int) -> int:
    """Return so many tokens, or as many as the model has positions."""
    return min(most, positions_of(pretrained.model.cfg) or most)
