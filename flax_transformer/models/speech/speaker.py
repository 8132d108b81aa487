"""Speaker verification: x-vectors of recordings (Snyder et al. 2018, https://www.danielpovey.com/files/2018_icassp_xvectors.pdf).

Axes: B batch, T samples, S positions, D width, F width of a convolution, E width of an embedding, K speakers.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier, ClassifierConfig
from flax_transformer.models.padded import Padded, split_padded
from flax_transformer.models.preset import module_of
from flax_transformer.nn import ConvConfig, Precision
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import widen
from flax_transformer.ops.norm import unit


@frozen
class SpeakerHeadConfig:
    """Dilated convolutions over hidden states, mean and deviation over time, and two linear layers."""

    embed: int
    """D, the width of hidden states."""
    widths: tuple[int, ...] = (512, 512, 512, 512, 1500)
    """F of each convolution."""
    windows: tuple[int, ...] = (5, 3, 3, 1, 1)
    """Positions that each reads."""
    dilations: tuple[int, ...] = (1, 2, 3, 1, 1)
    """From position to position within a window."""
    outputs: int = 512
    """E, of embeddings and of what is compared."""
    speakers: int = 2
    """K that training tells apart."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "outputs", "speakers")
        sizes = self.widths, self.windows, self.dilations
        if not self.widths or len({*map(len, sizes)}) > 1 or min(map(min, sizes)) < 1:
            raise ValueError(f"convolutions need a width, a window and a dilation each, at least 1, got {sizes}")

    @property
    def pool(self) -> str:
        """Over which positions: all that come of audio."""
        return "mean"

    def build(self, rngs: nnx.Rngs) -> "SpeakerHead":
        """Make the head."""
        return SpeakerHead(self, rngs=rngs)


class SpeakerHead(Module):
    """Embeddings of recordings from hidden states."""

    def __init__(self, cfg: SpeakerHeadConfig, *, rngs: nnx.Rngs):
        self.cfg, kinds = cfg, cfg.precision.dtypes
        self.project = Linear(cfg.embed, cfg.widths[0], rngs=rngs, **kinds)
        inputs = cfg.widths[0], *cfg.widths
        for i, each in enumerate(zip(inputs, cfg.widths, cfg.windows, cfg.dilations, strict=False)):
            channels, features, window, dilation = each
            layer = ConvConfig(
                channels=channels, features=features, window=(window,), dilation=dilation, precision=cfg.precision
            ).build(rngs)
            setattr(self, f"conv{i + 1}", layer)
        self.dense = Linear(2 * cfg.widths[-1], cfg.outputs, rngs=rngs, **kinds)
        self.output = Linear(cfg.outputs, cfg.outputs, rngs=rngs, **kinds)
        speakers = nnx.initializers.normal(1.0)(rngs.params(), (cfg.outputs, cfg.speakers), kinds["param_dtype"])
        self.speakers = nnx.Param(speakers, out_sharding=("embed", None), eager_sharding=False)

    def embeddings(self, hidden: Float[Array, "*B S D"] | Padded) -> Float[Array, "*B E"]:
        """Embed recordings by what the convolutions give, its mean over time and its deviation.

        Of padded recordings as many positions count as would be left without dilation, as transformers has it.
        """
        hidden, real = split_padded(hidden)
        x = self.project(hidden)
        for i in range(len(self.cfg.widths)):
            x = jnp.maximum(getattr(self, f"conv{i + 1}")(x), 0)
        x, count = widen(x), jnp.asarray(x.shape[-2])
        shown = jnp.ones(x.shape[:-1], bool)
        if real is not None:
            lengths = real.sum(-1) - sum(window - 1 for window in self.cfg.windows)
            count = jnp.minimum(lengths, x.shape[-2])
            shown = jnp.arange(x.shape[-2]) < count[..., None]
        count = count[..., None]
        mean = jnp.sum(x, axis=-2, where=shown[..., None]) / count
        squares = jnp.square(x - mean[..., None, :])
        deviation = jnp.sqrt(jnp.sum(squares, axis=-2, where=shown[..., None]) / (count - 1))
        return self.dense(jnp.concatenate([mean, deviation], axis=-1).astype(hidden.dtype))

    def __call__(
        self, hidden: Float[Array, "*B S D"] | Padded, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B E"]:
        """Return what recordings are compared by in training."""
        return self.output(self.embeddings(hidden))

    def loss(
        self, found: Float[Array, "*B E"], labels: Int[Array, "*B"], *, scale: float = 30.0, margin: float = 0.4
    ) -> Float[Array, "*B"]:
        """Return the cross-entropy of cosines with every speaker, the right one's less a margin, times a scale
        (Wang et al. 2018, https://arxiv.org/abs/1801.05599)."""
        cosines = unit(found) @ unit(self.speakers[...].T).T
        right = jnp.arange(self.cfg.speakers) == labels[..., None]
        scores = scale * (cosines - margin * right)
        return jax.nn.logsumexp(scores, axis=-1) - jnp.sum(scores, axis=-1, where=right)


@frozen
class SpeakerConfig(ClassifierConfig):
    """An encoder of samples, and a head that embeds recordings by who speaks."""

    def build(self, rngs: nnx.Rngs) -> "SpeakerModel":
        """Make the model."""
        return SpeakerModel(self, rngs=rngs)


class SpeakerModel(Classifier):
    """Embeddings of recordings by who speaks: of two of one speaker they are near each other."""

    use = "speaker-verification"

    @classmethod
    def example_batch(cls, config: SpeakerConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as the backbone's, with speakers as labels."""
        batch = module_of(config.backbone).example_batch(config.backbone, rows, length)
        labels = np.arange(rows, dtype=np.int32) % config.head.speakers
        return {**batch, "labels": labels, "weights": np.ones(rows, np.float32)}
