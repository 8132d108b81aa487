"""An encoder of samples with scores of classes, from the mean over what is sound.

Axes: B batch, T samples, S positions, D width.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier, ClassifierConfig
from flax_transformer.ops import Mask, widen


@frozen
class SoundClassifierConfig(ClassifierConfig):
    """An encoder of samples, and a head on the mean of its positions."""

    def __post_init__(self):
        if self.head.pool != "mean" or self.head.skip:
            raise ValueError(f"a sound is told by the mean of all positions, got pool={self.head.pool!r}")


class SoundClassifier(Classifier):
    """A classifier of sounds of several lengths."""

    def __init__(self, cfg: SoundClassifierConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)

    def hidden_states(
        self,
        samples: Float[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Compute hidden states whose mean over all positions is that of the sound's own: those of padding are zero,
        the others larger by as much as they are fewer.
        """
        hidden = self.backbone.hidden_states(samples, lengths=lengths, key=key)
        if lengths is None:
            return hidden
        count, S = self.backbone.memory_mask(Mask(lengths=lengths)).lengths, hidden.shape[-2]
        scale = jnp.where(jnp.arange(S) < count[..., None], S / jnp.maximum(count, 1)[..., None], 0.0)
        return (widen(hidden) * scale[..., None]).astype(hidden.dtype)
