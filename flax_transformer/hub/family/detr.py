"""DETR checkpoints (Carion et al. 2020), on ResNets: of transformers' own names, or of timm's, which old files have."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import jax
from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of, layers_of
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import resnet
from flax_transformer.hub.feature_map import read_stages, stage_names, write_stages
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.seq2seq_side import SIDES
from flax_transformer.hub.table import conv, linear, norm, parameter, under
from flax_transformer.hub.weights import renames
from flax_transformer.models.preset import abstract
from flax_transformer.models.vision.detr import Detr, DetrConfig, detr_resnet50
from flax_transformer.models.vision.detr_mask import REFINED, MaskDetr, MaskDetrConfig
from flax_transformer.models.vision.resnet import ResNetConfig
from flax_transformer.ops.split_keys import split_keys

MASKS = "DetrForSegmentation"
"""The class that finds masks, for which the backbone gives finer feature maps too."""
NARROW, WIDE = [64, 128, 256, 512], [256, 512, 1024, 2048]
TIMM = {
    "resnet18": ("basic", NARROW, [2, 2, 2, 2]),
    "resnet34": ("basic", NARROW, [3, 4, 6, 3]),
    "resnet50": ("bottleneck", WIDE, [3, 4, 6, 3]),
    "resnet101": ("bottleneck", WIDE, [3, 4, 23, 3]),
    "resnet152": ("bottleneck", WIDE, [3, 8, 36, 3]),
}
"""What timm's names mean: kind of the blocks, widths and depths."""


def read_backbone(fields: Fields) -> Mapping[str, Any]:
    """Read the network that gives feature maps.

    Raises:
      ValueError: for one that is no ResNet, or whose last feature map is not what the encoder is given.
    """
    data = described(fields)
    kind = data.get("model_type")
    if kind != "resnet":
        raise ValueError(f"config.json must have a backbone_config with model_type 'resnet', it is {kind!r}")
    backbone = replace(resnet.CONFIG.read(Fields.of(data)), frozen=True, dilated=dilates(fields))
    stages = len(backbone.depths)
    features, indices = data.get("out_features"), data.get("out_indices")
    if (features and features[-1] != f"stage{stages}") or (indices and indices[-1] not in (-1, stages)):
        raise ValueError(f"a backbone must end with its last stage, {stages}, got {features or indices}")
    return {"backbone": backbone}


def named(fields: Fields) -> Mapping[str, Any] | None:
    """Return the name and options of a backbone of timm's; None where config.json describes the backbone itself.

    Raises:
      ValueError: for a backbone that is neither.
    """
    data = fields.get("backbone_config")
    if isinstance(data, dict):
        return data if data.get("model_type") == "timm_backbone" else None
    if fields.get("use_timm_backbone") is False:
        raise ValueError(f"config.json must describe the backbone, it has backbone_config={data!r}")
    stride, more = {"output_stride": 16} if fields.flag("dilation", False) else {}, fields.get("backbone_kwargs")
    return {"backbone": fields.get("backbone") or "resnet50", **stride, **(more if isinstance(more, dict) else {})}


def dilates(fields: Fields) -> bool:
    """Read whether the last stage dilates its windows in place of a stride (DC5), as a backbone of timm's may.

    Raises:
      ValueError: for a stride of feature maps that is not supported, or for another backbone than timm's.
    """
    timm = named(fields)
    if timm is None and fields.flag("dilation", False):
        raise ValueError("dilation is of a backbone that timm names, config.json has dilation=true beside a ResNet")
    stride = None if timm is None else timm.get("output_stride")
    if stride not in (None, 16, 32):
        raise ValueError(f"config.json has output_stride={stride!r} for the backbone; supported are 16 and 32")
    return stride == 16


def described(fields: Fields) -> Mapping[str, Any]:
    """Return the description of the backbone, also of one that is only named, as timm names it.

    Raises:
      ValueError: for a name that is not known here.
    """
    timm = named(fields)
    if timm is None:
        return fields["backbone_config"]
    name = timm.get("backbone")
    if not isinstance(name, str) or name not in TIMM:
        raise ValueError(f"config.json has the backbone {name!r}; supported are {', '.join(TIMM)}")
    block, widths, depths = TIMM[name]
    return {
        "model_type": "resnet", "layer_type": block, "hidden_sizes": widths, "depths": depths,
        "num_channels": fields.get("num_channels", 3),
        "out_features": stage_names(len(depths))[1 if fields.get("architectures") == [MASKS] else -1 :],
    }  # fmt: skip


def settled(fields: Fields, names: Collection[str]) -> Fields:
    """Describe a backbone that config.json only names, so that what is saved opens without timm, where it can.

    One that dilates stays timm's: ResNets of transformers do not.
    """
    if named(fields) is None or dilates(fields):
        return fields
    return fields.updated({"backbone_config": described(fields), "use_timm_backbone": False, "backbone": None})


def spelled(name: str, fields: Fields) -> str:
    """Name a tensor as timm does, for a backbone that is saved as one of timm's."""
    if BACKBONE in name and dilates(fields):
        for ours, timm in (*PARTS.items(), *LAYERS.items()):
            name = name.replace(f".{ours}.", f".{timm}.")
    return name


def write_rest(config: DetrConfig) -> dict[str, Any]:
    """Write the network that gives feature maps, and how many classes there are.

    Raises:
      ValueError: for one that is no ResNet with batch norms that stay as they are.
    """
    backbone = config.backbone
    if not isinstance(backbone, ResNetConfig) or not backbone.frozen:
        raise ValueError("a DETR's backbone must be a ResNet whose batch norms are frozen, got another")
    labels = {} if config.classes is None else {"num_labels": config.classes}
    return {**write_backbone(backbone), "num_channels": backbone.channels, **labels}


def write_backbone(backbone: ResNetConfig) -> dict[str, Any]:
    """Describe a backbone, or name it as timm does if it dilates.

    Raises:
      ValueError: for one that dilates and that timm has no name for.
    """
    if not backbone.dilated:
        last = {"model_type": "resnet", "out_features": [f"stage{len(backbone.depths)}"]}
        return {"backbone_config": {**resnet.CONFIG.write(backbone), **last}, "use_timm_backbone": False}
    for name, (block, widths, depths) in TIMM.items():
        like = ResNetConfig(block=block, widths=tuple(widths), depths=tuple(depths), channels=backbone.channels)
        if resnet.CONFIG.write(like) == resnet.CONFIG.write(backbone):
            return {"backbone_config": None, "use_timm_backbone": True, "backbone": name, "dilation": True}
    raise ValueError(f"a backbone that dilates must be one of {', '.join(TIMM)}, got another")


CONFIG = ConfigTable(
    detr_resnet50(),
    {
        "d_model": "embed",
        "encoder_layers": "encoder.depth",
        "decoder_layers": "decoder.depth",
        "encoder_attention_heads": "encoder.heads",
        "decoder_attention_heads": "decoder.heads",
        "encoder_ffn_dim": "encoder.inner",
        "decoder_ffn_dim": "decoder.inner",
        "num_queries": "queries",
        "activation_function": ("encoder.activation", "decoder.activation"),
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation_dropout": "activation_dropout",
    },
    only={
        "position_embedding_type": "sine", "auxiliary_loss": False, "encoder_layerdrop": 0.0,
        "decoder_layerdrop": 0.0,
    },
    adds={"is_encoder_decoder": True},
    reads=read_backbone,
    writes=write_rest,
)  # fmt: skip


def read(fields: Fields) -> DetrConfig:
    """Make our config of config.json's fields."""
    return replace(CONFIG.read(fields), classes=fields.labels)


def read_masked(fields: Fields) -> MaskDetrConfig:
    """Make the config of what finds masks.

    Raises:
      ValueError: fewer feature maps than masks are refined by.
    """
    found = read(fields)
    given = described(fields) if named(fields) is None else {"out_indices": [1, 2, 3, 4]}
    stages = read_stages(Fields.of(given), len(found.backbone.depths))
    if len(stages) < REFINED:
        raise ValueError(f"masks are refined by three feature maps of the backbone, config.json names {len(stages)}")
    values = {each.name: getattr(found, each.name) for each in dataclasses.fields(found)}
    return MaskDetrConfig(**values, stages=stages[:REFINED])


def write_masked(config: MaskDetrConfig) -> dict[str, Any]:
    """Write which feature maps the backbone gives; one that timm names gives all."""
    said, last = write_backbone(config.backbone), len(config.backbone.depths)
    if config.backbone.dilated:
        return said
    names = write_stages((*config.stages, *{last} - {*config.stages}), last)
    return {**said, "backbone_config": {**said["backbone_config"], **names}}


def read_headless(fields: Fields) -> DetrConfig:
    """Make the config of what gives hidden states alone."""
    return replace(CONFIG.read(fields), classes=None)


def adopt(model: Any) -> Any:
    """Freeze the batch norms of a model, as those of every checkpoint are; it computes the same."""
    config = getattr(model, "cfg", None)
    if not isinstance(config, DetrConfig) or not isinstance(config.backbone, ResNetConfig) or config.backbone.frozen:
        return model
    like = abstract(replace(config, backbone=replace(config.backbone, frozen=True)))
    return jax.tree.unflatten(jax.tree.structure(like), jax.tree.leaves(model))


def hidden(model: Detr, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states of both sides."""
    keys, images, mask = split_keys(key), images_of(inputs), inputs.pixel_mask
    mask = None if mask is None else mask != 0
    memory, *beside = model.encode(model.backbone.feature_map(images), images.shape[-3:-1], mask, key=keys[0])
    states = model.decode(memory, *beside, key=keys[1])
    return ModelOutput(last_hidden_state=states[..., -1, :, :], encoder_last_hidden_state=memory)


def detector(model: Detr, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Find objects, as DetrForObjectDetection does."""
    found = hidden(model, inputs, key, fields)
    answers = model.output(found.last_hidden_state)
    return replace(found, logits=answers.logits, pred_boxes=answers.boxes)


def segmenter(model: MaskDetr, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Find objects and their masks, as DetrForSegmentation does."""
    mask = None if inputs.pixel_mask is None else inputs.pixel_mask != 0
    hidden, memory, masks = model.segment(images_of(inputs), mask, key=key)
    answers = model.output(hidden)
    return ModelOutput(
        logits=answers.logits, pred_boxes=answers.boxes, pred_masks=masks, last_hidden_state=hidden,
        encoder_last_hidden_state=memory,
    )  # fmt: skip


def layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name what the layers of both sides are given; the stages of the backbone, which come before, are left out."""
    return layers_of({**seen, "hidden_states": seen["hidden_states"][-2:]} if "hidden_states" in seen else seen, output)


PREFIX = "model."
BACKBONE = "backbone.conv_encoder.model."
TABLE = (
    *under(resnet.table(counted=False), "backbone.", BACKBONE),
    *conv("project", "input_projection"),
    *parameter("queries", "query_position_embeddings.weight"),
    *SIDES,
    *norm("norm", "decoder.layernorm"),
)
HEADS = (
    *linear("scores.output", "class_labels_classifier"),
    *linear("boxes.dense", "bbox_predictor.layers.{}"),
    *linear("boxes.output", "bbox_predictor.layers.2"),
)
MASK_HEAD = (
    *linear("mask_head.query", "bbox_attention.q_linear"),
    *linear("mask_head.key", "bbox_attention.k_linear"),
    *(row for i in range(5) for row in conv(f"mask_head.conv{i}", f"mask_head.lay{i + 1}")),
    *(row for i in range(5) for row in norm(f"mask_head.norm{i}", f"mask_head.gn{i + 1}")),
    *(row for i in range(REFINED) for row in conv(f"mask_head.adapt{i}", f"mask_head.adapter{i + 1}")),
    *conv("mask_head.output", "mask_head.out_lay"),
)
PARTS = {
    "embedder.embedder.convolution": "conv1", "embedder.embedder.normalization": "bn1",
    **{f"encoder.stages.{i}.layers": f"layer{i + 1}" for i in range(4)},
}  # fmt: skip
LAYERS = {
    **{f"layer.{i}.convolution": f"conv{i + 1}" for i in range(3)},
    **{f"layer.{i}.normalization": f"bn{i + 1}" for i in range(3)},
    "shortcut.convolution": "downsample.0", "shortcut.normalization": "downsample.1",
}  # fmt: skip
"""Names of a ResNet's parts, and of the layers of its blocks, and timm's."""
LARGER = (r"^class_labels_classifier\.", r"^bbox_predictor\.")
ROOT = r"(^|\.)backbone\.(?:conv_encoder\.)?model\."
MASK_MODULES = {
    **{f"bbox_attention.{each}_linear": f"bbox_attention.{each}_proj" for each in "qk"},
    **{f"mask_head.lay{i}": f"mask_head.conv{i}.conv" for i in (1, 2)},
    **{f"mask_head.gn{i}": f"mask_head.conv{i}.norm" for i in (1, 2)},
    **{f"mask_head.lay{i + 3}": f"mask_head.fpn_stages.{i}.refine.conv" for i in range(REFINED)},
    **{f"mask_head.gn{i + 3}": f"mask_head.fpn_stages.{i}.refine.norm" for i in range(REFINED)},
    **{f"mask_head.adapter{i + 1}": f"mask_head.fpn_stages.{i}.fpn_adapter" for i in range(REFINED)},
    "mask_head.out_lay": "mask_head.output_conv",
}
"""Modules of the head of masks, by their names in files and in transformers 5."""
RENAMED = {
    rf"{ROOT}(?=embedder|encoder)": rf"\1{BACKBONE}",
    **{rf"{ROOT}{timm}\.": rf"\1{BACKBONE}{ours}." for ours, timm in PARTS.items()},
    **{rf"(stages\.\d\.layers\.\d+)\.{timm}\.": rf"\1.{ours}." for ours, timm in LAYERS.items()},
    r"\.o_proj\.": ".out_proj.",
    **renames({new: old for old, new in MASK_MODULES.items()}),
    r"(layers\.\d+)\.mlp\.(fc\d)\.": r"\1.\2.",
}
"""Names of timm's backbones, and of transformers 5, which keeps others in files."""
MODULES = {
    r"\.out_proj\.": ".o_proj.",
    r"((?:en|de)coder\.layers\.\d+)\.(fc\d)\.": r"\1.mlp.\2.",
    r"(^|\.)backbone\.conv_encoder\.model\.": r"\1backbone.model.",
    **renames(MASK_MODULES),
}
"""The latter, the other way."""

INPUTS = Signature(("pixel_values",), ("pixel_mask",))
FAMILIES = {
    "detr": Family(
        model_type="detr",
        architectures={
            "DetrForObjectDetection": Architecture(
                read, detector, HEADS, uses=("object-detection",), inputs=INPUTS, layers=layers
            ),
            MASKS: Architecture(
                read_masked,
                segmenter,
                (*under(HEADS, "", "detr."), *MASK_HEAD),
                write_masked,
                prefix=f"detr.{PREFIX}",
                uses=("image-segmentation", "object-detection"),
                inputs=INPUTS,
                layers=layers,
            ),
            "DetrModel": Architecture(
                read_headless,
                hidden,
                base=True,
                ignored=LARGER,
                uses=("feature-extraction",),
                inputs=INPUTS,
                layers=layers,
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix=PREFIX,
        ignored=(r"num_batches_tracked$",),
        renamed=RENAMED,
        modules=MODULES,
        settled=settled,
        spelled=spelled,
        adopt=adopt,
    )
}
