"""Speech recognition by connectionist temporal classification (Graves et al. 2006,
https://www.cs.toronto.edu/~graves/icml_2006.pdf).

Axes: B batch, S positions, N tokens of a text, V vocabulary, with the blank.
"""

from typing import Any

import numpy as np
from flax import nnx

from flax_transformer.frozen import frozen
from flax_transformer.models.example import draw_tokens
from flax_transformer.models.head import Classifier, ClassifierConfig
from flax_transformer.models.preset import module_of
from flax_transformer.ops import Mask

TOKENS = 8
"""Of a text that a batch is made of."""


@frozen
class TranscriberConfig(ClassifierConfig):
    """An encoder of recordings, and a head whose outputs are the vocabulary."""

    def build(self, rngs: nnx.Rngs) -> "Transcriber":
        """Make the model."""
        return Transcriber(self, rngs=rngs)


class Transcriber(Classifier):
    """A classifier of every position; a text is what is left of its best tokens without repetitions and blanks."""

    use = "automatic-speech-recognition"

    @classmethod
    def example_batch(cls, config: TranscriberConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as the backbone's, with texts of N tokens as labels."""
        batch = module_of(config.backbone).example_batch(config.backbone, rows, length)
        labels = draw_tokens(config.head.outputs, rows, TOKENS)
        return {**batch, "labels": labels, "weights": np.ones(labels.shape, np.float32)}

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions are padding, given what of the recordings is."""
        return self.backbone.memory_mask(mask)
