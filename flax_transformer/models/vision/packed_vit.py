"""A ViT of images of any size: patches of all images of a row in one sequence, each of which sees those of its own
image, and squares of them that become one output each.

It is the encoder of Qwen2-VL (Wang et al. 2024, https://arxiv.org/abs/2409.12191), whose rows are packed as those of
NaViT are (Dehghani et al. 2023, https://arxiv.org/abs/2307.06304).

Axes: B rows, I images of a row, P patches of a row, F numbers of a patch, M squares of patches, D width, E width of an
output.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.protocol import Described
from flax_transformer.models.video.tubelet import TubeletConfig
from flax_transformer.nn import Cycle, Precision, Rotary, Trunk, TrunkConfig, transformer_block
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.linear import Linear, Product, initializer
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, axial_frequencies
from flax_transformer.ops.activation import gelu
from flax_transformer.ops.packed_grid import packed_places, packed_windows
from flax_transformer.order import Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class PackedViTConfig(TrunkConfig):
    """A trunk over the patches of several images, and a layer that merges squares of them."""

    patches: TubeletConfig
    """How patches are embedded: of `span` frames each, of which an image has as many alike."""
    outputs: int
    """E, the width of what comes out."""
    merge: int = 2
    """Patches on each side of a square that becomes one output."""
    windows: tuple[int | None, ...] = (None,)
    """Squares on each side of the windows whose patches see each other, of which the layers take turns; None: patches
    see all of their image."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "outputs", "merge")
        if not self.windows or any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"windows must be of at least 1 square, for at least one turn, got {self.windows}")
        check_widths(patches=self.patches.embed, block=self.block.embed)
        if self.cross:
            raise ValueError("an encoder attends to no memory, got a block with cross-attention")
        if self.block.attention.rotary is None or len(self.block.attention.rotary.sections or ()) != 2:
            raise ValueError(
                "patches need rotary positions with sections for row and column, got "
                f"rotary={self.block.attention.rotary}"
            )

    @property
    def numbers(self) -> int:
        """F, the numbers of a patch."""
        return self.patches.channels * self.patches.span * math.prod(self.patches.patch)

    def build(self, rngs: nnx.Rngs) -> "PackedViT":
        """Make the encoder."""
        return PackedViT(self, rngs=rngs)


class PatchMerger(Module):
    """Squares of patches in, one vector each out, by a layer of the square's width."""

    def __init__(self, cfg: PackedViTConfig, *, rngs: nnx.Rngs):
        feedforward, width = cfg.block.feedforward, cfg.block.embed * cfg.merge**2
        options = {"axes": None, "kernel_init": initializer(feedforward), **feedforward.precision.dtypes}
        self.up = Linear(width, width, dot_general=Product("up"), rngs=rngs, **options)
        self.down = Linear(width, cfg.outputs, dot_general=Product("down"), rngs=rngs, **options)

    def __call__(self, x: Float[Array, "*B P D"]) -> Float[Array, "*B M E"]:
        """Merge patches, of which those of a square follow each other."""
        squares = x.reshape(*x.shape[:-2], -1, self.up.in_features)
        hidden = constrain(gelu(self.up(squares)), "batch", "length", "inner")
        return constrain(self.down(hidden), "batch", "length", None)


class PackedViT(Module):
    """Images in rows of patches in, an output for each square of patches out, padding's among them."""

    layer_order = ("patches", Part("trunk"), "merger")

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: PackedViTConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B rows, each of an image of the size that patches are made for."""
        return {"inputs": images_of_grid(config, rows, fitted_grid(config, *config.patches.grid[1:]))}

    @classmethod
    def describe_batch(cls, config: PackedViTConfig, batch: dict[str, Any]) -> Described:
        """Count images."""
        rows, patches, _ = batch["inputs"]["patches"].shape
        images = int((np.prod(batch["inputs"]["grids"], axis=-1) > 0).sum())
        return Described({"rows": rows, "patches": patches}, images, "images")

    def __init__(self, cfg: PackedViTConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.patches = cfg.patches.build(rngs)
        self.trunk = Trunk(cfg, rngs=rngs)
        self.merger = PatchMerger(cfg, rngs=rngs)

    def __call__(
        self,
        patches: Float[Array, "*B P F"],
        grids: Int[Array, "*B I 3"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B M E"]:
        """Encode the images of each row.

        Args:
          patches: of one image after another, square by square, each by its channels, frames, rows and columns; then
            padding.
          grids: times, rows and columns of patches of each image; 0 where a row has fewer images than others.
          key: for dropout; None means none.

        Raises:
          ValueError: patches of another size than the model's, or a number of them that is not one of squares.
        """
        return self.merger(self.states(patches, grids, key=key))

    def states(
        self, patches: Float[Array, "*B P F"], grids: Int[Array, "*B I 3"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B P D"]:
        """Compute the normalised hidden states of patches; arguments as in a call."""
        cfg, size = self.cfg.patches, self.cfg.merge**2
        if patches.shape[-1] != self.cfg.numbers or patches.shape[-2] % size:
            raise ValueError(
                f"patches must be of {self.cfg.numbers} numbers and as many as squares of {size} make, got "
                f"{patches.shape[-2]} of {patches.shape[-1]}"
            )
        cut = patches.reshape(*patches.shape[:-1], cfg.channels, cfg.span, *cfg.patch)
        x = self.patches.tubelet(jnp.moveaxis(cut, -4, -1)).astype(cfg.precision.residual)
        places, frames = packed_places(grids, patches.shape[-2], self.cfg.merge)

        def seen(window: int | None) -> Mask:
            part = frames if window is None else packed_windows(places, frames, window * self.cfg.merge)
            return Mask(segments=(part, part))

        x = constrain(x, "batch", "length", None)
        return self.trunk(x, mask=Cycle.of(self.cfg.windows, seen), positions=places, key=key)

    hidden_states = __call__


def fitted_grid(config: PackedViTConfig, rows: int, columns: int) -> tuple[int, int, int]:
    """Return the grid of an image of about so many rows and columns of patches: whole squares, at least one."""
    high, wide = (max(side // config.merge, 1) * config.merge for side in (rows, columns))
    return 1, high, wide


def images_of_grid(config: PackedViTConfig, rows: int, grid: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Make the inputs of rows of one random image each, of that grid."""
    shape = (rows, math.prod(grid), config.numbers)
    patches = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return {"patches": patches, "grids": np.tile(np.array(grid, np.int32), (rows, 1, 1))}


def packed_vit(
    outputs: int, *, embed: int = 1280, heads: int = 16, depth: int = 32, inner: int = 5120, patch: int = 14,
    **options: Any,
) -> PackedViTConfig:  # fmt: skip
    """Return Qwen2-VL's encoder of images; with `gated` that of Qwen2.5-VL, if it has windows too.

    Args:
      outputs: width of what it gives, that of the language model.
      options: `precision`, `gated`: RMSNorm and gated feed-forward layers, and other fields of `PackedViTConfig`.
    """
    precision, quarter = options.pop("precision", FLOAT32), embed // heads // 4
    gated = options.pop("gated", False)
    kind = {"activation": "silu", "norm": "rms", "gated": True} if gated else {"activation": "quick_gelu"}
    return PackedViTConfig(
        patches=TubeletConfig(
            embed=embed, image=(16 * patch, 16 * patch), patch=(patch, patch), bias=False, frames=2, span=2,
            init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=inner, norm_eps=1e-6, norm_position="pre",
            rotary=Rotary(frequencies=axial_frequencies, sections=(quarter, quarter)), init_std=0.02,
            precision=precision, **kind,
        ),
        depth=depth,
        outputs=outputs,
        **options,
    )  # fmt: skip
