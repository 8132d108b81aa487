"""DINOv3: a ViT whose attention turns queries and keys by the places of patches (Siméoni et al. 2025,
https://arxiv.org/abs/2508.10104).

There is no table of positions: places are told from −1 to 1 in every image, whatever its size. Registers are tokens
that stand for nothing (Darcet et al. 2023, https://arxiv.org/abs/2309.16588).

Axes: B batch, H W height and width in pixels, C channels, P patches, T tokens and patches, D width, half a head's pairs
of channels.
"""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.vision.vit import FLOAT32, ViT, ViTConfig
from flax_transformer.nn import AttentionConfig, PatchConfig, Precision, transformer_block
from flax_transformer.nn.attention import Attention
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.ops import Mask
from flax_transformer.ops.grid_position import grid_angles, patch_centres
from flax_transformer.ops.position import split_pairs, turn_pairs


@frozen
class PatchRotary:
    """Rotary positions of patches, and how their places are moved in training, for all images of a batch alike."""

    base: float = 100.0
    """Of the frequencies."""
    shift: float | None = None
    """How far rows and columns are moved at most, each by its own number; None: not."""
    jitter: float | None = None
    """By what rows and columns are multiplied or divided at most, each by its own number; None: they are not."""
    rescale: float | None = 2.0
    """By what both are multiplied or divided at most, by one number; None: they are not."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 0, "shift")
        check_at_least(self, 1, "jitter", "rescale")
        if self.base <= 0:
            raise ValueError(f"the base of rotary frequencies must be above 0, got {self.base}")

    interleaved = False  # whether channels that turn together are neighbours, and not half a head apart

    def places(self, rows: int, columns: int) -> Float[Array, "P 2"]:
        """Return the places of a grid of patches, line by line: from −1 to 1."""
        return patch_centres(rows, columns)

    def angles(self, places: Float[Array, "P 2"], width: int) -> Float[Array, "P half"]:
        """Return the angles by which a head of that width is turned."""
        return grid_angles(places, width, self.base)

    def moved(self, places: Float[Array, "P 2"], key: PRNGKeyArray | None) -> Float[Array, "P 2"]:
        """Return the places as they are in training, moved at random; without a key as they are."""
        if key is None:
            return places
        keys = jax.random.split(key, 3)
        if self.shift is not None:
            places += jax.random.uniform(keys[0], (2,), minval=-self.shift, maxval=self.shift)
        for each, most, count in ((keys[1], self.jitter, 2), (keys[2], self.rescale, 1)):
            if most is not None:
                places *= jnp.exp(jax.random.uniform(each, (count,), minval=-math.log(most), maxval=math.log(most)))
        return places


@frozen
class PatchRotaryAttentionConfig(AttentionConfig):
    """Attention whose queries and keys are turned by the places of patches."""

    places: PatchRotary = PatchRotary()
    """What angles are made of places."""

    takes = "mask", "bias", "angles"

    def __post_init__(self):
        super().__post_init__()
        if self.rotary is not None:
            raise ValueError(f"patches are turned by their places, not by numbers in a row, got rotary={self.rotary}")
        if self.width % 4:
            raise ValueError(
                f"rows and columns turn pairs of channels each: H must be a multiple of 4, got {self.width}"
            )

    def build(self, rngs: nnx.Rngs) -> "PatchRotaryAttention":
        """Make the layer."""
        return PatchRotaryAttention(self, rngs=rngs)


class PatchRotaryAttention(Attention):
    """Attention to tokens and patches, of which each is turned by its angles."""

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        angles: Float[Array, "T half"],
        mask: Mask | None = None,
        bias: Float[Array, "..."] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Attend.

        Args:
          angles: in radians; 0 leaves a token as it is.
          mask: what each query may see.
          bias: added to the query-key products, broadcastable to [*B, N, T, S].
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        self._check(x)
        if angles.shape != (x.shape[-2], self.cfg.width // 2):
            raise ValueError(f"angles must be of T={x.shape[-2]} and H/2={self.cfg.width // 2}, got {angles.shape}")
        q, k, v = self._query_key_value(x)
        q, k = (split_pairs(each) if self.cfg.places.interleaved else each for each in (q, k))
        q, k = (turn_pairs(each, angles[:, None]) for each in (q, k))
        return self._attend(q, k, v, mask, bias, key)


@frozen
class DINOv3Config(ViTConfig):
    """A ViT without a table of positions, whose blocks are told angles of tokens and patches."""

    def __post_init__(self):
        super().__post_init__()
        if not isinstance(self.block.attention, PatchRotaryAttentionConfig) or self.position != "none":
            raise ValueError(
                "positions are known by attention that turns patches alone, got "
                f"{type(self.block.attention).__name__} and position={self.position!r}"
            )

    def build(self, rngs: nnx.Rngs) -> "DINOv3":
        """Make the encoder."""
        return DINOv3(self, rngs=rngs)


class PatchRotaryViT(ViT):
    """A ViT whose blocks are told the angles of tokens and patches."""

    def given(self, images: Float[Array, "*B H W C"], key: PRNGKeyArray | None = None) -> dict[str, Any]:
        """Return the angles of tokens, which are 0, and of patches; a key moves these, as in training."""
        cfg, attention = self.cfg, self.cfg.block.attention
        places = attention.places.places(*cfg.patches.grid_of(*images.shape[-3:-1]))
        places = attention.places.moved(places, None if key is None else jax.random.fold_in(key, 0))
        angles = attention.places.angles(places, attention.width)
        return {"angles": jnp.pad(angles, ((len(cfg.tokens), 0), (0, 0)))}


class DINOv3(PatchRotaryViT):
    """Hidden states of an image's class token, registers and patches."""


def dinov3_block(
    *, places: PatchRotary = PatchRotary(), bias: tuple[str, ...] = ("query", "value"), **options: Any
) -> Any:
    """Make the config of a block, pre-norm and with LayerScale; options as of `transformer_block`."""
    block = transformer_block(
        norm_eps=1e-5, norm_position="pre", layer_scale=1.0, init_std=0.02, out_bias=True, **options
    )
    return replace(block, attention=PatchRotaryAttentionConfig.like(block.attention, places=places, bias=bias))


SIZES = {
    "small": (384, 6, 12, 1536, False),
    "small_plus": (384, 6, 12, 1536, True),
    "base": (768, 12, 12, 3072, False),
    "large": (1024, 16, 24, 4096, False),
    "huge_plus": (1280, 20, 32, 5120, True),
    "7b": (4096, 32, 40, 8192, True),
}
"""Width, heads, depth, inner width, and whether feed-forward layers are gated."""
REGISTERS = 4


def _dinov3(size: str, image: int, precision: Precision, registers: int = REGISTERS) -> DINOv3Config:
    embed, heads, depth, inner, gated = SIZES[size]
    block = dinov3_block(
        embed=embed, heads=heads, inner=inner, gated=gated, activation="silu" if gated else "gelu",
        bias=() if size == "7b" else ("query", "value"), precision=precision,
    )  # fmt: skip
    patches = PatchConfig(embed=embed, image=(image, image), patch=(16, 16), init_std=0.02, precision=precision)
    return DINOv3Config(
        patches=patches, block=block, depth=depth, position="none", mask_token=True,
        tokens=("class_token", *("register_tokens",) * registers),
    )  # fmt: skip


def dinov3_small(*, image: int = 224, precision: Precision = FLOAT32) -> DINOv3Config:
    """Return DINOv3 ViT-S/16: 12 layers, D=384, 21.6 M parameters."""
    return _dinov3("small", image, precision)


def dinov3_small_plus(*, image: int = 224, precision: Precision = FLOAT32) -> DINOv3Config:
    """Return DINOv3 ViT-S+/16: 12 layers, D=384, gated feed-forward layers, 28.7 M parameters."""
    return _dinov3("small_plus", image, precision)


def dinov3_base(*, image: int = 224, precision: Precision = FLOAT32) -> DINOv3Config:
    """Return DINOv3 ViT-B/16: 12 layers, D=768, 85.7 M parameters."""
    return _dinov3("base", image, precision)


def dinov3_large(*, image: int = 224, precision: Precision = FLOAT32) -> DINOv3Config:
    """Return DINOv3 ViT-L/16: 24 layers, D=1024, 303.1 M parameters."""
    return _dinov3("large", image, precision)


def dinov3_huge_plus(*, image: int = 224, precision: Precision = FLOAT32) -> DINOv3Config:
    """Return DINOv3 ViT-H+/16: 32 layers, D=1280, gated feed-forward layers, 840.6 M parameters."""
    return _dinov3("huge_plus", image, precision)


def dinov3_7b(*, image: int = 224, precision: Precision = FLOAT32) -> DINOv3Config:
    """Return DINOv3 ViT-7B/16: 40 layers, D=4096, gated feed-forward layers, 6,716.0 M parameters."""
    return _dinov3("7b", image, precision)
