"""VideoMAE: an encoder sees a tenth of a video's tubelets, a small decoder gives back the rest (Tong et al. 2022,
https://arxiv.org/abs/2203.12602).

Axes: B batch, I frames, H W height and width in pixels, C channels, P tubelets, T those that are kept, D E the widths
of encoder and decoder.
"""

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsVideos
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.video.vivit import ViViT, ViViTConfig, vivit_encoder
from flax_transformer.models.vision.vit import FLOAT32
from flax_transformer.nn import Precision, StageConfig, TransformerBlockConfig, Trunk, make_norm, with_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import sinusoidal, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class VideoMAEEncoderConfig(ViViTConfig):
    """An encoder of some of a video's tubelets, without tokens."""

    def __post_init__(self):
        super().__post_init__()
        if self.tokens or self.position != "sinusoidal":
            raise ValueError(
                "the encoder of VideoMAE has sinusoidal positions and no tokens, got "
                f"position={self.position!r}, tokens={self.tokens}"
            )

    def build(self, rngs: nnx.Rngs) -> "VideoMAEEncoder":
        """Make the encoder."""
        return VideoMAEEncoder(self, rngs=rngs)


class VideoMAEEncoder(ViViT):
    """Videos in, hidden states of all tubelets out, or of those that are kept."""

    def encode(
        self, videos: Float[Array, "*B I H W C"], visible: Int[Array, "*B T"] | None = None, *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:  # fmt: skip
        """Encode some tubelets, which see no others.

        Args:
          kept: their numbers; None: all, in their order.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        x = self.embed(videos, key=keys[0])
        return self.trunk(x if visible is None else taken(x, visible), key=keys[1])


def taken(x: Float[Array, "*B P D"], positions: Int[Array, "*B T"]) -> Float[Array, "*B T D"]:
    """Take some positions."""
    return jnp.take_along_axis(x, positions[..., None], axis=-2)


def tube_places(noise: Float[Array, "*B S"], times: int, visible: int) -> tuple[Int[Array, "*B T"], Int[Array, "*B M"]]:
    """Keep the places with the least noise, the same ones of all times, and mask the others (the paper's tubes).

    Args:
      noise: a number for each place of a frame, all different.
      times: of tubelets.
      visible: places of each that are kept.

    Returns:
      The numbers of tubelets that are kept, and of those that are masked, each in their order.

    >>> [each.tolist() for each in tube_places(jnp.array([0.3, 0.1, 0.2]), 2, 1)]
    [[1, 4], [0, 2, 3, 5]]
    """
    order, positions = jnp.argsort(noise, axis=-1), noise.shape[-1]
    sides = jnp.sort(order[..., :visible], axis=-1), jnp.sort(order[..., visible:], axis=-1)
    return tuple(
        (jnp.arange(times)[:, None] * positions + side[..., None, :]).reshape(*side.shape[:-1], -1) for side in sides
    )


@frozen
class VideoMAEConfig:
    """An encoder of some tubelets, a decoder of all."""

    encoder: VideoMAEEncoderConfig
    """The encoder of the tubes that are not masked."""
    decoder: StageConfig
    """The trunk that restores all tubes."""
    mask_ratio: float = 0.9
    """How many places of a frame are masked, where noise says which."""

    def __post_init__(self):
        if not 0 < self.mask_ratio < 1:
            raise ValueError(f"mask_ratio must be in (0, 1), got {self.mask_ratio}")

    def build(self, rngs: nnx.Rngs) -> "VideoMAE":
        """Make the model."""
        return VideoMAE(self, rngs=rngs)


class VideoMAE(ReadsVideos, Module):
    """Videos in, the pixels of masked tubelets out: `model.output(model.hidden_states(…))`."""

    layer_order = ("mask_token", Part("encoder"), "project", Part("decoder"), "norm", "output")

    @classmethod
    def example_batch(cls, config: VideoMAEConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B videos, and noise for the places of their frames."""
        batch, (_, high, wide) = super().example_batch(config.encoder, rows), config.encoder.patches.grid
        noise = np.random.default_rng(1).random((rows, high * wide), dtype=np.float32)
        return {"inputs": {**batch["inputs"], "noise": noise}}

    def __init__(self, cfg: VideoMAEConfig, *, rngs: nnx.Rngs):
        patches, embed, residual = cfg.encoder.patches, cfg.decoder.block.embed, cfg.decoder.block.residual
        kinds, pixels = residual.precision.dtypes, patches.span * math.prod(patches.patch) * patches.channels
        self.cfg = cfg
        self.encoder = VideoMAEEncoder(cfg.encoder, rngs=rngs)
        self.project = Linear(patches.embed, embed, use_bias=False, rngs=rngs, **kinds)
        values = nnx.initializers.normal(0.02)(rngs.params(), (1, embed), kinds["param_dtype"])
        self.mask_token = nnx.Param(values, out_sharding=(None, "embed"), eager_sharding=False)
        self.decoder = Trunk(cfg.decoder, rngs=rngs)
        self.norm = make_norm(residual.norm, embed, eps=1e-5, precision=residual.precision, rngs=rngs)
        self.output = Linear(embed, pixels, rngs=rngs, **kinds)

    def decode(
        self, encoded: Float[Array, "*B T D"], visible: Int[Array, "*B T"], masked: Int[Array, "*B M"], *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B M E"]:  # fmt: skip
        """Return hidden states of masked tubelets, of which `output` makes pixels, [span, height, width, C], flat.

        Args:
          encoded: hidden states of those that are kept.
          kept, masked: the numbers of both.
          key: for dropout; None means none.
        """
        count, embed = math.prod(self.cfg.encoder.patches.grid), self.cfg.decoder.block.embed
        table = sinusoidal(jnp.arange(count), embed)
        x = self.project(encoded)
        whole = jnp.concatenate([widen(x) + table[visible], self.mask_token[...] + table[masked]], axis=-2)
        return self.norm(self.decoder(whole.astype(x.dtype), key=key)[..., visible.shape[-1] :, :])

    def hidden_states(
        self, videos: Float[Array, "*B I H W C"], noise: Float[Array, "*B S"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B M E"]:
        """Compute the decoder's hidden states of the tubelets that noise masks: see `tube_places`.

        Args:
          noise: a number for each place of a frame, all different.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        times, positions = self.cfg.encoder.patches.grid[0], noise.shape[-1]
        visible, masked = tube_places(noise, times, max(1, positions - int(self.cfg.mask_ratio * positions)))
        return self.decode(self.encoder.encode(videos, visible, key=keys[0]), visible, masked, key=keys[1])


def videomae_encoder(
    size: str, *, frames: int = 16, image: int = 224, patch: int = 16, precision: Precision = FLOAT32, **options: Any
) -> VideoMAEEncoderConfig:
    """Return the encoder of a published size, whose head averages and then normalises.

    Args:
      options: other fields of `VideoMAEEncoderConfig`.
    """
    like = vivit_encoder(size, frames=frames, image=image, patch=patch, precision=precision)
    fields = {"tokens": (), "position": "sinusoidal", "norm": "none", "block": _block(like.block), **options}
    return VideoMAEEncoderConfig(**{**vars(like), **fields})


def _block(like: TransformerBlockConfig) -> TransformerBlockConfig:
    """Return a block whose keys have no biases."""
    attention = replace(like.attention, bias=("query", "value"), out_bias=True)
    return with_fields(replace(like, attention=attention), norm_eps=1e-12, activation="gelu")


def _classifier(size: str, classes: int, frames: int, image: int, precision: Precision) -> ClassifierConfig:
    encoder = videomae_encoder(size, frames=frames, image=image, precision=precision)
    return with_head(encoder, outputs=classes, pool="mean", norm=1e-5)


def videomae_small(
    classes: int = 400, *, frames: int = 16, image: int = 224, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return the classifier of VideoMAE-S: 12 layers, D=384, 22 M parameters."""
    return _classifier("small", classes, frames, image, precision)


def videomae_base(
    classes: int = 400, *, frames: int = 16, image: int = 224, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return the classifier of VideoMAE-B: 12 layers, D=768, 86.5 M parameters."""
    return _classifier("base", classes, frames, image, precision)


def videomae_large(
    classes: int = 400, *, frames: int = 16, image: int = 224, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return the classifier of VideoMAE-L: 24 layers, D=1024, 304 M parameters."""
    return _classifier("large", classes, frames, image, precision)


def videomae_huge(
    classes: int = 400, *, frames: int = 16, image: int = 224, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return the classifier of VideoMAE-H: 32 layers, D=1280, 632 M parameters."""
    return _classifier("huge", classes, frames, image, precision)


def videomae_pretraining(*, frames: int = 16, image: int = 224, precision: Precision = FLOAT32) -> VideoMAEConfig:
    """Return the masked autoencoder of VideoMAE-B: 94.2 M parameters."""
    encoder = videomae_encoder("base", frames=frames, image=image, precision=precision, norm="end")
    block = with_fields(encoder.block, embed=384, heads=6, inner=1536)
    return VideoMAEConfig(encoder=encoder, decoder=StageConfig(block=block, depth=4))
