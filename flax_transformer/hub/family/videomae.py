"""VideoMAE checkpoints (Tong et al. 2022): an encoder of tubelets, and a decoder of those that are masked.

The published files have biases of queries and values as vectors of their own, `q_bias` and `v_bias`; in
transformers 5 they are parts of linear layers. Both names are read.
"""

import math
from dataclasses import replace
from typing import Any

from flax_transformer.hub.config import ConfigTable, choice
from flax_transformer.hub.family import vit
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS, encoder_layers
from flax_transformer.hub.inputs import VIDEOS, Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm, parameter
from flax_transformer.hub.video_call import (
    MASKABLE_VIDEOS,
    MASKED_VIDEOS,
    encoded_video,
    keep_patches,
    restored_video,
    video_classifier,
)
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.video.videomae import VideoMAEConfig, videomae_pretraining

WHOLE = videomae_pretraining()
BIASED = choice("attention.bias", {True: ("query", "value"), False: False})
SHARED = {
    **{name: vit.CONFIG.rows[name] for name in ("hidden_act", "layer_norm_eps", "initializer_range")},
    "hidden_dropout_prob": "residual.dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "qv_bias": BIASED,
}
CONFIG = ConfigTable(
    replace(WHOLE.encoder, norm="none"),
    {
        **{name: ours for name, ours in vit.CONFIG.rows.items() if name not in ("qkv_bias", *SHARED)},
        **SHARED,
        "num_frames": "frames",
        "tubelet_size": "span",
        "use_mean_pooling": choice(".norm", {True: "none", False: "end"}),
    },
)
DECODER = ConfigTable(
    WHOLE.decoder,
    {
        "decoder_hidden_size": "embed",
        "decoder_num_hidden_layers": "depth",
        "decoder_num_attention_heads": "heads",
        "decoder_intermediate_size": "inner",
        **SHARED,
    },
)


def _renamed(fields: Fields) -> Fields:
    """Read the flag of biases by another family's name too, as transformers does."""
    return fields.updated({"qv_bias": fields["qkv_bias"]}) if "qkv_bias" in fields else fields


def read(fields: Fields) -> Any:
    """Make the config of the encoder."""
    return CONFIG.read(_renamed(fields))


def _whole(fields: Fields) -> VideoMAEConfig:
    ratio = fields.number("mask_ratio", WHOLE.mask_ratio)
    return VideoMAEConfig(encoder=read(fields), decoder=DECODER.read(_renamed(fields)), mask_ratio=ratio)


def _write_decoder(config: VideoMAEConfig) -> dict[str, Any]:
    return {**DECODER.write(config.decoder), "mask_ratio": config.mask_ratio}


def _classifying(fields: Fields) -> ClassifierConfig:
    config = read(fields)
    if config.end_norm:
        return with_head(config, outputs=fields.labels, pool="first")
    return with_head(config, outputs=fields.labels, pool="mean", norm=1e-5)


def _check_mask(inputs: Inputs, fields: Fields) -> None:
    """Refuse a mask that is not of as many tubelets as a video has."""
    if inputs.bool_masked_pos is not None:
        rows, frames, _, *size = inputs.pixel_values.shape
        shape = (rows, math.prod(read(fields).patches.grid_of(frames, *size)))
        if inputs.bool_masked_pos.shape != shape:
            raise ValueError(
                f"bool_masked_pos must be [B, P] of the videos, {list(shape)}, got {list(inputs.bool_masked_pos.shape)}"
            )


PUBLISHED = {"query.bias": "q_bias", "value.bias": "v_bias"}


def _blocks(ours: str, theirs: str) -> Table:
    """Return the rows of a trunk's blocks, with biases by their published names."""
    rows = []
    for row in vit.blocks(ours, theirs):
        *layer, name = row.theirs.rsplit("attention.attention.", 1)
        rows.append(replace(row, theirs="attention.attention.".join([*layer, PUBLISHED.get(name, name)])))
    return tuple(rows)


TABLE = (
    *conv("patches.tubelet", "embeddings.patch_embeddings.projection"),
    *_blocks("trunk.blocks", "encoder.layer"),
    *norm("trunk.norm", "layernorm"),
)
HEAD = (
    *linear("project", "encoder_to_decoder"),
    *parameter("mask_token", "mask_token", ones=1),
    *_blocks("decoder.blocks", "decoder.decoder_layers"),
    *norm("norm", "decoder.norm"),
    *linear("output", "decoder.head"),
)
LARGER = (r"^decoder\.", r"^encoder_to_decoder\.", r"^mask_token$", r"^(fc_norm|classifier)\.")

FAMILIES = {
    "videomae": Family(
        model_type="videomae",
        architectures={
            "VideoMAEModel": Architecture(
                read, encoded_video, base=True, ignored=LARGER, uses=("feature-extraction",), inputs=MASKABLE_VIDEOS,
                check=_check_mask, prepare=keep_patches, **LAYERS,
            ),
            "VideoMAEForVideoClassification": Architecture(
                _classifying, video_classifier, (*norm("head.norm", "fc_norm"), *vit.CLASSIFIER), at="backbone.",
                ignored=LARGER[:3], uses=("classification",), inputs=VIDEOS, **LAYERS,
            ),
            "VideoMAEForPreTraining": Architecture(
                _whole, restored_video, HEAD, _write_decoder, at="encoder.", ignored=LARGER[3:], uses=("fill-mask",),
                inputs=MASKED_VIDEOS, check=_check_mask, prepare=keep_patches, marks=LAYERS["marks"],
                layers=encoder_layers,
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="videomae.",
        renamed={rf"\.attention\.{new}$": f".attention.{old}" for new, old in PUBLISHED.items()},
    )
}  # fmt: skip
