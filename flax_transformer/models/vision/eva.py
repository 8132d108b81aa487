"""EVA-02: a ViT with gated feed-forward layers and norms inside its sublayers, whose attention turns queries and keys
by the numbers of patches, beside a learned table of positions (Fang et al. 2023, https://arxiv.org/abs/2303.11331).

Axes: B batch, T tokens and patches, P patches, D width, N heads, H head width, half a head's pairs of channels.
"""

from dataclasses import replace
from typing import Any

from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.dinov3 import (
    PatchRotary,
    PatchRotaryAttention,
    PatchRotaryAttentionConfig,
    PatchRotaryViT,
)
from flax_transformer.models.vision.vit import FLOAT32, ViTConfig
from flax_transformer.nn import PatchConfig, Precision, TransformerBlockConfig, transformer_block
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.feedforward import FeedForwardConfig, NormedFeedForwardConfig
from flax_transformer.nn.norm import make_norm
from flax_transformer.ops.grid_position import number_angles, patch_numbers

EPS = 1e-6
GRID = (16, 16)
"""Of the images that EVA-02 is trained with: numbers of patches of other grids are scaled to these."""


@frozen
class NumberRotary(PatchRotary):
    """Rotary positions of patches by the numbers of their rows and columns, which turn neighbouring channels."""

    base: float = 10_000.0
    """Of the frequencies."""
    rescale: float | None = None
    """By what both are multiplied or divided at most, by one number; None: they are not."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the grid to whose numbers those of any other are scaled; None: they are not scaled."""

    interleaved = True

    def __post_init__(self):
        super().__post_init__()
        if self.grid is not None and min(self.grid) < 1:
            raise ValueError(f"a grid must have at least one row and column, got {self.grid}")

    def places(self, rows: int, columns: int) -> Float[Array, "P 2"]:
        """Return the places of a grid of patches, line by line."""
        return patch_numbers(rows, columns, self.grid)

    def angles(self, places: Float[Array, "P 2"], width: int) -> Float[Array, "P half"]:
        """Return the angles by which a head of that width is turned."""
        return number_angles(places, width, self.base)


@frozen
class EvaAttentionConfig(PatchRotaryAttentionConfig):
    """Attention whose queries and keys are turned by the numbers of patches, perhaps with a norm before its output."""

    places: PatchRotary = NumberRotary(grid=GRID)
    """What angles are made of places."""
    inner_norm: float | None = None
    """Epsilon of a LayerNorm of all heads together, before the output layer; None: there is none."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 0, "inner_norm")

    def build(self, rngs: nnx.Rngs) -> "EvaAttention":
        """Make the layer."""
        return EvaAttention(self, rngs=rngs)


class EvaAttention(PatchRotaryAttention):
    """Attention to tokens and patches, of which each is turned by its angles."""

    def __init__(self, cfg: EvaAttentionConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        if cfg.inner_norm is not None:
            width = cfg.heads * cfg.width
            self.norm = make_norm("layer", width, eps=cfg.inner_norm, precision=cfg.precision, rngs=rngs)

    def _mix(self, *given: Any, **extra: Any) -> Array:
        y = super()._mix(*given, **extra)
        if self.cfg.inner_norm is None:
            return y
        return self.norm(y.reshape(*y.shape[:-2], -1)).reshape(y.shape)


@frozen
class EvaConfig(ViTConfig):
    """A ViT whose blocks are told angles of tokens and patches."""

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.block.attention, PatchRotaryAttentionConfig):
            raise ValueError(
                f"blocks must have attention that turns patches, got {type(self.block.attention).__name__}; an EVA "
                "without it is a ViTConfig"
            )

    def build(self, rngs: nnx.Rngs) -> "Eva":
        """Make the encoder."""
        return Eva(self, rngs=rngs)


class Eva(PatchRotaryViT):
    """Hidden states of an image's tokens and patches."""


def eva_block(
    *, embed: int, heads: int, inner: int, normed: bool = False, attention_norm: bool = False,
    precision: Precision = FLOAT32,
) -> TransformerBlockConfig:  # fmt: skip
    """Make the config of a pre-norm block with gated feed-forward layers.

    Args:
      normed: whether there is a norm inside feed-forward layers.
      attention_norm: whether there is one inside attention too, as in EVA-02's CLIP.
    """
    block = transformer_block(
        embed=embed, heads=heads, inner=inner, gated=True, activation="silu", norm_eps=EPS, norm_position="pre",
        init_std=0.02, precision=precision,
    )  # fmt: skip
    attention = EvaAttentionConfig.like(
        block.attention, bias=("query", "value"), out_bias=True, inner_norm=EPS if attention_norm else None
    )
    return replace(
        block, attention=attention, feedforward=with_norm(block.feedforward) if normed else block.feedforward
    )


def with_norm(layer: FeedForwardConfig) -> NormedFeedForwardConfig:
    """Return a feed-forward layer with a norm before its second linear layer."""
    return NormedFeedForwardConfig(
        embed=layer.embed, inner=layer.inner, activation=layer.activation, gated=layer.gated, bias=layer.bias,
        activation_dropout=layer.activation_dropout, init_std=layer.init_std,
        residual_init_std=layer.residual_init_std, precision=layer.precision, norm_eps=EPS,
    )  # fmt: skip


SIZES = {
    "tiny": (192, 3, 12, 512, False),
    "small": (384, 6, 12, 1024, False),
    "base": (768, 12, 12, 2048, True),
    "large": (1024, 16, 24, 2730, True),
}
"""Width, heads, depth, inner width, and whether feed-forward layers have a norm inside."""


def _eva02(size: str, classes: int, image: int, precision: Precision) -> ClassifierConfig:
    embed, heads, depth, inner, normed = SIZES[size]
    block = eva_block(embed=embed, heads=heads, inner=inner, normed=normed, precision=precision)
    patches = PatchConfig(embed=embed, image=(image, image), patch=(14, 14), init_std=0.02, precision=precision)
    backbone = EvaConfig(patches=patches, block=block, depth=depth, norm="none")
    return with_head(backbone, outputs=classes, pool="mean", skip=1, norm=EPS)


def eva02_tiny_patch14(classes: int = 1000, *, image: int = 336, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return EVA-02 Ti/14: 12 layers, D=192, 5.8 M parameters."""
    return _eva02("tiny", classes, image, precision)


def eva02_small_patch14(classes: int = 1000, *, image: int = 336, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return EVA-02 S/14: 12 layers, D=384, 22.1 M parameters."""
    return _eva02("small", classes, image, precision)


def eva02_base_patch14(classes: int = 1000, *, image: int = 448, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return EVA-02 B/14: 12 layers, D=768, 87.1 M parameters."""
    return _eva02("base", classes, image, precision)


def eva02_large_patch14(classes: int = 1000, *, image: int = 448, precision: Precision = FLOAT32) -> ClassifierConfig:
    """Return EVA-02 L/14: 24 layers, D=1024, 305.1 M parameters."""
    return _eva02("large", classes, image, precision)
