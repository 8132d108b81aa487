"""Cross-entropy of the class of every pixel.

Axes: B images, H W height and width in pixels, I J those of the grid that is scored, E classes.
"""

from typing import Any

import jax
import jax.numpy as jnp

from flax_transformer.frozen import frozen
from flax_transformer.objective.label import LabelLoss
from flax_transformer.objective.objective import Batch, Loss, is_right
from flax_transformer.ops import bilinear, cross_entropy, resample
from flax_transformer.ops.split_keys import split_keys


@frozen
class PixelLabelLoss(LabelLoss):
    """Sum the cross-entropy of each pixel's class, and count the right ones.

    The model scores the classes of a grid, [B, I, J, E], bilinear between its places, for labels [B, H, W] of pixels;
    each counts as often as its weight says, and one of weight 0, which has no class, not at all. So
    `SegformerForSemanticSegmentation` learns in `transformers`.
    """

    unit = "pixels"

    def __call__(self, model: Any, batch: Batch, *, key: jax.Array | None = None) -> Loss:
        """Sum the loss over the pixels of a batch."""
        keys, labels, weights = split_keys(key), batch["labels"], batch["weights"]
        scores = model.output(model.hidden_states(**batch["inputs"], key=keys[0]), key=keys[1])
        logits = resample(scores, labels.shape[-2:], kernel=bilinear)
        total, count = cross_entropy(logits, labels, weights, label_smoothing=self.label_smoothing)
        return total, {"count": count, "accuracy": jnp.sum(is_right(logits, labels) * weights)}
