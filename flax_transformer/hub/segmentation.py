"""What checkpoints of semantic segmentation have in common: the heads on feature maps, and how they are called.

Axes: B images, E classes, I J height and width of the finest feature map.
"""

from typing import Any

from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.feature_map import channels_first, states_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import IMAGES, Inputs
from flax_transformer.hub.table import Table, batch_norm, conv
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.segmenter import Segmenter, SegmenterConfig
from flax_transformer.models.vision.uper_head import ConvHeadConfig, UPerHeadConfig
from flax_transformer.ops import bilinear, resample

MOST = 8
"""As many feature maps, pools and convolutions as a checkpoint may have."""
AUXILIARY = 2
"""Which map the auxiliary head is on."""


def with_heads(backbone: BackboneConfig, fields: Fields, channels: tuple[int, ...], embed: int) -> SegmenterConfig:
    """Put the heads of config.json on feature maps.

    Args:
      channels: of the maps.
      embed: width of what the head makes of them.

    Raises:
      ValueError: an auxiliary head on a third map, where there are fewer, or of another width than that map's.
    """
    pools = fields.get("pool_scales", [1, 2, 3, 6])
    if not isinstance(pools, list) or not all(type(pool) is int and pool > 0 for pool in pools):
        raise ValueError(f"config.json must give pool_scales as a list of numbers from 1 on, it is {pools!r:.80}")
    like = {"outputs": fields.labels, "init_std": fields.number("initializer_range", 0.02)}
    head = UPerHeadConfig(channels=channels, embed=embed, pools=tuple(pools), **like)
    if not fields.flag("use_auxiliary_head", True):
        return SegmenterConfig(backbone=backbone, head=head)
    if len(channels) <= AUXILIARY:
        raise ValueError(f"an auxiliary head is on the third feature map, config.json names {len(channels)}")
    width = channels[AUXILIARY]
    if (given := fields.integer("auxiliary_in_channels", None)) not in (None, width):
        raise ValueError(f"config.json must give auxiliary_in_channels as the third map has, {width}, it is {given}")
    auxiliary = ConvHeadConfig(
        channels=width, level=AUXILIARY, embed=fields.integer("auxiliary_channels", 256),
        depth=fields.integer("auxiliary_num_convs", 1), concat=fields.flag("auxiliary_concat_input", False), **like,
    )  # fmt: skip
    return SegmenterConfig(backbone=backbone, head=head, auxiliary=auxiliary)


def write_heads(config: SegmenterConfig) -> dict[str, Any]:
    """Write the fields of config.json that say the same of both heads."""
    said, auxiliary = {"pool_scales": list(config.head.pools)}, config.auxiliary
    if auxiliary is None:
        return {**said, "use_auxiliary_head": False}
    return {
        **said, "use_auxiliary_head": True, "auxiliary_channels": auxiliary.embed,
        "auxiliary_num_convs": auxiliary.depth, "auxiliary_concat_input": auxiliary.concat,
    }  # fmt: skip


def head_rows(normalization: str) -> Table:
    """Return the rows of both heads.

    Args:
      normalization: what a batch norm is called.
    """

    def layer(ours: str, theirs: str) -> Table:
        return conv(f"{ours}.convolution", f"{theirs}.conv") + batch_norm(f"{ours}.norm", f"{theirs}.{normalization}")

    head, beside = "decode_head", "auxiliary_head"
    rows = layer("head.bottleneck", f"{head}.bottleneck") + layer("head.fuse", f"{head}.fpn_bottleneck")
    rows += layer("auxiliary_head.fuse", f"{beside}.conv_cat")
    for i in range(MOST):
        rows += layer(f"head.pool{i}", f"{head}.psp_modules.{i}.1")
        rows += layer(f"head.lateral{i}", f"{head}.lateral_convs.{i}")
        rows += layer(f"head.smooth{i}", f"{head}.fpn_convs.{i}")
        rows += layer(f"auxiliary_head.conv{i}", f"{beside}.convs.{i}")
    rows += conv("head.output", f"{head}.classifier", ones=2)
    return rows + conv("auxiliary_head.output", f"{beside}.classifier", ones=2)


def segmented(model: Segmenter, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score the classes of each place of the finest feature map, as BeitForSemanticSegmentation does."""
    return _output(*model.both(images_of(inputs), key=key))


def segmented_pixels(model: Segmenter, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score the classes of each pixel, as UperNetForSemanticSegmentation does."""
    images = images_of(inputs)
    logits, beside = model.both(images, key=key)
    return _output(resample(logits, images.shape[-3:-1], kernel=bilinear), beside)


def _output(logits: Array, beside: Array | None) -> ModelOutput:
    beside = None if beside is None else channels_first(beside)
    return ModelOutput(logits=channels_first(logits), auxiliary_logits=beside)


SEGMENTER = {
    "uses": ("image-segmentation",), "inputs": IMAGES, "marks": ("stage_states",), "layers": states_of,
}  # fmt: skip
"""How an `Architecture` says so."""
