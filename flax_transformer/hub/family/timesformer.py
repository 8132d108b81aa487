"""TimeSformer checkpoints (Bertasius et al. 2021)."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import vit
from flax_transformer.hub.family.vivit import read_start, said_start
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS
from flax_transformer.hub.inputs import VIDEOS
from flax_transformer.hub.positions import fitted_positions, fitted_times
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm, parameter
from flax_transformer.hub.video_call import by_frame, frame_classifier, frame_layers
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.video.timesformer import TimeSformerConfig, timesformer_base
from flax_transformer.nn import with_fields
from flax_transformer.ops.resample_video import nearest

KINDS = {"divided_space_time": (True, True), "joint_space_time": (False, True), "space_only": (False, False)}
"""Whether attention over time and space are apart, and whether there is any over time, by `attention_type`."""

CONFIG = ConfigTable(
    with_fields(timesformer_base().backbone, out_bias=True),
    {
        **{name: ours for name, ours in vit.CONFIG.rows.items() if name != "qkv_bias"},
        "qkv_bias": ("attention.bias", "time.bias"),
        "num_frames": "frames",
    },
    reads=lambda fields: {".drop_path": float(fields.number("drop_path_rate", 0.0)), **read_start(fields)},
    writes=said_start,
)
"""Of the drop path rate transformers 5 takes whole numbers alone, so it is not written."""


def read(fields: Fields) -> TimeSformerConfig:
    """Make the config of the encoder."""
    kind = fields.get("attention_type", "divided_space_time")
    if kind not in KINDS:
        raise ValueError(f"config.json must give attention_type as one of {', '.join(KINDS)}, it is {kind!r}")
    divided, time = KINDS[kind]
    config = CONFIG.read(fields)
    return config if divided else replace(config, block=config.block.plain(), time=time)


def write(config: TimeSformerConfig) -> dict[str, Any]:
    """Make config.json's fields of it."""
    kind = next(name for name, parts in KINDS.items() if parts == (config.divided, config.time))
    return {**CONFIG.write(config), "attention_type": kind}


def _classifying(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=fields.labels, pool="first")


def _frames(fields: Fields) -> int:
    return read(fields).frames


def _attention(ours: str, theirs: str) -> Table:
    qkv = tuple(f"{ours}.{part}" for part in ("query", "key", "value"))
    return (
        *linear(qkv, f"{theirs}.attention.qkv"),
        *linear(f"{ours}.out", f"{theirs}.output.dense", inputs=2),
    )


LAYER = "encoder.layer.{}"
TABLE = (
    *parameter("class_token", "embeddings.cls_token", ones=1),
    *parameter(
        "positions", "embeddings.position_embeddings", ones=1,
        fit=fitted_positions(lambda fields: read(fields).patches.grid, nearest),
    ),
    *parameter("times", "embeddings.time_embeddings", ones=1, fit=fitted_times(_frames, nearest)),
    *conv("patches.patch", "embeddings.patch_embeddings.projection"),
    *norm("trunk.blocks.time_residual.norm", f"{LAYER}.temporal_layernorm"),
    *_attention("trunk.blocks.time", f"{LAYER}.temporal_attention"),
    *linear("trunk.blocks.time.dense", f"{LAYER}.temporal_dense"),
    *norm("trunk.blocks.attention_residual.norm", f"{LAYER}.layernorm_before"),
    *_attention("trunk.blocks.attention", f"{LAYER}.attention"),
    *norm("trunk.blocks.feedforward_residual.norm", f"{LAYER}.layernorm_after"),
    *linear("trunk.blocks.feedforward.up", f"{LAYER}.intermediate.dense"),
    *linear("trunk.blocks.feedforward.down", f"{LAYER}.output.dense"),
    *norm("trunk.norm", "layernorm"),
)  # fmt: skip

FAMILIES = {
    "timesformer": Family(
        model_type="timesformer",
        architectures={
            "TimesformerModel": Architecture(
                read, by_frame, base=True, ignored=(r"^classifier\.",), uses=("feature-extraction",), inputs=VIDEOS,
                marks=LAYERS["marks"], layers=frame_layers,
            ),
            "TimesformerForVideoClassification": Architecture(
                _classifying, frame_classifier, vit.CLASSIFIER, at="backbone.", uses=("classification",), inputs=VIDEOS,
                marks=LAYERS["marks"], layers=frame_layers,
            ),
        },
        table=TABLE,
        write=write,
        prefix="timesformer.",
    )
}  # fmt: skip
