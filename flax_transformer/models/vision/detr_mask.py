"""DETR with masks: of every query the pixels of its object (Carion et al. 2020, §4.4, https://arxiv.org/abs/2005.12872).

Axes: B batch, H W height and width, C channels, S places of the last feature map, Q queries, N heads, D width, I J
height and width of a feature map.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.vision.detr import Detr, DetrConfig
from flax_transformer.nn import ConvConfig
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import GroupNorm
from flax_transformer.ops import Mask, activation, nearest, resample, widen
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.ops.split_keys import split_keys

GROUPS, NORM_EPS = 8, 1e-5
"""Of channels at most, and what group norms add to a variance."""
REFINED = 3
"""Feature maps that masks are refined by, while their channels are halved."""


@frozen
class MaskDetrConfig(DetrConfig):
    """A DETR with heads, and one of masks."""

    stages: tuple[int, ...] = (1, 2, 3)
    """Numbers of the three of the backbone's `stage_states` that masks are refined by, the finest first."""

    def __post_init__(self):
        super().__post_init__()
        if self.classes is None:
            raise ValueError("masks are of objects that are found, got a model of classes=None")
        known = len(self.backbone.stage_widths)
        if len(self.stages) != REFINED or [*self.stages] != sorted({*self.stages} & {*range(known)}):
            raise ValueError(f"stages must be three numbers below {known}, in order, got {self.stages}")
        widths = self.mask_widths
        if wrong := [width for width in widths if not width or width % min(GROUPS, width)]:
            raise ValueError(
                f"channels of masks, {', '.join(map(str, widths))} of D={self.embed} and {self.heads} heads, must be "
                f"below {GROUPS} or multiples of it, got {wrong[0]}"
            )

    @property
    def heads(self) -> int:
        """N, of the encoder and so of the masks."""
        return self.encoder.block.attention.heads

    @property
    def mask_widths(self) -> tuple[int, ...]:
        """Channels of each convolution."""
        return self.embed + self.heads, *(self.embed // 2**i for i in range(1, 2 + REFINED))

    def build(self, rngs: nnx.Rngs) -> "MaskDetr":
        """Make the model."""
        return MaskDetr(self, rngs=rngs)


class MaskDetr(Detr):
    """Objects in images and their pixels: `detr.segment(images, mask)`; as a `Detr` it finds them."""

    layer_order = (*Detr.layer_order, "mask_head")

    def __init__(self, cfg: MaskDetrConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.mask_head = MaskHead(cfg, rngs=rngs)

    def segment(
        self,
        images: Float[Array, "*B H W C"],
        mask: Bool[Array, "*B H W"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B Q D"], Float[Array, "*B S D"], Float[Array, "*B Q I J"]]:
        """Return the states of queries, which `output` scores, the encoder's memory, and the logits of masks.

        Args:
          mask: where there is an image and no padding; everywhere by default.
          key: for dropout; None means none.
        """
        keys, maps = split_keys(key), self.backbone.stage_states(images)
        memory, positions, visible = self.encode(maps[-1], images.shape[-3:-1], mask, key=keys[0])
        hidden = self.decode(memory, positions, visible, key=keys[1])[..., -1, :, :]
        finer = [maps[stage] for stage in reversed(self.cfg.stages)]
        return hidden, memory, self.mask_head(hidden, memory, self.project(maps[-1]), finer, visible)


class MaskHead(Module):
    """Where each query looks at the memory, beside the last feature map, enlarged and refined by finer maps."""

    def __init__(self, cfg: MaskDetrConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        kinds = {"dtype": at_least_float32(cfg.precision.compute), "param_dtype": jnp.dtype(cfg.precision.params)}
        self.query, self.key = (Linear(cfg.embed, cfg.embed, rngs=rngs, **kinds) for _ in range(2))
        widths = cfg.mask_widths
        for i, width in enumerate(widths):
            setattr(self, f"conv{i}", _conv(cfg, widths[max(i - 1, 0)], width, 3, rngs))
            groups = min(GROUPS, width)
            norm = GroupNorm(width, groups, epsilon=NORM_EPS, rngs=rngs, **cfg.precision.dtypes)
            setattr(self, f"norm{i}", norm)
        for i, stage in enumerate(reversed(cfg.stages)):
            setattr(self, f"adapt{i}", _conv(cfg, cfg.backbone.stage_widths[stage], widths[1 + i], 1, rngs))
        self.output = _conv(cfg, widths[-1], 1, 3, rngs)

    def __call__(
        self,
        hidden: Float[Array, "*B Q D"],
        memory: Float[Array, "*B S D"],
        features: Float[Array, "*B I J D"],
        finer: Sequence[Float[Array, "..."]],
        visible: Mask | None = None,
    ) -> Float[Array, "*B Q H W"]:
        """Compute the logits of masks, as large as the finest map.

        Args:
          finer: the maps to refine by, [*B, I, J, C] each, the coarsest first.
          visible: what of the memory is no padding.
        """
        x = self._looks(hidden, memory, visible)
        x = jnp.moveaxis(x, -2, -1).reshape(*x.shape[:-2], *features.shape[-3:-1], -1)
        beside = jnp.broadcast_to(features[..., None, :, :, :], (*x.shape[:-1], features.shape[-1]))
        x = jnp.concatenate([beside, x.astype(beside.dtype)], axis=-1)
        x = self._layer(1, self._layer(0, x))
        for i, each in enumerate(finer):
            fine = getattr(self, f"adapt{i}")(each)[..., None, :, :, :]
            x = self._layer(2 + i, fine + resample(x, fine.shape[-3:-1], kernel=nearest))
        return widen(self.output(x))[..., 0]

    def _looks(self, hidden: Array, memory: Array, visible: Mask | None) -> Float[Array, "*B Q N S"]:
        """Share each query's attention over all places and heads."""
        heads = self.cfg.heads
        q, k = (
            part(widen(x)).reshape(*x.shape[:-1], heads, -1)
            for part, x in ((self.query, hidden), (self.key, memory))
        )  # fmt: skip
        scores = jnp.einsum("...qnh,...snh->...qns", q * q.shape[-1] ** -0.5, k)
        if visible is not None:
            scores = jnp.where(visible.dense, scores, jnp.finfo(scores.dtype).min)
        return jax.nn.softmax(scores, axis=(-2, -1))

    def _layer(self, number: int, x: Array) -> Array:
        y = getattr(self, f"norm{number}")(getattr(self, f"conv{number}")(x))
        return activation(self.cfg.decoder.block.feedforward.activation)(y)


def _conv(cfg: MaskDetrConfig, channels: int, features: int, window: int, rngs: nnx.Rngs) -> Any:
    made = ConvConfig(
        channels=channels, features=features, window=(window, window), padding=window // 2, precision=cfg.precision
    ).build(rngs)  # fmt: skip
    if features < GROUPS:  # so few are split over no devices
        made.kernel.set_metadata(out_sharding=(None,) * 4, eager_sharding=False)
    return made
