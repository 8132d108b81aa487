"""wav2vec 2.0 (Baevski et al. 2020, https://arxiv.org/abs/2006.11477): hidden states of a recording's samples.

Convolutions make one position of every 20 milliseconds; a wide grouped convolution, whose kernel is a direction and a
length for each of its places, tells positions where they are.

Axes: B batch, T samples, S positions, C width of the convolutions, D width, K places of a kernel.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import head_of
from flax_transformer.models.protocol import Described
from flax_transformer.models.speech.ctc import TranscriberConfig
from flax_transformer.nn import (
    Conv,
    ConvConfig,
    FeatureExtractorConfig,
    Precision,
    Trunk,
    TrunkConfig,
    make_norm,
    transformer_block,
)
from flax_transformer.nn.config import check_at_least, check_rates
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, dropout, widen
from flax_transformer.ops.activation import gelu
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()
POSITIONS = 49
"""Of a recording that a batch is made of where nobody says: those of a second."""


@frozen
class Wav2Vec2Config(TrunkConfig):
    """A trunk over what convolutions make of samples."""

    front: FeatureExtractorConfig
    """Convolutions over time, before the encoder."""
    window: int = 128
    """K, the places of the convolution that tells positions."""
    groups: int = 16
    """Parts of the channels that it looks at apart."""
    mask_token: bool = True
    """Whether there is a learned vector for positions that are masked."""
    dropout: float = 0.0
    """Before the trunk."""
    front_dropout: float = 0.0
    """Before positions are added."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "window", "groups")
        check_rates(self, "dropout", "front_dropout")
        if self.cross:
            raise ValueError("an encoder attends to no memory, got a block with cross-attention")

    def build(self, rngs: nnx.Rngs) -> "Wav2Vec2":
        """Make the encoder."""
        return Wav2Vec2(self, rngs=rngs)


class PlaceConv(Conv):
    """A convolution whose kernel is the parameter `kernel`, made as long as `scale` says at each of its K places
    (Salimans & Kingma 2016, https://arxiv.org/abs/1602.07868)."""

    def __init__(self, cfg: ConvConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.scale = nnx.Param(_lengths(self.kernel[...])[:, 0, 0])

    def weights(self) -> Float[Array, "K G D"]:
        """Return the kernel."""
        kernel = widen(self.kernel[...])
        return kernel * (widen(self.scale[...])[:, None, None] / _lengths(kernel))


def _lengths(kernel: Float[Array, "K G D"]) -> Float[Array, "K 1 1"]:
    return jnp.sqrt(jnp.sum(jnp.square(kernel), axis=(1, 2), keepdims=True))


class Wav2Vec2(Module):
    """Hidden states of recordings, of their samples [*B, T]."""

    layer_order = ("front", "front_norm", "project", "mask_token", "places", "norm", Part("trunk"))

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: Wav2Vec2Config, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B recordings of S positions each."""
        shape = (rows, config.front.length_of(length or POSITIONS))
        samples = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        return {"inputs": {"samples": samples, "lengths": np.full(rows, samples.shape[1], np.int32)}}

    @classmethod
    def describe_batch(cls, config: Wav2Vec2Config, batch: dict[str, Any]) -> Described:
        """Count B recordings."""
        rows, length = batch["inputs"]["samples"].shape
        return Described({"rows": rows, "length": config.front.frames(length)}, rows, "recordings")

    def __init__(self, cfg: Wav2Vec2Config, *, rngs: nnx.Rngs):
        residual, kinds = cfg.block.residual, cfg.front.precision.dtypes
        self.cfg = cfg
        self.front = cfg.front.build(rngs)
        eps, precision = residual.norm_eps, cfg.front.precision
        self.front_norm = make_norm("layer", cfg.front.embed, eps=eps, precision=precision, rngs=rngs)
        self.project = Linear(cfg.front.embed, cfg.block.embed, rngs=rngs, **kinds)
        if cfg.mask_token:
            self.mask_token = nnx.Param(jax.random.uniform(rngs.params(), (cfg.block.embed,), kinds["param_dtype"]))
        places = ConvConfig(
            channels=cfg.block.embed, features=cfg.block.embed, window=(cfg.window,), padding=cfg.window // 2,
            groups=cfg.groups, precision=precision,
        )  # fmt: skip
        self.places = PlaceConv(places, rngs=rngs)
        if not cfg.end_norm:
            self.norm = residual.make_norm(rngs)
        self.trunk = Trunk(cfg, rngs=rngs)

    def features(self, samples: Float[Array, "*B T"]) -> Float[Array, "*B S C"]:
        """Return what the convolutions make of samples, normalised.

        Raises:
          ValueError: fewer samples than make one position.
        """
        return self.front_norm(self.front(samples[..., None]))

    def encode(
        self,
        features: Float[Array, "*B S C"],
        *,
        mask: Mask | None = None,
        masked: Bool[Array, "*#B S"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Run the trunk; arguments as in a call."""
        keys, cfg = split_keys(key, 3), self.cfg
        x = dropout(self.project(features), cfg.front_dropout, keys[0])
        if masked is not None:
            if not cfg.mask_token:
                raise ValueError("a model without a mask token must not be given masked positions, got some")
            x = jnp.where(masked[..., None], self.mask_token[...].astype(x.dtype), x)
        mask = self.memory_mask(mask)
        if mask is not None:
            x = jnp.where((jnp.arange(x.shape[-2]) < mask.lengths[..., None])[..., None], x, 0)
        x = widen(x) + widen(gelu(self.places(x)[..., : x.shape[-2], :]))
        x = x.astype(cfg.front.precision.residual)
        x = dropout(x if cfg.end_norm else self.norm(x), cfg.dropout, keys[1])
        return self.trunk(constrain(x, "batch", "length", None), mask=mask, key=keys[2])

    def __call__(
        self,
        samples: Float[Array, "*B T"],
        *,
        mask: Mask | None = None,
        masked: Bool[Array, "*#B S"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Encode recordings.

        Args:
          mask: how long they are: `Mask(lengths=…)` of samples; what comes after is padding.
          masked: positions in whose place the mask token stands.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, too few samples, a mask of another kind, or masked positions for a model
            without a mask token.
        """
        return self.encode(self.features(samples), mask=mask, masked=masked, key=key)

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return how many positions of the output come of audio, given how many samples do."""
        if mask is None:
            return None
        others = (mask.window, mask.segments, mask.dense, mask.offset)
        if mask.lengths is None or mask.causal or mask.also or any(each is not None for each in others):
            raise ValueError("recordings are padded at their end, Mask(lengths=…), got another mask")
        return Mask(lengths=self.cfg.front.frames(mask.lengths))

    def hidden_states(
        self,
        samples: Float[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        masked: Bool[Array, "*#B S"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Compute the last hidden states from the inputs of a batch; `lengths` are those of recordings, in samples."""
        return self(samples, mask=None if lengths is None else Mask(lengths=lengths), masked=masked, key=key)


def _wav2vec2(
    vocab: int, *, embed: int, heads: int, depth: int, stable: bool, dropout: float, precision: Precision
) -> TranscriberConfig:
    block = transformer_block(
        embed=embed, heads=heads, inner=4 * embed, activation="gelu", dropout=dropout, activation_dropout=dropout,
        attention_dropout=dropout, norm_position="pre" if stable else "post", init_std=0.02, precision=precision,
    )  # fmt: skip
    front = FeatureExtractorConfig(
        embed=512, windows=(10, 3, 3, 3, 3, 2, 2), strides=(5, 2, 2, 2, 2, 2, 2), bias=stable,
        norm="every" if stable else "first", precision=precision,
    )  # fmt: skip
    backbone = Wav2Vec2Config(block=block, depth=depth, front=front, dropout=dropout)
    return TranscriberConfig(backbone=backbone, head=head_of(backbone, outputs=vocab, dropout=dropout))


def wav2vec2_base(vocab: int = 32, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> TranscriberConfig:
    """Return wav2vec 2.0 base: 12 layers, D=768, 94.4 M parameters."""
    return _wav2vec2(vocab, embed=768, heads=12, depth=12, stable=False, dropout=dropout, precision=precision)


def wav2vec2_large(vocab: int = 32, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> TranscriberConfig:
    """Return wav2vec 2.0 large, as of Libri-Light: 24 pre-norm layers, D=1024, 315.5 M parameters."""
    return _wav2vec2(vocab, embed=1024, heads=16, depth=24, stable=True, dropout=dropout, precision=precision)
