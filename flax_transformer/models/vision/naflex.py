"""A ViT of images of any size and shape at once: patches in a row, as many of each image as it has.

This is NaFlex of SigLIP 2 (Tschannen et al. 2025, https://arxiv.org/abs/2502.14786), after FlexiViT (Beyer et al. 2023,
https://arxiv.org/abs/2212.08013) and NaViT (Dehghani et al. 2023, https://arxiv.org/abs/2307.06304).

Axes: B images, P patches of the longest, F pixels of a patch times channels, D width.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.protocol import Described
from flax_transformer.nn import PatchConfig, Trunk, TrunkConfig
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.module import Module
from flax_transformer.nn.table import make_table
from flax_transformer.ops import Mask, widen
from flax_transformer.ops.grid_position import resize_places
from flax_transformer.order import Part
from flax_transformer.parallel import constrain


@frozen
class NaFlexConfig(TrunkConfig):
    """A trunk over the patches of images, and a table of positions that is resized to the grid of each."""

    patches: PatchConfig
    """How patches are embedded; its grid is that of the table."""
    table_std: float = 0.02
    """Standard deviation that positions start with."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 0, "table_std")
        check_widths(patches=self.patches.embed, block=self.block.embed)
        if self.cross:
            raise ValueError("an encoder attends to no memory, got a block with cross-attention")

    def build(self, rngs: nnx.Rngs) -> "NaFlex":
        """Make the encoder."""
        return NaFlex(self, rngs=rngs)


class NaFlex(Module):
    """Hidden states of patches in rows, of which the last ones are padding where images have fewer."""

    layer_order = ("patches", "positions", Part("trunk"))

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: NaFlexConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B images with as many patches as the table has."""
        grid, width = config.patches.grid, math.prod(config.patches.patch) * config.patches.channels
        patches = np.random.default_rng(0).standard_normal((rows, math.prod(grid), width), dtype=np.float32)
        return {"inputs": {"patches": patches, "shapes": np.tile(np.array(grid, np.int32), (rows, 1))}}

    @classmethod
    def describe_batch(cls, config: NaFlexConfig, batch: dict[str, Any]) -> Described:
        """Count B images."""
        rows, count, _ = batch["inputs"]["patches"].shape
        return Described({"rows": rows, "patches": count}, rows, "images")

    def __init__(self, cfg: NaFlexConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.patches = cfg.patches.build(rngs)
        places, width = math.prod(cfg.patches.grid), cfg.patches.embed
        self.positions = make_table(rngs, places, width, cfg.patches.precision, std=cfg.table_std)
        self.trunk = Trunk(cfg, rngs=rngs)

    def embed(self, patches: Float[Array, "*B P F"], shapes: Int[Array, "*B 2"]) -> Float[Array, "*B P D"]:
        """Return what the trunk is given.

        Raises:
          ValueError: patches of another size than the model's.
        """
        cfg = self.cfg.patches
        shape = (*cfg.patch, cfg.channels)
        if patches.shape[-1] != math.prod(shape):
            raise ValueError(f"a patch must have {'×'.join(map(str, shape))} numbers, got {patches.shape[-1]}")
        x = widen(self.patches.patch(patches.reshape(*patches.shape[:-1], *shape)))
        table = self.positions[...].reshape(*cfg.grid, cfg.embed)
        x = x + resize_places(table, shapes, patches.shape[-2])
        return constrain(x.astype(cfg.precision.residual), "batch", "length", None)

    def __call__(
        self,
        patches: Float[Array, "*B P F"],
        shapes: Int[Array, "*B 2"],
        *,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B P D"]:
        """Encode images.

        Args:
          patches: of each, line by line, each by its rows, columns and channels; then padding.
          shapes: rows and columns of patches of each.
          mask: what patches may see; by default all of their image.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        mask = self.memory_mask(Mask(lengths=jnp.prod(shapes, axis=-1))) if mask is None else mask
        return self.trunk(self.embed(patches, shapes), mask=mask, key=key)

    def hidden_states(
        self,
        patches: Float[Array, "*B P F"],
        shapes: Int[Array, "*B 2"],
        seen: Bool[Array, "*B P"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B P D"]:
        """Compute the last hidden states from the inputs of a batch.

        Args:
          seen: which patches are no padding; by default as many as `shapes` says.
          key: for dropout; None means none.
        """
        mask = None if seen is None else Mask(dense=seen[..., None, None, :])
        return self(patches, shapes, mask=mask, key=key)

    def real(
        self, patches: Float[Array, "*B P F"], shapes: Int[Array, "*B 2"], seen: Bool[Array, "*B P"] | None = None
    ) -> Bool[Array, "*B P"]:
        """Return which positions of the output are no padding, by the inputs of a batch."""
        return jnp.arange(patches.shape[-2]) < jnp.prod(shapes, axis=-1)[..., None] if seen is None else seen

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return which positions of the output are padding: those of the input."""
        return mask
