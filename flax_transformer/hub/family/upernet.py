"""UperNet checkpoints (Xiao et al. 2018): heads of semantic segmentation on the feature maps of another family."""

import re
from dataclasses import replace
from functools import cache
from typing import Any

from flax_transformer.hub.config_diff import config_diff
from flax_transformer.hub.family import convnext, resnet, swin
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.segmentation import SEGMENTER, head_rows, segmented_pixels, with_heads, write_heads
from flax_transformer.hub.table import under
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.segmenter import SegmenterConfig
from flax_transformer.models.vision.swin import SwinConfig

BACKBONES = {
    "convnext": (convnext.FAMILIES["convnext"], "ConvNextBackbone"),
    "swin": (swin.FAMILIES["swin"], "SwinBackbone"),
    "resnet": (resnet.FAMILIES["resnet"], "ResNetBackbone"),
}
"""Families that give the feature maps, and the class of each that does."""


def inside(fields: Fields) -> Fields:
    """Return the config.json of the backbone.

    Raises:
      ValueError: what is no object, or of a family that cannot stand there.
    """
    found = fields.get("backbone_config")
    if not isinstance(found, dict):
        raise ValueError(f"config.json must give backbone_config as an object, it is {found!r:.40}")
    if (kind := found.get("model_type")) not in BACKBONES:
        raise ValueError(
            f"config.json has backbone_config.model_type={kind!r}; supported there are {', '.join(BACKBONES)}"
        )
    return Fields.of(found)


def read_backbone(found: Fields) -> BackboneConfig:
    """Read a backbone; of a Swin without the norm at its end, which old files lack."""
    family, name = BACKBONES[found["model_type"]]
    config = family.architectures[name].config(found)
    network = config.backbone
    return replace(config, backbone=replace(network, end_norm=False)) if isinstance(network, SwinConfig) else config


def read(fields: Fields) -> SegmenterConfig:
    """Make our config of config.json's fields."""
    backbone = read_backbone(inside(fields))
    channels = tuple(backbone.backbone.stage_widths[stage] for stage in backbone.stages)
    return with_heads(backbone, fields, channels, fields.integer("hidden_size", 512))


def write(config: BackboneConfig) -> dict[str, Any]:
    """Write config.json's fields of the backbone.

    Raises:
      ValueError: one that is of no family.
    """
    for kind, (family, name) in BACKBONES.items():
        known = family.architectures[name]
        try:
            said = {"model_type": kind, **family.write(config.backbone), **known.writes(config)}
            if not config_diff(config, read_backbone(Fields.of(said))):
                return {"backbone_config": said}
        except (AttributeError, TypeError, ValueError):
            continue  # of another family
    raise ValueError(f"the backbone must be one of {', '.join(BACKBONES)}, got {type(config.backbone).__name__}")


def _write_heads(config: SegmenterConfig) -> dict[str, Any]:
    return {**write_heads(config), "hidden_size": config.head.embed}


def with_backbone(family: Family, fields: Fields, prefix: str) -> Family:
    """Return a family of checkpoints on this backbone.

    Args:
      family: whose table is empty.
      prefix: before the names of the backbone's tensors.
    """
    inner, name = BACKBONES[inside(fields)["model_type"]]
    rows, begin = (replace(row, fit=None) for row in under(inner.table, "backbone.", "")), re.escape(prefix)
    return replace(
        family,
        table=(*rows, *inner.architectures[name].head),
        ignored=(*family.ignored, *inner.ignored, rf"^{begin}(swin\.)?layernorm\."),
        renamed={rf"^{begin}swin\.(?=embeddings\.|encoder\.)": prefix, **family.renamed, **inner.renamed},
        modules={**family.modules, **inner.modules, **_nested(inner.model_type, begin, prefix)},
    )


def _nested(kind: str, begin: str, prefix: str) -> dict[str, str]:
    """Return how modules of a Swin lie in a backbone of `transformers` 5: in one more, which files do not name."""
    return {rf"^{begin}(?=embeddings\.|encoder\.)": f"{prefix}swin."} if kind == "swin" else {}


@cache
def composed(fields: Fields) -> Family:
    """Return the family of checkpoints with this backbone."""
    return with_backbone(FAMILIES["upernet"], fields, "backbone.")


FAMILIES = {
    "upernet": Family(
        model_type="upernet",
        architectures={
            "UperNetForSemanticSegmentation": Architecture(
                read, segmented_pixels, head_rows("batch_norm"), _write_heads, at="backbone.", **SEGMENTER
            )
        },
        table=(),
        write=write,
        prefix="backbone.",
        composed=composed,
    )
}
