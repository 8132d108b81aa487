"""BEiT: a ViT that knows distances by biases and learns to name masked patches (Bao et al. 2021,
https://arxiv.org/abs/2106.08254).

Axes: B batch, H W height and width in pixels, C channels, P patches, T tokens and patches, D width.
"""

from dataclasses import replace
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.vit import FLOAT32, SIZES, ViT, ViTConfig
from flax_transformer.nn import (
    Grid,
    GridAttentionConfig,
    GridBiasConfig,
    GridBlockConfig,
    PatchConfig,
    Precision,
    transformer_block,
)


@frozen
class BeitConfig(ViTConfig):
    """A ViT of blocks whose attention knows the grid of patches."""

    shared: GridBiasConfig | None = None
    """Biases for distances that all blocks share; None: each has its own, or none."""

    def fitted(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Set the grid whose distances have biases, where the fields of another image are given."""

        def on_grid(table: GridBiasConfig | None) -> GridBiasConfig | None:
            return table and replace(table, grid=fields["patches"].grid)

        block = fields["block"]
        attention = replace(block.attention, relative=on_grid(block.attention.relative))
        return {**fields, "block": replace(block, attention=attention), "shared": on_grid(fields["shared"])}

    def build(self, rngs: nnx.Rngs) -> "Beit":
        """Make the encoder."""
        return Beit(self, rngs=rngs)


class Beit(ViT):
    """Hidden states of an image's class token and patches."""

    layer_order = ("shared", *ViT.layer_order)

    def __init__(self, cfg: BeitConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        if cfg.shared is not None:
            self.shared = cfg.shared.build(rngs)

    def given(self, images: Float[Array, "*B H W C"], key: PRNGKeyArray | None = None) -> dict[str, Any]:
        """Return the grid of patches, and biases for distances, stretched to another grid than that of training."""
        grid = Grid(*self.cfg.patches.grid_of(*images.shape[-3:-1]))
        return {"grid": grid} if self.cfg.shared is None else {"grid": grid, "bias": self.shared.resampled(grid)}


def _beit(size: str, classes: int, image: int, layer_scale: float, precision: Precision) -> ClassifierConfig:
    embed, heads, depth, inner = SIZES[size]
    patches = PatchConfig(embed=embed, image=(image, image), patch=(16, 16), init_std=0.02, precision=precision)
    like = transformer_block(
        embed=embed, heads=heads, inner=inner, norm_eps=1e-12, norm_position="pre", activation="gelu",
        layer_scale=layer_scale, init_std=0.02, precision=precision,
    )  # fmt: skip
    attention = GridAttentionConfig(
        attention=replace(like.attention, bias=("query", "value"), out_bias=True),
        relative=GridBiasConfig(grid=patches.grid, heads=heads, token=True, precision=precision),
    )
    block = GridBlockConfig(attention=attention, feedforward=like.feedforward, residual=like.residual)
    config = BeitConfig(
        patches=patches, block=block, depth=depth, drop_path=0.1, position="none", norm="none"
    )  # fmt: skip
    return with_head(config, outputs=classes, pool="mean", skip=1, norm=1e-12)


def beit_base_patch16(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return BEiT-B/16: 12 layers, D=768, 86.5 M parameters."""
    return _beit("base", classes, image, 0.1, precision)


def beit_large_patch16(classes: int = 1000, *, image: int = 224, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return BEiT-L/16: 24 layers, D=1024, 304.4 M parameters."""
    return _beit("large", classes, image, 1e-5, precision)
