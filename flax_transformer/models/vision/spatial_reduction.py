"""Attention to a coarser grid than that of the queries: each key and value is of several patches (Wang et al. 2021,
https://arxiv.org/abs/2102.12122).

Axes: B batch, T positions on the grid, D width.
"""

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.attention import AttentionConfig
from flax_transformer.nn.check import check_hidden, check_widths
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.grid import Grid, check_grid
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import make_norm
from flax_transformer.nn.patch import PatchConfig


@frozen
class SpatialReductionConfig:
    """Attention of all patches of a grid to as many fewer as a linear layer makes of them."""

    attention: AttentionConfig
    """Attention of all positions to fewer keys and values."""
    patches: PatchConfig
    """The layer that makes one key and value of several patches: of images of D channels, whose pixels these are."""
    norm_eps: float = 1e-6
    """Of the LayerNorm after it."""

    takes = ("grid",)

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 0, "norm_eps")
        check_widths(attention=self.attention.embed, patches=self.patches.embed, channels=self.patches.channels)

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.attention.embed

    def build(self, rngs: nnx.Rngs) -> "SpatialReductionAttention":
        """Make the layer."""
        return SpatialReductionAttention(self, rngs=rngs)


class SpatialReductionAttention(Module):
    """Attention with fewer keys than queries."""

    def __init__(self, cfg: SpatialReductionConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.attention = cfg.attention.build(rngs)
        self.patches = cfg.patches.build(rngs)
        precision = cfg.patches.precision
        self.norm = make_norm("layer", cfg.embed, eps=cfg.norm_eps, precision=precision, rngs=rngs)

    def __call__(
        self, x: Float[Array, "*B T D"], *, grid: Grid, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Attend; rows and columns that are left over at the edge are no keys.

        Args:
          grid: where the T positions are.
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        check_hidden(x, self.cfg.embed)
        check_grid(x, grid)
        memory = self.norm(self.patches(x.reshape(*x.shape[:-2], *grid, -1)))
        return self.attention(x, memory, key=key)
