"""The layer of deformable attention, and a block of it (Zhu et al. 2020, https://arxiv.org/abs/2010.04159).

Axes: B batch, S places of all feature maps, D width, N heads, H head width, R feature maps, P points of each.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn import FeedForwardConfig, Grid, GridBlockConfig, Precision, ResidualConfig
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import LinearGeneral, Product
from flax_transformer.nn.module import Module
from flax_transformer.ops import widen
from flax_transformer.ops.deformable import deformable_attention

_xavier = nnx.initializers.xavier_uniform()


@frozen
class DeformableAttentionConfig:
    """Attention of the places of feature maps to points of these maps, which lie about each place."""

    embed: int
    """D, the width of the residual stream."""
    heads: int
    """N."""
    levels: int = 3
    """R, feature maps."""
    points: int = 4
    """P, of every map, head and place."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    takes = "position_embedding", "grids"  # of a block's arguments: see `Sublayer`

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "heads", "levels", "points")
        if self.embed % self.heads:
            raise ValueError(f"heads must divide the model width, got D={self.embed}, N={self.heads}")

    def build(self, rngs: nnx.Rngs) -> "DeformableAttention":
        """Make the layer."""
        return DeformableAttention(self, rngs=rngs)


class DeformableAttention(Module):
    """Offsets and weights of points are linear in a place's state; what the points have is summed by the weights."""

    def __init__(self, cfg: DeformableAttentionConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        D, N, dtypes = cfg.embed, cfg.heads, cfg.precision.dtypes
        kinds, zeros = {"rngs": rngs, **dtypes}, nnx.initializers.zeros
        self.value = LinearGeneral(D, (N, D // N), kernel_init=_xavier, dot_general=Product("value"), **kinds)
        axes = ("embed", "heads", None, None)
        self.offset = LinearGeneral(
            D, (N, cfg.levels, cfg.points, 2), kernel_init=zeros, bias_init=_directions(cfg), axes=(*axes, None),
            dot_general=Product((*axes, None)), **kinds,
        )  # fmt: skip
        self.weight = LinearGeneral(
            D, (N, cfg.levels, cfg.points), kernel_init=zeros, axes=axes, dot_general=Product(axes), **kinds
        )
        self.out = LinearGeneral(
            (N, D // N), D, axis=(-2, -1), kernel_init=_xavier, dot_general=Product("out"), **kinds
        )  # fmt: skip

    def __call__(
        self,
        x: Float[Array, "*B S D"],
        *,
        position_embedding: Float[Array, "*#B S D"],
        grids: tuple[Grid, ...],
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Attend.

        Args:
          position_embedding: added to what offsets and weights are computed from.
          grids: rows and columns of each map, in the order of the places.
          key: changes nothing, as there is no dropout inside.

        Raises:
          ValueError: other maps than the layer is made for, or than there are places.
        """
        cfg = self.cfg
        check_hidden(x, cfg.embed)
        if len(grids) != cfg.levels:
            raise ValueError(f"the layer is made for {cfg.levels} feature maps, got {len(grids)}")
        queries = x + position_embedding
        weights = jax.nn.softmax(widen(self.weight(queries)), axis=(-2, -1))
        sides = np.array([(grid.columns, grid.rows) for grid in grids], np.float32)[:, None]
        points = _centres(grids)[:, None, None, None] + widen(self.offset(queries)) / sides
        return self.out(deformable_attention(self.value(x), grids, points, weights))


def deformable_block(
    *, embed: int, heads: int, inner: int, levels: int = 3, points: int = 4, dropout: float = 0.0,
    precision: Precision = Precision(),
) -> GridBlockConfig:  # fmt: skip
    """Make the config of a block of deformable attention and a feed-forward layer, with norms after their sums.

    A call of the block takes `position_embedding` and `grids`, as `DeformableAttention` does.
    """
    return GridBlockConfig(
        attention=DeformableAttentionConfig(
            embed=embed, heads=heads, levels=levels, points=points, precision=precision
        ),
        feedforward=FeedForwardConfig(embed=embed, inner=inner, activation_dropout=dropout, precision=precision),
        residual=ResidualConfig(embed=embed, dropout=dropout, precision=precision),
    )  # fmt: skip


def _centres(grids: tuple[Grid, ...]) -> Float[np.ndarray, "S 2"]:
    """Return x and y of the middle of every place, as fractions of its own map."""
    found = []
    for rows, columns in grids:
        y, x = ((np.arange(side, dtype=np.float32) + np.float32(0.5)) / np.float32(side) for side in (rows, columns))
        found.append(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2))
    return np.concatenate(found)


def _directions(cfg: DeformableAttentionConfig) -> nnx.Initializer:
    """Begin with points in another direction for each head, the further the later, as published."""
    angles = np.arange(cfg.heads) * (2 * math.pi / cfg.heads)
    each = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    each = (each / np.abs(each).max(-1, keepdims=True))[:, None, None]
    points = np.broadcast_to(each, (cfg.heads, cfg.levels, cfg.points, 2)) * np.arange(1, cfg.points + 1)[:, None]

    def init(key: PRNGKeyArray, shape: tuple[int, ...], dtype: jnp.dtype, **options: object) -> Array:
        return jnp.asarray(points.reshape(shape), dtype)

    return init
