"""Audio classification: an encoder of samples and a head on the mean of its positions."""

from flax import nnx

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier, ClassifierConfig


@frozen
class AudioClassifierConfig(ClassifierConfig):
    """An encoder of samples, and a head on the mean of its positions."""

    def __post_init__(self):
        if self.head.pool != "mean" or self.head.skip:
            raise ValueError(f"a recording is told by the mean of all positions, got pool={self.head.pool!r}")

    def build(self, rngs: nnx.Rngs) -> "AudioClassifier":
        """Make the model."""
        return AudioClassifier(self, rngs=rngs)


class AudioClassifier(Classifier):
    """A classifier of recordings of several lengths: the mean is over the positions that come of audio."""

    def __init__(self, cfg: AudioClassifierConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
