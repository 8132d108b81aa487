"""The Vision Transformer: an encoder of an image's patches (Dosovitskiy et al. 2020, https://arxiv.org/abs/2010.11929).

DeiT, DINOv2, BEiT, CCT, the encoder of MAE and CLIP's are choices of its config.

Axes: B batch, H W height and width in pixels, C channels, P patches, T tokens and patches, D width.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.patch_attention import PatchAttention, Tiles, by_stack
from flax_transformer.nn import Grid, PatchConfig, Precision, StemConfig, Trunk, TrunkConfig, transformer_block
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least, check_rates
from flax_transformer.nn.module import Module
from flax_transformer.nn.table import make_table
from flax_transformer.ops import Mask, dropout, sinusoidal_grid, widen
from flax_transformer.ops.resample import bicubic, resample_positions, smooth_bicubic
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class ViTConfig(TrunkConfig):
    """A trunk over the patches of an image, and tokens that stand for all of it."""

    patches: PatchConfig | StemConfig
    """How an image is cut into patches and embedded."""
    tokens: tuple[str, ...] = ("class_token",)
    """Learned vectors before the patches, each the parameter of that name: DeiT has a `distillation_token` too. Of a
    name that stands several times there are as many, one after another: DINOv3's `register_tokens`."""
    position: Literal["learned", "patches", "fixed", "none"] = "learned"
    """Of tokens and patches: "learned"; "patches", learned and of these alone, tokens do without; or "fixed", sinusoids
    in a table that gets no gradients (MAE)."""
    resampling: Literal["bicubic", "smooth_bicubic"] = "bicubic"
    """How a table of positions is made one of another grid: see `ops.resample`."""
    mask_token: bool = False
    """Whether there is a learned vector for patches that are masked."""
    norm: Literal["end", "start", "both", "none"] = "end"
    """Where there is a norm besides those of the blocks: after the last pre-norm block, or before the first one, as in
    CLIP, whose head has the other; "none" is for a head that has it after it averages."""
    dropout: float = 0.0
    """After positions are added."""
    table_std: float = 0.02
    """Standard deviation that learned tokens and positions start with: beside much stronger patches they are slow to
    tell."""

    def __post_init__(self):
        super().__post_init__()
        check_rates(self, "dropout")
        check_at_least(self, 0, "table_std")
        check_widths(patches=self.patches.embed, block=self.block.embed)
        if self.cross:
            raise ValueError("an encoder attends to no memory, got a block with cross-attention")

    @property
    def end_norm(self) -> bool:
        """Whether the stack ends in a norm."""
        return self.norm in ("end", "both") and super().end_norm

    @property
    def start_norm(self) -> bool:
        """Whether there is a norm before the first block."""
        return self.norm in ("start", "both")

    @property
    def tabled(self) -> bool:
        """Whether positions are in a table."""
        return self.position in ("learned", "patches", "fixed")

    @property
    def placed_tokens(self) -> int:
        """How many of the tokens are in the table of positions."""
        return 0 if self.position == "patches" else len(self.tokens)

    def build(self, rngs: nnx.Rngs) -> "ViT":
        """Make the encoder."""
        return ViT(self, rngs=rngs)


def fixed_positions(patches: PatchConfig, tokens: int) -> Float[Array, "T D"]:
    """Return sinusoids of the places of patches, after zeros for the tokens."""
    table = sinusoidal_grid(*patches.grid, patches.embed)
    return jnp.pad(table, ((tokens, 0), (0, 0))).astype(patches.precision.params)


class ViT(ReadsImages, Module):
    """Hidden states of an image's tokens and patches, which all see each other."""

    layer_order = (
        "patches", "class_token", "distillation_token", "register_tokens", "mask_token", "positions", "norm",
        Part("trunk"),
    )  # fmt: skip

    def __init__(self, cfg: ViTConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.patches = cfg.patches.build(rngs)
        tables = Counter((*cfg.tokens, "mask_token")[: None if cfg.mask_token else -1])
        tables |= {"positions": cfg.placed_tokens + math.prod(cfg.patches.grid)} if cfg.tabled else {}
        for name, count in tables.items():
            table = make_table(rngs, count, cfg.patches.embed, cfg.patches.precision, std=cfg.table_std)
            if name == "positions" and cfg.position == "fixed":
                table[...] = fixed_positions(cfg.patches, len(cfg.tokens))
            setattr(self, name, table)
        if cfg.start_norm:
            self.norm = cfg.block.residual.make_norm(rngs)
        self.trunk = Trunk(cfg, rngs=rngs)

    def embed(
        self,
        images: Float[Array, "*B H W C"],
        *,
        masked: Bool[Array, "*#B P"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Return what the trunk is given: tokens and patches, with positions, normalised where the config says so.

        Args:
          masked: patches in whose place the mask token stands.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or masked patches for a model without a mask token.
        """
        x = widen(self.patches(images))
        if masked is not None:
            if not self.cfg.mask_token:
                raise ValueError("a model without a mask token must not be given masked patches, got some")
            x = jnp.where(masked[..., None], self.mask_token[...], x)
        return self.placed(x, self.cfg.patches.grid_of(*images.shape[-3:-1]), key)

    def placed(
        self, x: Float[Array, "*B P D"], grid: tuple[int, ...], key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Put tokens before the patches of a grid, and add positions; the rest as the config says."""
        cfg = self.cfg
        tokens = [getattr(self, name)[...] for name in dict.fromkeys(cfg.tokens)]
        x = jnp.concatenate([*(jnp.broadcast_to(row, (*x.shape[:-2], *row.shape)) for row in tokens), x], axis=-2)
        table = self.positions_of(*grid)
        x = x if table is None else x + table
        x = self.norm(x) if cfg.start_norm else x
        x = dropout(x.astype(cfg.patches.precision.residual), cfg.dropout, key)
        return constrain(x, "batch", "length", None)

    def positions_of(self, rows: int, columns: int) -> Float[Array, "T D"] | None:
        """Return the positions of tokens and patches for a grid of patches, that of training or another.

        The table is resampled for another one, as torch does it; tokens keep theirs.
        """
        cfg = self.cfg
        if cfg.position == "none":
            return None
        table = widen(self.positions[...])
        table = jax.lax.stop_gradient(table) if cfg.position == "fixed" else table
        kernel = {"bicubic": bicubic, "smooth_bicubic": smooth_bicubic}[cfg.resampling]
        placed = cfg.placed_tokens
        table = resample_positions(table, (rows, columns), tokens=placed, grid=cfg.patches.grid, kernel=kernel)
        return table if placed == len(cfg.tokens) else jnp.pad(table, ((len(cfg.tokens), 0), (0, 0)))

    def __call__(
        self,
        images: Float[Array, "*B H W C"],
        *,
        masked: Bool[Array, "*#B P"] | None = None,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Encode images of any size, of which there must be at least a patch.

        Args:
          masked: patches in whose place the mask token stands.
          mask: what tokens and patches may see; everything by default.
          key: for dropout; None means none.

        Raises:
          ValueError: as `embed`.
        """
        keys = split_keys(key)
        x = self.embed(images, masked=masked, key=keys[0])
        return self.trunk(x, mask=mask, key=keys[1], **self.given(images, key))

    def given(self, images: Float[Array, "*B H W C"], key: PRNGKeyArray | None = None) -> dict[str, Any]:
        """Return what blocks are given besides, of images of this size; a key is for what of it is random."""
        return {}

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: images have none."""
        return None

    def hidden_states(
        self,
        images: Float[Array, "*B H W C"],
        *,
        masked: Bool[Array, "*#B P"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch; arguments as in a call."""
        return self(images, masked=masked, key=key)

    def stage_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> list[Float[Array, "*B T D"]]:
        """Return what every layer is given, and what the last gives, before the norm at the end."""
        keys = split_keys(key)
        x = self.embed(images, key=keys[0])
        return [x, *self.trunk.states(x, key=keys[1], **self.given(images, key))]

    def over_patches(self, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one image [height, width] over its patches."""
        cfg = self.cfg
        (weights,) = by_stack(found, (cfg.depth,))
        patches = Tiles(Grid(*cfg.patches.grid_of(height, width)), cfg.patches.patch, cfg.tokens)
        return [PatchAttention("self", weights[:, 0], patches, patches)]


def vit_encoder(
    size: str, patch: int, *, image: int, dropout: float = 0.0, precision: Precision = FLOAT32, **options: Any
) -> ViTConfig:
    """Return the encoder of a published size, of square patches and images.

    Args:
      options: other fields of `ViTConfig`.
    """
    embed, heads, depth, inner = SIZES[size]
    return ViTConfig(
        patches=PatchConfig(
            embed=embed, image=(image, image), patch=(patch, patch), init_std=0.02, precision=precision
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=inner, norm_eps=1e-12, norm_position="pre", activation="gelu",
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        depth=depth,
        dropout=dropout,
        **options,
    )  # fmt: skip


def _vit(size: str, patch: int, image: int, classes: int, **options: Any) -> ClassifierConfig:
    return with_head(vit_encoder(size, patch, image=image, **options), outputs=classes, pool="first")


SIZES = {
    "tiny": (192, 3, 12, 768),
    "small": (384, 6, 12, 1536),
    "base": (768, 12, 12, 3072),
    "large": (1024, 16, 24, 4096),
    "huge": (1280, 16, 32, 5120),
}
"""Width, heads, depth and inner width."""


def vit_tiny_patch16(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return ViT-Ti/16: 12 layers, D=192, 5.7 M parameters."""
    return _vit("tiny", 16, image, classes, dropout=dropout, precision=precision)


def vit_small_patch16(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return ViT-S/16: 12 layers, D=384, 22 M parameters."""
    return _vit("small", 16, image, classes, dropout=dropout, precision=precision)


def vit_base_patch16(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return ViT-B/16: 12 layers, D=768, 86.6 M parameters."""
    return _vit("base", 16, image, classes, dropout=dropout, precision=precision)


def vit_base_patch32(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return ViT-B/32: 12 layers, D=768, 88.2 M parameters."""
    return _vit("base", 32, image, classes, dropout=dropout, precision=precision)


def vit_large_patch16(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return ViT-L/16: 24 layers, D=1024, 304.3 M parameters."""
    return _vit("large", 16, image, classes, dropout=dropout, precision=precision)


def vit_huge_patch14(
    classes: int = 1000, *, image: int = 224, dropout: float = 0.0, precision: Precision = FLOAT32
) -> ClassifierConfig:
    """Return ViT-H/14: 32 layers, D=1280, 632.0 M parameters."""
    return _vit("huge", 14, image, classes, dropout=dropout, precision=precision)
