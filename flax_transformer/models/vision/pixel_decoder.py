"""The pixel decoder of Mask2Former: a backbone's maps made of one width, so that each has seen the others, and a fine
one by whose channels masks are told (Cheng et al. 2021, §3.2.1, https://arxiv.org/abs/2112.01527).

Axes: B batch, I J height and width of a feature map, C channels, R feature maps, S their places, D width, F width of
the fine map.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.vision.uper_head import OfMaps, check_maps
from flax_transformer.nn import ConvConfig, Grid, Precision, Trunk, TrunkConfig
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import GroupNorm
from flax_transformer.nn.table import make_table
from flax_transformer.ops import bilinear, resample, widen
from flax_transformer.ops.grid_position import sinusoidal_visible_grid
from flax_transformer.order import Part

LEVELS = 3
"""R: the coarsest maps, which see each other."""
GROUPS, NORM_EPS = 32, 1e-5
"""Of channels, and what group norms add to a variance."""


@frozen
class PixelDecoderConfig(OfMaps):
    """An encoder of the places of the coarsest maps, and a pyramid from there to a finer one."""

    channels: tuple[int, ...]
    """C of each map, the finest first."""
    encoder: TrunkConfig
    """Of `deformable_block`s."""
    finer: int = 1
    """How many maps, the finest first, are added to the enlarged map below them, one after another."""
    outputs: int = 256
    """F, the width of the fine map."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "outputs")
        check_at_least(self, 0, "finer")
        if len(self.channels) < LEVELS or min(self.channels) < 1:
            raise ValueError(f"a pixel decoder is of at least {LEVELS} feature maps with channels, got {self.channels}")
        if self.finer > len(self.channels) - LEVELS:
            raise ValueError(
                f"finer must be at most the {len(self.channels) - LEVELS} maps beside the {LEVELS} coarsest, got "
                f"{self.finer}"
            )
        if self.embed % GROUPS:
            raise ValueError(f"D must be a multiple of the {GROUPS} groups of its norms, got {self.embed}")

    @property
    def embed(self) -> int:
        """D, the width of the maps that see each other."""
        return self.encoder.block.embed

    def build(self, rngs: nnx.Rngs) -> "PixelDecoder":
        """Make the decoder."""
        return PixelDecoder(self, rngs=rngs)


class PixelDecoder(Module):
    """The maps that have seen each other, the coarsest first, and the fine one."""

    @property
    def layer_order(self) -> tuple[Any, ...]:
        """The encoder between what is made of one width and the pyramid."""
        below = (f"project{i}{norm}" for i in range(LEVELS) for norm in ("", "_norm"))
        finer = [f"{part}{i}" for i in reversed(range(self.cfg.finer)) for part in ("lateral", "smooth")]
        above = (f"{part}{norm}" for part in finer for norm in ("", "_norm"))
        return *below, "levels", Part("encoder"), *above, "output"

    def __init__(self, cfg: PixelDecoderConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        for i in range(LEVELS):
            self._convolution(f"project{i}", cfg.channels[-1 - i], 1, True, rngs)
        self.levels = make_table(rngs, LEVELS, cfg.embed, cfg.precision, std=1.0)
        self.encoder = Trunk(cfg.encoder, rngs=rngs)
        for i in range(cfg.finer):
            self._convolution(f"lateral{i}", cfg.channels[i], 1, False, rngs)
            self._convolution(f"smooth{i}", cfg.embed, 3, False, rngs)
        self.output = ConvConfig(
            channels=cfg.embed, features=cfg.outputs, window=(1, 1), precision=cfg.precision
        ).build(rngs)  # fmt: skip

    def _convolution(self, name: str, channels: int, window: int, bias: bool, rngs: nnx.Rngs) -> None:
        cfg = self.cfg
        convolution = ConvConfig(
            channels=channels, features=cfg.embed, window=(window, window), padding=window // 2, bias=bias,
            precision=cfg.precision,
        )  # fmt: skip
        setattr(self, name, convolution.build(rngs))
        norm = GroupNorm(cfg.embed, GROUPS, epsilon=NORM_EPS, rngs=rngs, **cfg.precision.dtypes)
        setattr(self, f"{name}_norm", norm)

    def _layer(self, name: str, x: Array) -> Array:
        return getattr(self, f"{name}_norm")(getattr(self, name)(x))

    def __call__(
        self, maps: Sequence[Float[Array, "..."]], *, key: PRNGKeyArray | None = None
    ) -> tuple[tuple[Float[Array, "..."], ...], Float[Array, "*B I J F"]]:
        """Decode feature maps.

        Args:
          maps: [*B, I, J, C] each, the finest first.
          key: for dropout; None means none.

        Raises:
          ValueError: other maps than the decoder is made for.
        """
        cfg = self.cfg
        check_maps(maps, cfg.channels)
        coarse = [self._layer(f"project{i}", x) for i, x in enumerate(reversed(maps[-LEVELS:]))]
        grids, lead = tuple(Grid(*x.shape[-3:-1]) for x in coarse), coarse[0].shape[:-3]
        levels = widen(self.levels[...])
        position_embedding = jnp.concatenate(
            [grid_positions(grid, cfg.embed) + level for grid, level in zip(grids, levels, strict=True)], axis=-2
        )
        x = jnp.concatenate([each.reshape(*lead, -1, cfg.embed) for each in coarse], axis=-2)
        x = self.encoder(x, position_embedding=position_embedding.astype(x.dtype), grids=grids, key=key)
        seen, begin = [], 0
        for grid in grids:
            end = begin + grid.rows * grid.columns
            seen.append(checkpoint_name(x[..., begin:end, :].reshape(*lead, *grid, cfg.embed), "pixel_states"))
            begin = end
        fine = seen[-1]
        for i in reversed(range(cfg.finer)):
            lateral = self._layer(f"lateral{i}", maps[i])
            fine = lateral + resample(fine, lateral.shape[-3:-1], kernel=bilinear)
            fine = jax.nn.relu(self._layer(f"smooth{i}", fine))
        return tuple(seen), self.output(fine)


def grid_positions(grid: Grid, width: int) -> Float[Array, "P D"]:
    """Encode the places of a grid all of which is image."""
    return sinusoidal_visible_grid(jnp.ones(tuple(grid), bool), width)
