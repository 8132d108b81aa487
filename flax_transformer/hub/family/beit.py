"""BEiT checkpoints (Bao et al. 2021)."""

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.config import ConfigTable, choice, sides
from flax_transformer.hub.family import vit
from flax_transformer.hub.feature_map import backbone, bare, read_stages, write_stages
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import settle_pooler
from flax_transformer.hub.image_call import LAYERS, MASKABLE, image_classifier, pooled_image
from flax_transformer.hub.inputs import IMAGES
from flax_transformer.hub.positions import fitted_biases
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.segmentation import MOST, SEGMENTER, head_rows, segmented, with_heads, write_heads
from flax_transformer.hub.table import batch_norm, conv, linear, norm, parameter, under
from flax_transformer.hub.weights import renames
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.beit import BeitConfig, beit_base_patch16
from flax_transformer.models.vision.segmenter import SegmenterConfig
from flax_transformer.models.vision.uper_head import FourSizesConfig
from flax_transformer.nn import GridBiasConfig, with_fields


def _parts(fields: Fields) -> dict[str, Any]:
    """Find where there are biases for distances, in every layer, shared by all, or both, and whether LayerScale is."""
    (height, width), (high, wide) = (sides("").read(fields, name) for name in ("image_size", "patch_size"))
    if min(high, wide) < 1 or height < high or width < wide:
        raise ValueError(f"config.json must give an image_size that holds a patch, got {height}×{width}, {high}×{wide}")
    grid, heads = (height // high, width // wide), fields.integer("num_attention_heads")
    table = GridBiasConfig(grid=grid, heads=heads, token=True)
    own, shared = (
        table if fields.flag(f"use_{kind}relative_position_bias", False) else None for kind in ("", "shared_")
    )
    scale = fields.number("layer_scale_init_value", 0.1)
    return {"attention.relative": own, ".shared": shared, "layer_scale": scale or None}


def _said(config: BeitConfig) -> dict[str, Any]:
    return {
        "use_relative_position_bias": config.block.attention.relative is not None,
        "use_shared_relative_position_bias": config.shared is not None,
        "layer_scale_init_value": float(config.block.residual.layer_scale or 0),
    }


CONFIG = ConfigTable(
    with_fields(beit_base_patch16().backbone, relative=None),
    {
        **{name: ours for name, ours in vit.CONFIG.rows.items() if name != "qkv_bias"},
        "drop_path_rate": ".drop_path",
        "use_absolute_position_embeddings": choice(".position", {True: "learned", False: "none"}),
        "use_mask_token": ".mask_token",
        "use_mean_pooling": choice(".norm", {True: "none", False: "end"}),
    },
    reads=_parts,
    writes=_said,
)
read = CONFIG.read


def _pooled(config: BeitConfig, outputs: int) -> ClassifierConfig:
    if config.norm == "end":
        return with_head(config, outputs=outputs, pool="first")
    return with_head(config, outputs=outputs, pool="mean", skip=1, norm=config.block.residual.norm_eps)


def _model(fields: Fields) -> ClassifierConfig:
    config = _pooled(read(fields), 0)
    return config if fields.flag("has_pooler", True) else replace(config, head=replace(config.head, norm=None))


def _write_pooler(config: ClassifierConfig) -> dict[str, Any]:
    return {"has_pooler": False} if config.head.norm is None and not config.backbone.end_norm else {}


def _settled(fields: Fields, names: Collection[str]) -> Fields:
    """Return whether there is a pooler; one that takes the first state has no tensors, and is there."""
    return fields if read(fields).end_norm else settle_pooler("BeitModel", fields, names)


def _classifying(fields: Fields) -> ClassifierConfig:
    return _pooled(read(fields), fields.labels)


def _naming(fields: Fields) -> ClassifierConfig:
    """Put a norm and a layer on every patch that tells which word of an image's vocabulary it is."""
    config = read(fields)
    eps, vocab = config.block.residual.norm_eps, fields.integer("vocab_size", 8192)
    return with_head(config, outputs=vocab, pool="every", skip=1, norm=eps)


def _write_words(config: ClassifierConfig) -> dict[str, Any]:
    return {"vocab_size": config.head.outputs}


def _four(stages: tuple[int, ...], fields: Fields, least: int) -> tuple[int, ...]:
    if len(stages) != 4 or stages[0] < least:
        raise ValueError(
            f"of a BEiT a pyramid is made of four feature maps from number {least} on, config.json names "
            f"{fields.get('out_features') or fields.get('out_indices') or 'none'}"
        )
    return stages


def _pyramid(config: BeitConfig) -> FourSizesConfig:
    return FourSizesConfig(embed=config.block.embed, init_std=config.patches.init_std)


def _segmenting(fields: Fields) -> SegmenterConfig:
    """Put heads on four layers, of which number i is what layer i is given, and not what it gives."""
    if fields.get("out_features") is None and fields.get("out_indices") is None:
        fields = fields.updated({"out_indices": fields.get("segmentation_indices") or [3, 5, 7, 11]})
    network = read(fields)
    stages = tuple(stage - 1 for stage in _four(read_stages(fields, network.depth), fields, 1))
    backbone, embed = BackboneConfig(backbone=network, stages=stages, neck=_pyramid(network)), network.block.embed
    return with_heads(backbone, fields, (embed,) * 4, embed)


def _write_segmenter(config: SegmenterConfig) -> dict[str, Any]:
    stages = tuple(stage + 1 for stage in config.backbone.stages)
    return {**write_stages(stages, config.backbone.backbone.depth), **write_heads(config)}


def _feature_maps() -> Architecture:
    """Return a BEiT that gives feature maps, of which a pyramid may be made."""
    plain = backbone(
        read, lambda config: config.depth, tokens=True, ignored=(*LARGER, *SEGMENTING[:1])
    )  # fmt: skip

    def config(fields: Fields) -> BackboneConfig:
        found = plain.config(fields)
        if not fields.flag("add_fpn", False):
            return found
        return replace(found, stages=_four(found.stages, fields, 0), neck=_pyramid(found.backbone))

    def writes(config: BackboneConfig) -> dict[str, Any]:
        return {**plain.writes(config), "add_fpn": config.neck is not None}

    return replace(plain, config=config, writes=writes, head=plain.head + under(PYRAMID, "neck.", ""))


LAYER = "encoder.layer.{}"
BIASES = "relative_position_bias.relative_position_bias_table"
_fit = fitted_biases(vit.grid, tokens=3)
_scales = tuple(
    row
    for number, ours in enumerate(("attention", "feedforward"), 1)
    for row in parameter(f"trunk.blocks.{ours}_residual.layer_scale", f"{LAYER}.lambda_{number}")
)
TABLE = (
    *vit.EMBEDDINGS,
    *vit.MASK_TOKEN,
    *norm("trunk.blocks.attention_residual.norm", f"{LAYER}.layernorm_before"),
    *vit.attention("trunk.blocks.attention.attention", f"{LAYER}.attention"),
    *parameter("trunk.blocks.attention.relative.table", f"{LAYER}.attention.attention.{BIASES}", fit=_fit),
    *norm("trunk.blocks.feedforward_residual.norm", f"{LAYER}.layernorm_after"),
    *linear("trunk.blocks.feedforward.up", f"{LAYER}.intermediate.dense"),
    *linear("trunk.blocks.feedforward.down", f"{LAYER}.output.dense"),
    *_scales,
    *parameter("shared.table", f"encoder.{BIASES}", fit=_fit),
    *norm("trunk.norm", "layernorm"),
)
PYRAMID = (
    *conv("quadruple_conv1", "fpn1.0", transposed=True),
    *batch_norm("quadruple_norm", "fpn1.1"),
    *conv("quadruple_conv2", "fpn1.3", transposed=True),
    *conv("double_conv", "fpn2.0", transposed=True),
)
HEAD_MODULES = {
    "fpn1.0": "fpn.fpn1.conv_transpose1",
    "fpn1.1": "fpn.fpn1.normalization",
    "fpn1.3": "fpn.fpn1.conv_transpose2",
    "fpn2.0": "fpn.fpn2",
    "decode_head.bottleneck": "decode_head.psp_bottleneck",
    **{f"decode_head.psp_modules.{i}.1": f"decode_head.psp_modules.blocks.{i}.conv" for i in range(MOST)},
}
"""Modules of the heads of segmentation, by their names in files and in transformers 5."""
RENAMED = {
    **renames({new: old for old, new in HEAD_MODULES.items()}),
    r"^((?:decode|auxiliary)_head\..*)\.convolution\.": r"\1.conv.",
    r"^((?:decode|auxiliary)_head\..*)\.normalization\.": r"\1.bn.",
    r"(^|\.)shared_position_bias\.": r"\1encoder.relative_position_bias.",
    r"(layers\.\d+)\.relative_position_bias\.": r"\1.attention.attention.relative_position_bias.",
    **vit.RENAMED,
}
MODULES = {
    **renames(HEAD_MODULES),
    r"^((?:decode|auxiliary)_head\..*)\.conv\.(?=\w+$)": r"\1.convolution.",
    r"^((?:decode|auxiliary)_head\..*)\.bn\.": r"\1.normalization.",
    **vit.MODULES,
}
"""The same, the other way."""
LARGER = (r"^(beit\.)?pooler\.", r"^classifier\.", r"^lm_head\.", r"^layernorm\.")
SEGMENTING = (r"^(decode_head|auxiliary_head)\.", r"^fpn\d?\.")

FAMILIES = {
    "beit": Family(
        model_type="beit",
        architectures={
            "BeitModel": Architecture(
                _model, pooled_image, norm("head.norm", "pooler.layernorm"), _write_pooler, at="backbone.",
                base=True, ignored=(*LARGER[:3], *SEGMENTING), uses=("feature-extraction",), inputs=MASKABLE, **LAYERS,
            ),
            "BeitForImageClassification": Architecture(
                _classifying, image_classifier, (*norm("head.norm", "beit.pooler.layernorm"), *vit.CLASSIFIER),
                at="backbone.", ignored=(*LARGER[2:], *SEGMENTING), uses=("classification",), inputs=IMAGES, **LAYERS,
            ),
            "BeitForMaskedImageModeling": Architecture(
                _naming, image_classifier, (*norm("head.norm", "layernorm"), *linear("head.output", "lm_head")),
                _write_words, at="backbone.", ignored=(*LARGER[:2], *SEGMENTING), uses=("fill-mask",),
                inputs=MASKABLE, **LAYERS,
            ),
            "BeitForSemanticSegmentation": Architecture(
                _segmenting, segmented, (*under(PYRAMID, "backbone.neck.", ""), *head_rows("bn")), _write_segmenter,
                at="backbone.backbone.", ignored=LARGER, **SEGMENTER,
            ),
            "BeitBackbone": _feature_maps(),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="beit.",
        ignored=(r"relative_position_index$",),
        renamed=RENAMED,
        modules=MODULES,
        spelled=partial(bare, r"^beit\.(?=encoder\.layer\.|embeddings\.)"),
        settled=_settled,
    )
}  # fmt: skip
