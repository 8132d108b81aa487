"""DETR: objects as a set, each the answer to a learned query (Carion et al. 2020, https://arxiv.org/abs/2005.12872).

Axes: B batch, H W height and width, C channels, S places of the feature map, Q queries, L layers of the decoder, D
width, E classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.head import Head, HeadConfig
from flax_transformer.models.patch_attention import PatchAttention, Tiles, by_stack
from flax_transformer.models.vision.detr_block import detr_block
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.nn import ConvConfig, Grid, Precision, Trunk, TrunkConfig, every_layer, init_stack, layer
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_at_least, check_fields, check_rates
from flax_transformer.nn.linear import Linear, Product
from flax_transformer.nn.module import Module
from flax_transformer.nn.table import make_table
from flax_transformer.ops import Mask, dropout, widen
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.ops.grid_position import shrink_mask, sinusoidal_visible_grid
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain

FLOAT32 = Precision()


@frozen
class DetrConfig:
    """Feature maps of a convolutional network, an encoder of their places, a decoder of queries, and two heads."""

    backbone: Any
    """Config of what gives feature maps of images, such as a `ResNetConfig`: it has their width `embed`."""
    encoder: TrunkConfig
    """Of `detr_block`s."""
    decoder: TrunkConfig
    """Of `detr_block`s with cross-attention, after each of which there is a norm."""
    queries: int = 100
    """Q, the most objects that can be found in an image."""
    classes: int | None = 91
    """E, beside which there is a class for no object; None: no heads, what gives hidden states alone."""
    dropout: float = 0.0
    """Before the encoder."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "queries", "classes")
        check_rates(self, "dropout")
        check_widths(encoder=self.encoder.block.embed, decoder=self.decoder.block.embed)
        if self.encoder.cross or not self.decoder.cross:
            raise ValueError("the decoder attends to what the encoder gives, and the encoder to no memory")
        if self.decoder.block.residual.norm_position == "pre":
            raise ValueError("the decoder's norms are after its sublayers, got norm_position='pre'")

    @property
    def embed(self) -> int:
        """D, the width of the hidden states."""
        return self.decoder.block.embed

    def build(self, rngs: nnx.Rngs) -> "Detr":
        """Make the model."""
        return Detr(self, rngs=rngs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DetrOutput:
    """What each query answers."""

    logits: Any
    """[..., Q, E + 1], the last of no object."""
    boxes: Any
    """[..., Q, 4], by their centres, in shares of the image."""


class Detr(ReadsImages, Module):
    """Objects in images: `detr(images, mask)` gives what each query answers."""

    layer_order = (
        "queries", Part("backbone"), "project", Part("encoder"), Part("decoder"), "norm", "scores", "boxes",
    )  # fmt: skip

    use = "object-detection"

    @classmethod
    def example_batch(cls, config: DetrConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B images that fill their places, with two objects each."""
        batch = super().example_batch(config.backbone, rows)
        boxes = np.tile(np.array([[0.3, 0.3, 0.2, 0.2], [0.6, 0.5, 0.4, 0.3]], np.float32), (rows, 1, 1))
        ones = np.ones((rows, 2), np.float32)
        labels = {"boxes": boxes, "classes": np.zeros((rows, 2), np.int32), "weights": ones}
        mask = np.ones(batch["inputs"]["images"].shape[:-1], bool)
        return {"inputs": {**batch["inputs"], "mask": mask}, "labels": labels, "weights": ones[:, 0]}

    def __init__(self, cfg: DetrConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.backbone = cfg.backbone.build(rngs)
        self.project = ConvConfig(
            channels=cfg.backbone.embed, features=cfg.embed, window=(1, 1), precision=cfg.precision
        ).build(rngs)  # fmt: skip
        self.queries = make_table(rngs, cfg.queries, cfg.embed, cfg.precision, std=1.0)
        self.encoder, self.decoder = Trunk(cfg.encoder, rngs=rngs), Trunk(cfg.decoder, rngs=rngs)
        self.norm = cfg.decoder.block.residual.make_norm(rngs)
        if cfg.classes is None:
            return
        self.scores = Head(HeadConfig(embed=cfg.embed, outputs=cfg.classes + 1, precision=cfg.precision), rngs=rngs)
        self.boxes = QueryHead(cfg.embed, 4, precision=cfg.precision, rngs=rngs)

    def __call__(
        self,
        images: Float[Array, "*B H W C"],
        mask: Bool[Array, "*B H W"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> DetrOutput:
        """Find objects.

        Args:
          mask: where there is an image and no padding; everywhere by default.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        return self.output(self.hidden_states(images, mask, key=key)[..., -1, :, :])

    def hidden_states(
        self,
        images: Float[Array, "*B H W C"],
        mask: Bool[Array, "*B H W"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B L Q D"]:
        """Compute the queries' states after every layer of the decoder; arguments as in a call."""
        return self._states(self.backbone.feature_map(images), images, mask, key)

    def observe(
        self,
        images: Float[Array, "*B H W C"],
        mask: Bool[Array, "*B H W"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B L Q D"], dict[str, Any]]:
        """Compute the hidden states, and new statistics of a backbone that has batch norms, beside."""
        features, statistics = self.backbone.observe_map(images)
        return self._states(features, images, mask, key), {"backbone": statistics}

    def _states(self, features: Array, images: Array, mask: Array | None, key: PRNGKeyArray | None) -> Array:
        keys = split_keys(key)
        memory, *beside = self.encode(features, images.shape[-3:-1], mask, key=keys[0])
        return self.decode(memory, *beside, key=keys[1])

    def encode(
        self,
        features: Float[Array, "*B I J C"],
        size: tuple[int, int],
        mask: Bool[Array, "*B H W"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B S D"], Float[Array, "*#B S D"], Mask | None]:
        """Encode a feature map of images of a size: its places' states, their positions, and which are padding.

        Raises:
          ValueError: a mask of another size than the images.
        """
        cfg, lead = self.cfg, features.shape[:-3]
        if mask is not None and mask.shape != (*lead, *size):
            raise ValueError(f"mask must be {(*lead, *size)}, as the images are, got {mask.shape}")
        rows, columns = features.shape[-3:-1]
        seen = jnp.ones((rows, columns), bool) if mask is None else shrink_mask(mask != 0, rows, columns)
        position_embedding = sinusoidal_visible_grid(seen, cfg.embed)
        visible = None if mask is None else Mask(dense=seen.reshape(*lead, 1, 1, -1))
        keys = split_keys(key)
        x = self.project(features).reshape(*lead, rows * columns, cfg.embed)
        x = constrain(dropout(x, cfg.dropout, keys[0]), "batch", "length", None)
        return (
            self.encoder(x, mask=visible, position_embedding=position_embedding, key=keys[1]),
            position_embedding,
            visible,
        )

    def decode(
        self,
        memory: Float[Array, "*B S D"],
        position_embedding: Float[Array, "*#B S D"],
        visible: Mask | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B L Q D"]:
        """Attend by the queries to a memory; arguments as `encode` gives them."""
        trunk, position_embedding = self.decoder, jnp.broadcast_to(position_embedding, memory.shape)
        mine = widen(self.queries[...])
        x = jnp.zeros((*memory.shape[:-2], *mine.shape), memory.dtype)
        rates = trunk.drop_rates(key)
        given = {"memory_mask": visible, "drop_path": rates}
        found = every_layer(
            trunk.blocks, x, memory, position_embedding=mine, memory_position_embedding=position_embedding, key=key,
            unroll=trunk.cfg.unroll,
            remat=trunk.cfg.remat, **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        return self.norm(jnp.moveaxis(found, 0, -3))

    def output(self, hidden: Float[Array, "*B Q D"], *, key: PRNGKeyArray | None = None) -> DetrOutput:
        """Score the classes and place the boxes, in float32 or more, from the states of queries.

        Raises:
          ValueError: a model without heads.
        """
        if self.cfg.classes is None:
            raise ValueError("objects are found by a model with heads, got one of classes=None")
        hidden = widen(hidden)
        return DetrOutput(self.scores(hidden), jax.nn.sigmoid(self.boxes(hidden)))

    def over_patches(self, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one image [height, width] over its places.

        First the encoder's, then what the queries of the decoder, which stand at no place, see of its memory.
        """
        cfg, stride = self.cfg, self.cfg.backbone.stride
        position_embedding = Tiles(Grid(-(-height // stride), -(-width // stride)), (stride, stride))
        queries = Tiles(Grid(0, 0), (1, 1), tuple(f"query {i + 1}" for i in range(cfg.queries)))
        values = iter(found)
        (encoder,) = by_stack(values, (cfg.encoder.depth,))
        (decoder,) = by_stack(list(values)[1::2], (cfg.decoder.depth,))  # a layer's queries see each other first
        return [
            PatchAttention("encoder", encoder[:, 0], position_embedding, position_embedding),
            PatchAttention("decoder", decoder[:, 0], queries, position_embedding),
        ]


class QueryHead(Module):
    """Two dense layers of the model's width and one of other numbers: a box, or what a mask is multiplied from."""

    def __init__(self, embed: int, outputs: int, *, precision: Precision, rngs: nnx.Rngs):
        def linear(outputs: int, rngs: nnx.Rngs) -> Linear:
            kinds = {"dtype": at_least_float32(precision.compute), "param_dtype": jnp.dtype(precision.params)}
            return Linear(embed, outputs, dot_general=Product(), rngs=rngs, **kinds)

        self.dense = init_stack(lambda rngs: linear(embed, rngs), 2, key=rngs.params())
        self.output = linear(outputs, rngs)

    def __call__(self, hidden: Float[Array, "*B D"]) -> Float[Array, "*B E"]:
        """Return numbers without bounds."""
        for i in range(2):
            hidden = jax.nn.relu(layer(self.dense, i)(hidden))
        return self.output(hidden)


def detr_resnet50(
    classes: int = 91, *, queries: int = 100, dropout: float = 0.1, precision: Precision = FLOAT32
) -> DetrConfig:
    """Return DETR on ResNet-50: 6 + 6 layers, D=256, 41.5 M parameters with those that are frozen."""

    def trunk(cross: bool) -> TrunkConfig:
        block = detr_block(embed=256, heads=8, inner=2048, dropout=dropout, cross=cross, precision=precision)
        return TrunkConfig(block=block, depth=6)

    return DetrConfig(
        backbone=ResNetConfig(frozen=True, precision=precision), encoder=trunk(False), decoder=trunk(True),
        queries=queries, classes=classes, dropout=dropout, precision=precision,
    )  # fmt: skip
