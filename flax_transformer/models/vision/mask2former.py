"""Mask2Former: an image as a set of masks, each with a class, for every kind of segmentation (Cheng et al. 2021,
https://arxiv.org/abs/2112.01527).

Axes: B batch, H W height and width, C channels, I J height and width of a feature map, S its places, Q queries, A
answers, one before each layer of the decoder and one after the last, D width, F width of the fine map, E classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import Head, HeadConfig
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.deformable import deformable_block
from flax_transformer.models.vision.detr import QueryHead
from flax_transformer.models.vision.detr_block import detr_block
from flax_transformer.models.vision.pixel_decoder import LEVELS, PixelDecoderConfig, grid_positions
from flax_transformer.models.vision.swin import swin_encoder
from flax_transformer.nn import ConvConfig, Grid, Precision, TrunkConfig, init_stack, layer
from flax_transformer.nn.block import Sublayer
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.module import Module
from flax_transformer.nn.remat import REMAT
from flax_transformer.nn.table import make_table
from flax_transformer.nn.transformer_block import TransformerBlockConfig
from flax_transformer.ops import Mask, bilinear, resample, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Order, Part, Stack

FLOAT32 = Precision()


@frozen
class Mask2FormerConfig:
    """Feature maps of a backbone, a pixel decoder of them, a decoder of queries, and two heads."""

    backbone: BackboneConfig
    """What gives feature maps of images."""
    pixels: PixelDecoderConfig
    """What makes of them maps to attend to, and a fine one."""
    decoder: TrunkConfig
    """Of `masked_block`s; its depth is one less than there are answers."""
    queries: int = 100
    """Q, the most masks of an image."""
    classes: int = 133
    """E, beside which there is a class for no mask."""
    project: bool = False
    """Whether maps that have the decoder's width go through a linear layer all the same, as those of another do."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "queries", "classes")
        if len(self.backbone.stages) != len(self.pixels.channels):
            raise ValueError(
                f"the pixel decoder must be of the {len(self.backbone.stages)} maps that the backbone gives, got one "
                f"of {len(self.pixels.channels)}"
            )
        if self.decoder.layer_drop or self.decoder.drop_path:
            raise ValueError("every layer of the decoder gives an answer, got layers that may be left out in training")

    @property
    def embed(self) -> int:
        """D, the width of the hidden states."""
        return self.decoder.block.embed

    @property
    def projects(self) -> bool:
        """Whether there are linear layers on the maps that the decoder attends to."""
        return self.project or self.pixels.embed != self.embed

    def build(self, rngs: nnx.Rngs) -> "Mask2Former":
        """Make the model."""
        return Mask2Former(self, rngs=rngs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MaskStates:
    """What answers are made of."""

    hidden: Any
    """[..., A, Q, D], before the norm."""
    fine: Any
    """[..., I, J, F]."""

    def last(self) -> "MaskStates":
        """Return those of the last answer alone."""
        return replace(self, hidden=self.hidden[..., -1:, :, :])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MaskOutput:
    """What queries answer."""

    logits: Any
    """[..., Q, E + 1], the last of no mask; [..., A, Q, E + 1] of all answers."""
    masks: Any
    """[..., Q, I, J], logits of the places that are of each mask; [..., A, Q, I, J] of all answers."""


class Mask2Former(Module):
    """Masks in images: `mask2former(images)` gives what each query answers in the end."""

    use = "image-segmentation"

    @property
    def layer_order(self) -> Order:
        """Its parts, on top of each other."""
        project = (f"project{i}" for i in range(LEVELS))
        return (
            "queries", "query_positions", Part("backbone"), Part("pixels"), *project, "levels", Stack("blocks"), "norm",
            "scores", "masks",
        )  # fmt: skip

    @classmethod
    def example_batch(cls, config: Mask2FormerConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as the backbone's."""
        return module_of(config.backbone).example_batch(config.backbone, rows, length)

    @classmethod
    def describe_batch(cls, config: Mask2FormerConfig, batch: dict[str, Any]) -> Described:
        """Count B images."""
        return ReadsImages.describe_batch(config.backbone, batch)

    def __init__(self, cfg: Mask2FormerConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.backbone, self.pixels = cfg.backbone.build(rngs), cfg.pixels.build(rngs)
        for name, count in (("queries", cfg.queries), ("query_positions", cfg.queries), ("levels", LEVELS)):
            setattr(self, name, make_table(rngs, count, cfg.embed, cfg.precision, std=1.0))
        for i in range(LEVELS if cfg.projects else 0):
            made = ConvConfig(
                channels=cfg.pixels.embed, features=cfg.embed, window=(1, 1), precision=cfg.precision
            )  # fmt: skip
            setattr(self, f"project{i}", made.build(rngs))
        self.blocks = init_stack(cfg.decoder.block.build, cfg.decoder.depth, key=rngs.params())
        self.norm = cfg.decoder.block.residual.make_norm(rngs)
        self.scores = Head(HeadConfig(embed=cfg.embed, outputs=cfg.classes + 1, precision=cfg.precision), rngs=rngs)
        self.masks = QueryHead(cfg.embed, cfg.pixels.outputs, precision=cfg.precision, rngs=rngs)

    def __call__(self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None) -> MaskOutput:
        """Find masks: what each query answers after the last layer.

        Args:
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        found = self.output(self.hidden_states(images, key=key).last())
        return MaskOutput(found.logits[..., 0, :, :], found.masks[..., 0, :, :, :])

    def hidden_states(self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None) -> MaskStates:
        """Compute what the answers before and after every layer are made of; arguments as in a call."""
        keys = split_keys(key)
        return self.states(self.maps(images, key=keys[0]), key=keys[1])

    def maps(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "..."], ...]:
        """Compute the backbone's feature maps, the finest first; arguments as in a call."""
        return tuple(checkpoint_name(x, "map_states") for x in self.backbone(images, key=key))

    def states(self, maps: Sequence[Float[Array, "..."]], *, key: PRNGKeyArray | None = None) -> MaskStates:
        """Compute what answers are made of from the backbone's maps.

        The queries attend to the maps of the pixel decoder in turn, each within the mask that it has answered before;
        where that is empty, it sees all. The first answer is made of what a query begins with.

        Args:
          key: for dropout; None means none.
        """
        cfg, keys = self.cfg, split_keys(key)
        coarse, fine = self.pixels(maps, key=keys[0])
        memories = [self._memory(i, x) for i, x in enumerate(coarse)]
        grids = [Grid(*x.shape[-3:-1]) for x in coarse]
        places = [grid_positions(grid, cfg.embed).astype(fine.dtype) for grid in grids]
        mine = widen(self.query_positions[...]).astype(fine.dtype)
        x = jnp.broadcast_to(self.queries[...].astype(fine.dtype), (*fine.shape[:-3], cfg.queries, cfg.embed))

        # The maps' sizes differ, and with them the masks that go from layer to layer: no loop of one body runs them.
        def step(block: Any, x: Array, at: int, key: Array | None) -> Array:
            place = jnp.broadcast_to(places[at], memories[at].shape)
            seen = Mask(dense=self._seen(x, fine, grids[at])[..., None, :, :])
            return block(
                x, memories[at], memory_mask=seen, position_embedding=mine, memory_position_embedding=place, key=key
            )

        if cfg.decoder.remat != "none":
            step = jax.checkpoint(step, policy=REMAT[cfg.decoder.remat], static_argnums=2)
        found = [checkpoint_name(x, "query_states")]
        for i, own in enumerate(split_keys(keys[1], cfg.decoder.depth)):
            x = checkpoint_name(step(layer(self.blocks, i), x, i % LEVELS, own), "query_states")
            found.append(x)
        return MaskStates(jnp.stack(found, axis=-3), fine)

    def _memory(self, level: int, x: Float[Array, "*B I J C"]) -> Float[Array, "*B S D"]:
        x = getattr(self, f"project{level}")(x) if self.cfg.projects else x
        x = x + self.levels[level].astype(x.dtype)
        return x.reshape(*x.shape[:-3], -1, self.cfg.embed)

    def _seen(self, x: Array, fine: Array, grid: Grid) -> Bool[Array, "*B Q S"]:
        """Return which places of a map are in the mask that each query's state answers; all, where none is."""
        masks = jnp.moveaxis(jax.lax.stop_gradient(self._tell(self.norm(x), fine)), -3, -1)
        masks = jnp.moveaxis(resample(masks, grid, kernel=bilinear), -1, -3)
        seen = (jax.nn.sigmoid(masks) >= 0.5).reshape(*masks.shape[:-2], -1)
        return seen | ~seen.any(-1, keepdims=True)

    def _tell(self, hidden: Float[Array, "*B Q D"], fine: Float[Array, "*B I J F"]) -> Float[Array, "*B Q I J"]:
        return jnp.einsum("...qf,...ijf->...qij", self.masks(widen(hidden)), widen(fine))

    def output(self, states: MaskStates, *, key: PRNGKeyArray | None = None) -> MaskOutput:
        """Score the classes and tell the masks of all answers, in float32 or more."""
        hidden = widen(self.norm(states.hidden))
        return MaskOutput(self.scores(hidden), self._tell(hidden, states.fine[..., None, :, :, :]))


@frozen
class MaskedBlockConfig(TransformerBlockConfig):
    """A block that attends to the memory first, then to itself."""

    @property
    def sublayers(self) -> tuple[Sublayer, ...]:
        """In the order in which they are applied."""
        attention, cross, feedforward = super().sublayers
        return cross, attention, feedforward


def masked_block(**options: Any) -> MaskedBlockConfig:
    """Make a block's config of what its parts are to be, as `detr_block` does.

    A call of the block takes `position_embedding` and `memory_position_embedding`, as `DetrAttention` does.
    """
    plain = detr_block(cross=True, **options)
    return MaskedBlockConfig(**{field.name: getattr(plain, field.name) for field in fields(plain)})


def mask2former_swin(
    size: str = "small", classes: int = 133, *, queries: int = 100, image: int = 384, precision: Precision = FLOAT32
) -> Mask2FormerConfig:
    """Return Mask2Former on Swin-"tiny" or -"small": 6 + 9 layers, D=256.

    Raises:
      ValueError: another size.
    """
    depths = {"tiny": (2, 2, 6, 2), "small": (2, 2, 18, 2)}
    if size not in depths:
        raise ValueError(f"size must be one of {', '.join(depths)}, got {size!r}")
    swin = swin_encoder(96, depths[size], (3, 6, 12, 24), image=image, precision=precision)
    network = replace(swin, end_norm=False, drop_path=0.3)
    channels = network.stage_widths[1:]
    encoder = deformable_block(embed=256, heads=8, inner=1024, precision=precision)
    block = masked_block(embed=256, heads=8, inner=2048, precision=precision)
    return Mask2FormerConfig(
        backbone=BackboneConfig(backbone=network, stages=(1, 2, 3, 4), widths=channels, precision=precision),
        pixels=PixelDecoderConfig(
            channels=channels, encoder=TrunkConfig(block=encoder, depth=6), precision=precision
        ),
        decoder=TrunkConfig(block=block, depth=9), queries=queries, classes=classes, precision=precision,
    )  # fmt: skip
