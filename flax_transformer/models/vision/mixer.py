"""MLP-Mixer: feed-forward layers that mix patches and channels in turn (Tolstikhin et al. 2021,
https://arxiv.org/abs/2105.01601).

Axes: B batch, H W height and width in pixels, C channels, P patches, D width.
"""

from dataclasses import replace
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.nn import (
    FeedForward,
    FeedForwardConfig,
    PatchConfig,
    Precision,
    ResidualConfig,
    Sublayer,
    SublayersConfig,
    Trunk,
    TrunkConfig,
)
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask
from flax_transformer.order import Part

FLOAT32 = Precision()


@frozen
class TokenMixingConfig(FeedForwardConfig):
    """A feed-forward layer over patches, of which there are `embed`, the same for every channel."""

    def build(self, rngs: nnx.Rngs) -> "TokenMixing":
        """Make the layer."""
        return TokenMixing(self, rngs=rngs)


class TokenMixing(FeedForward):
    """A feed-forward layer whose positions are channels."""

    def __call__(self, x: Float[Array, "*B P D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B P D"]:
        """Apply to every channel alike; `key` is for activation dropout."""
        return super().__call__(x.swapaxes(-1, -2), key=key).swapaxes(-1, -2)


@frozen
class MixerBlockConfig(SublayersConfig):
    """Two feed-forward layers, one over patches and one over channels, a residual around each."""

    tokens: TokenMixingConfig
    """Over patches: its width is P."""
    feedforward: FeedForwardConfig
    """The feed-forward layer."""
    residual: ResidualConfig
    """Around each sublayer: norm, dropout, drop-path."""

    def __post_init__(self):
        check_fields(self)
        check_widths(feedforward=self.feedforward.embed, residual=self.residual.embed)

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """In the order in which they are applied."""
        return tuple(Sublayer(name, getattr(self, name), self.residual) for name in ("tokens", "feedforward"))


@frozen
class MixerConfig(TrunkConfig):
    """A trunk of `MixerBlock`s over the patches of an image."""

    patches: PatchConfig
    """How an image is cut into patches and embedded."""

    def __post_init__(self):
        super().__post_init__()
        rows, columns = self.patches.grid
        check_widths(patches=self.patches.embed, block=self.block.embed)
        if self.block.tokens.embed != rows * columns:
            raise ValueError(f"blocks must mix the {rows}×{columns} patches of an image, got {self.block.tokens.embed}")

    def fitted(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Set how many patches the blocks mix, where the fields of another image are given."""
        rows, columns = fields["patches"].grid
        block = fields["block"]
        return {**fields, "block": replace(block, tokens=replace(block.tokens, embed=rows * columns))}

    def build(self, rngs: nnx.Rngs) -> "Mixer":
        """Make the model."""
        return Mixer(self, rngs=rngs)


class Mixer(ReadsImages, Module):
    """Hidden states of an image's patches."""

    layer_order = ("patches", Part("trunk"))

    def __init__(self, cfg: MixerConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.patches = cfg.patches.build(rngs)
        self.trunk = Trunk(cfg, rngs=rngs)

    def __call__(
        self, images: Float[Array, "*B H W C"], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B P D"]:
        """Encode images of the size that the model is made for.

        Args:
          mask: None; patches are mixed by where they are.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or a mask.
        """
        if mask is not None:
            raise ValueError(f"patches are mixed by where they are, got a mask {mask}")
        grid = self.cfg.patches.grid
        if images.ndim > 2 and self.cfg.patches.grid_of(*images.shape[-3:-1]) != grid:
            raise ValueError(f"a mixer's images must have {grid[0]}×{grid[1]} patches, got shape {images.shape}")
        return self.trunk(self.patches(images), key=key)

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B P D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call."""
        return self(images, key=key)

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: images have none."""
        return None


def mixer(
    *, embed: int, depth: int, tokens: int, inner: int, image: int, patch: int, precision: Precision = FLOAT32
) -> MixerConfig:
    """Make a mixer's config of its sizes.

    Args:
      tokens: inner width of the layers over patches.
      inner: that of those over channels.
      image, patch: height and width, in pixels.

    >>> mixer(embed=64, depth=2, tokens=32, inner=256, image=32, patch=4).block.tokens.embed
    64
    """
    patches = PatchConfig(embed=embed, image=(image, image), patch=(patch, patch), precision=precision)
    rows, columns = patches.grid
    mix, channels = (
        kind(embed=width, inner=size, activation="gelu", precision=precision)
        for kind, width, size in ((TokenMixingConfig, rows * columns, tokens), (FeedForwardConfig, embed, inner))
    )
    residual = ResidualConfig(embed=embed, norm_eps=1e-6, norm_position="pre", precision=precision)
    block = MixerBlockConfig(tokens=mix, feedforward=channels, residual=residual)
    return MixerConfig(patches=patches, block=block, depth=depth)


def mixer_small_patch32(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return Mixer-S/32: 8 layers, D=512, 19.1 M parameters."""
    sizes = {"embed": 512, "depth": 8, "tokens": 256, "inner": 2048, "patch": 32}
    return with_head(mixer(**sizes, image=image, precision=precision), outputs=classes, pool="mean")


def mixer_base_patch16(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return Mixer-B/16: 12 layers, D=768, 59.9 M parameters."""
    sizes = {"embed": 768, "depth": 12, "tokens": 384, "inner": 3072, "patch": 16}
    return with_head(mixer(**sizes, image=image, precision=precision), outputs=classes, pool="mean")


def mixer_large_patch16(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return Mixer-L/16: 24 layers, D=1024, 208.2 M parameters."""
    sizes = {"embed": 1024, "depth": 24, "tokens": 512, "inner": 4096, "patch": 16}
    return with_head(mixer(**sizes, image=image, precision=precision), outputs=classes, pool="mean")
