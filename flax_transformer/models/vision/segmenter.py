"""Semantic segmentation: the class of every pixel, of the feature maps of any network of images.

Axes: B batch, H W height and width in pixels, C channels, I J height and width of the finest feature map, D width, E
classes.
"""

from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import ReadsImages
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.uper_head import ConvHeadConfig, MLPHeadConfig, UPerHeadConfig
from flax_transformer.nn.batch_norm import by_batch, by_running
from flax_transformer.nn.config import check_fields, check_rates
from flax_transformer.nn.module import Module
from flax_transformer.ops import dropout
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.train.carry import statistics_of


@frozen
class SegmenterConfig:
    """A network of images, a head on some of its feature maps, and perhaps another that helps in training."""

    backbone: BackboneConfig
    """The network, and which of its maps are given."""
    head: UPerHeadConfig | MLPHeadConfig
    """What scores the classes by all of them."""
    auxiliary: ConvHeadConfig | None = None
    """What scores them by one, which is of use in training alone; None: there is none."""
    dropout: float = 0.0
    """Of the head's features, before classes are scored."""

    def __post_init__(self):
        check_fields(self)
        check_rates(self, "dropout")
        maps = len(self.backbone.stages)
        if len(self.head.channels) != maps or (self.auxiliary is not None and self.auxiliary.level >= maps):
            raise ValueError(
                f"heads must be of the {maps} maps that the backbone gives, got one of {len(self.head.channels)}"
                + ("" if self.auxiliary is None else f" and one of map {self.auxiliary.level}")
            )

    @property
    def classes(self) -> int:
        """E."""
        return self.head.outputs

    def build(self, rngs: nnx.Rngs) -> "Segmenter":
        """Make the model."""
        return Segmenter(self, rngs=rngs)


class Segmenter(Module):
    """Scores of classes on a grid: `segmenter(images)`, which `ops.resample` brings to the size of the images.

    `observe` gives new batch statistics beside the hidden states, as `objective.BatchStatistics` trains by it.
    """

    layer_order = (Part("backbone"), "auxiliary_head", "head")

    use = "image-segmentation"

    @classmethod
    def example_batch(cls, config: SegmenterConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as the backbone's."""
        return module_of(config.backbone).example_batch(config.backbone, rows, length)

    @classmethod
    def describe_batch(cls, config: SegmenterConfig, batch: dict[str, Any]) -> Described:
        """Count B images."""
        return ReadsImages.describe_batch(config.backbone, batch)

    def __init__(self, cfg: SegmenterConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.backbone, self.head = cfg.backbone.build(rngs), cfg.head.build(rngs)
        if cfg.auxiliary is not None:
            self.auxiliary_head = cfg.auxiliary.build(rngs)

    def hidden_states(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B I J D"]:
        """Compute the features of the places of the finest map, by the running statistics.

        Args:
          key: for dropout and stochastic depth; None means none.
        """
        return self.head(self.backbone(images, key=key), by_running)[0]

    def observe(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "*B I J D"], dict[str, Any]]:
        """Compute them by the statistics of the batch; give the new running ones beside, of the auxiliary head too.

        Batch norms of the network itself, a ResNet's, stay as they are, as a detector's do.
        """
        maps, below = self.backbone.maps(images, by_batch, key=key)
        below = {**below, "backbone": statistics_of(self.backbone.backbone)}
        hidden, new = self.head(maps, by_batch)
        beside = {} if self.cfg.auxiliary is None else {"auxiliary_head": self.auxiliary_head(maps, by_batch)[1]}
        return hidden, {"backbone": below, "head": new, **beside}

    def output(self, hidden: Float[Array, "*B I J D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B I J E"]:
        """Score classes; a key is for dropout, None means none."""
        return self.head.output(dropout(hidden, self.cfg.dropout, key))

    def both(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "*B I J E"], Float[Array, "..."] | None]:
        """Score classes by the head, and by the auxiliary one on its own map, [*B, I, J, E]; None without one."""
        keys = split_keys(key)
        maps = self.backbone(images, key=keys[0])
        beside = self.auxiliary_head.output(self.auxiliary_head(maps, by_running)[0]) if self.cfg.auxiliary else None
        return self.output(self.head(maps, by_running)[0], key=keys[1]), beside

    def __call__(
        self, images: Float[Array, "*B H W C"], *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B I J E"]:
        """Score the classes of each place; arguments as of `hidden_states`."""
        keys = split_keys(key)
        return self.output(self.hidden_states(images, key=keys[0]), key=keys[1])
