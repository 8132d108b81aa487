"""Say what is on pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.task.use.picture import File, batches
from flax_transformer.task.use.require import require_use


def caption(pretrained: Pretrained, files: Sequence[File], **settings: Any) -> list[str]:
    """Write a caption of each picture.

    Args:
      settings: of generation, as `hub.generate` takes them; the checkpoint's own by default.

    Raises:
      ValueError: a checkpoint of another kind, without an image processor or a tokenizer; a file that is no picture.
    """
    require_use(pretrained, "respond", "pictures")
    if pretrained.tokenizer is None:
        raise ValueError("captions need a tokenizer, the checkpoint has no tokenizer files")
    found: list[str] = []
    for inputs in batches(pretrained, files):
        found += pretrained.tokenizer.decode(np.asarray(pretrained.generate(**inputs, **settings)))
    return [" ".join(text.split()) for text in found]
