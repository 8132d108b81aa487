"""Mask2Former checkpoints (Cheng et al. 2021) on the feature maps of a Swin or a ResNet."""

import math
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.config import ConfigTable, FieldMapping, choice
from flax_transformer.hub.family import upernet
from flax_transformer.hub.feature_map import channels_first
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.seq2seq_side import SELF, stack
from flax_transformer.hub.table import VECTOR, Matrix, Table, TensorRow, conv, linear, norm, parameter, under
from flax_transformer.models.vision.mask2former import Mask2Former, Mask2FormerConfig, mask2former_swin
from flax_transformer.models.vision.pixel_decoder import LEVELS
from flax_transformer.models.vision.swin import SwinConfig
from flax_transformer.ops.split_keys import split_keys

BACKBONE = "model.pixel_level_module.encoder."
MOST = 4
"""As many maps as a checkpoint may add to the enlarged ones."""
COARSEST = 2
"""How many halvings there are from the finest to the coarsest of the maps that see each other."""


def read_parts(fields: Fields) -> dict[str, Any]:
    """Read the backbone, and how many of its maps are added to the enlarged ones.

    Raises:
      ValueError: strides that are none, or between which there is no whole number of halvings.
    """
    backbone = upernet.read_backbone(upernet.inside(fields))
    channels = tuple(backbone.backbone.stage_widths[stage] for stage in backbone.stages)
    strides, common = fields.get("feature_strides", [4, 8, 16, 32]), fields.integer("common_stride", 4)
    if not isinstance(strides, list) or not strides or not all(type(each) is int and each > 0 for each in strides):
        raise ValueError(f"config.json must give feature_strides as a list of numbers from 1 on, it is {strides!r:.80}")
    finest = min(strides[-LEVELS:])
    if common < 1 or finest % common or (finest // common).bit_count() != 1:
        raise ValueError(
            f"config.json must give a common_stride by whose doublings the stride {finest} is reached, it is {common}"
        )
    return {
        "backbone": backbone, "pixels.channels": channels, "pixels.finer": int(math.log2(finest // common)),
        "classes": fields.labels,
    }  # fmt: skip


def write_parts(config: Mask2FormerConfig) -> dict[str, Any]:
    """Write the classes and strides; those of the maps are taken to double, from 4 on."""
    strides = [2 ** (COARSEST + i) for i in range(len(config.backbone.stages))]
    common = strides[-LEVELS] // 2**config.pixels.finer
    return {"feature_strides": strides, "common_stride": common, "num_labels": config.classes}


def _depth(given: Fields, name: str) -> int:
    return given.integer(name) - 1


CONFIG = ConfigTable(
    mask2former_swin(),
    {
        "feature_size": "pixels.embed",
        "mask_feature_size": "pixels.outputs",
        "hidden_dim": "decoder.embed",
        "encoder_feedforward_dim": "pixels.inner",
        "dim_feedforward": "decoder.inner",
        "encoder_layers": "pixels.depth",
        "decoder_layers": FieldMapping(("decoder.depth",), _depth, lambda depth: depth + 1),
        "num_attention_heads": ("pixels.heads", "decoder.heads"),
        "num_queries": ".queries",
        "activation_function": "decoder.activation",
        "dropout": (
            "pixels.dropout", "pixels.activation_dropout", "decoder.dropout", "decoder.attention_dropout",
            "decoder.activation_dropout",
        ),
        "pre_norm": choice("decoder.norm_position", {True: "pre", False: "post"}),
        "enforce_input_projection": ".project",
    },
    reads=read_parts,
    writes=write_parts,
)  # fmt: skip

SEEN = "map_states", "pixel_states", "query_states"


def masks(model: Mask2Former, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Answer by every query, as Mask2FormerForUniversalSegmentation does, which takes `pixel_mask` for nothing too."""
    keys = split_keys(key)
    maps = model.maps(images_of(inputs), key=keys[0])
    states = model.states(maps, key=keys[1])
    found = jax.tree.map(lambda x: x[:, 0], model.output(states.last()))
    return ModelOutput(
        class_queries_logits=found.logits, masks_queries_logits=found.masks,
        encoder_last_hidden_state=channels_first(maps[-1]),
        pixel_decoder_last_hidden_state=channels_first(states.fine),
        transformer_decoder_last_hidden_state=states.hidden[:, -1],
    )  # fmt: skip


def layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name the maps that the backbone and the pixel decoder give, queries before and after every layer, [Q, B, D] each,
    and attention weights of queries to each other.
    """
    found: dict[str, tuple[Array, ...]] = {}
    if "query_states" in seen:
        found["encoder_hidden_states"] = tuple(map(channels_first, seen["map_states"]))
        found["pixel_decoder_hidden_states"] = tuple(map(channels_first, seen["pixel_states"]))
        found["transformer_decoder_hidden_states"] = tuple(jnp.swapaxes(x, 0, 1) for x in seen["query_states"])
    if "attention_weights" in seen:  # each layer's to a map first; a backbone's are of windows, with more axes
        found["attentions"] = tuple(x for x in seen["attention_weights"] if x.ndim == 4)[1::2]
    return found


def buffers(fields: Fields) -> dict[str, np.ndarray]:
    """Return what classes count in the loss of `transformers`, and the norm at a Swin's end, which nothing uses."""
    weights, found = np.ones(fields.labels + 1, np.float32), {}
    weights[-1] = fields.number("no_object_weight", 0.1)
    backbone = upernet.read_backbone(upernet.inside(fields)).backbone
    if isinstance(backbone, SwinConfig):
        names, width = ("weight", "bias"), backbone.stage_widths[-1]
        found = {f"{BACKBONE}swin.layernorm.{name}": np.full(width, name == "weight", np.float32) for name in names}
    return {"criterion.empty_weight": weights, **found}


def _conv_norm(ours: str, theirs: str) -> Table:
    return conv(ours, f"{theirs}.0") + norm(f"{ours}_norm", f"{theirs}.1")


def _pixel_decoder() -> Table:
    deformable = {"value": "value_proj", "offset": "sampling_offsets", "weight": "attention_weights"}
    rows, block = stack("encoder.blocks", "encoder.layers.{}", {}), "encoder.blocks.attention"
    for mine, yours in deformable.items():
        rows += linear(f"{block}.{mine}", f"encoder.layers.{{}}.self_attn.{yours}")
    rows += linear(f"{block}.out", "encoder.layers.{}.self_attn.output_proj", inputs=2)
    rows += norm(f"{block}_residual.norm", "encoder.layers.{}.self_attn_layer_norm")
    for i in range(LEVELS):
        rows += _conv_norm(f"project{i}", f"input_projections.{i}")
    for i in range(MOST):
        rows += _conv_norm(f"lateral{i}", f"adapter_{i + 1}") + _conv_norm(f"smooth{i}", f"layer_{i + 1}")
    return rows + parameter("levels", "level_embed") + conv("output", "mask_projection")


def _decoder() -> Table:
    layers, cross = "decoder.layers.{}", ("blocks.cross.query", "blocks.cross.key", "blocks.cross.value")
    rows = stack("blocks", layers, SELF)
    rows += (
        TensorRow(
            tuple(f"{part}.kernel" for part in cross),
            f"{layers}.cross_attn.in_proj_weight",
            Matrix(1, transposed=True),
        ),
        TensorRow(tuple(f"{part}.bias" for part in cross), f"{layers}.cross_attn.in_proj_bias", VECTOR),
    )
    rows += linear("blocks.cross.out", f"{layers}.cross_attn.out_proj", inputs=2)
    rows += norm("blocks.cross_residual.norm", f"{layers}.cross_attn_layer_norm") + norm("norm", "decoder.layernorm")
    for i in range(LEVELS):
        rows += conv(f"project{i}", f"input_projections.{i}")
    tables = {"queries": "queries_features", "query_positions": "queries_embedder", "levels": "level_embed"}
    for mine, yours in tables.items():
        rows += parameter(mine, f"{yours}.weight")
    embedder = "decoder.mask_predictor.mask_embedder"
    return rows + linear("masks.dense", f"{embedder}.{{}}.0") + linear("masks.output", f"{embedder}.2.0")


HEAD = (
    *under(_pixel_decoder(), "pixels.", "model.pixel_level_module.decoder."),
    *under(_decoder(), "", "model.transformer_module."),
    *linear("scores.output", "class_predictor"),
)


@cache
def composed(fields: Fields) -> Family:
    """Return the family of checkpoints with this backbone."""
    return upernet.with_backbone(FAMILIES["mask2former"], fields, BACKBONE)


FAMILIES = {
    "mask2former": Family(
        model_type="mask2former",
        architectures={
            "Mask2FormerForUniversalSegmentation": Architecture(
                CONFIG.read,
                masks,
                HEAD,
                CONFIG.write,
                at="backbone.",
                ignored=(r"^criterion\.",),
                uses=("image-segmentation",),
                inputs=Signature(("pixel_values",), ("pixel_mask",)),
                marks=SEEN,
                layers=layers,
                buffers=buffers,
            )
        },
        table=(),
        write=upernet.write,
        prefix=BACKBONE,
        composed=composed,
    )
}
