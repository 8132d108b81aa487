"""Qwen2.5-VL checkpoints (Bai et al. 2025): Qwen2-VL's, whose encoder of images attends within windows."""

from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import qwen2_vl
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.table import linear
from flax_transformer.hub.towers import inside
from flax_transformer.models.multimodal.interleaved import InterleavedConfig
from flax_transformer.models.multimodal.qwen2_5_vl import qwen2_5_vl_7b
from flax_transformer.models.vision.packed_vit import PackedViTConfig

WHOLE = [7, 15, 23, 31]
"""Layers whose patches see all of their image, where config.json does not say."""


def _reads(fields: Fields) -> dict[str, Any]:
    return {**qwen2_vl.read_patches(fields, fields.integer("hidden_size")), "windows": _read_windows(fields)}


def _read_windows(fields: Fields) -> tuple[int | None, ...]:
    """Read the window of each layer, in as few turns as there are.

    Raises:
      ValueError: windows that are no squares of patches, or layers that are no whole numbers.
    """
    depth, whole = fields.integer("depth"), fields.get("fullatt_block_indexes", WHOLE)
    if not isinstance(whole, list) or any(type(each) is not int for each in whole):
        raise ValueError(f"config.json must give fullatt_block_indexes as a list of whole numbers, it is {whole!r}")
    square = fields.integer("spatial_merge_size") * fields.integer("patch_size", 14)
    side = fields.integer("window_size", 112) // max(square, 1)
    if side < 1:
        raise ValueError(
            f"config.json must give window_size as at least {square} pixels, it is {fields.get('window_size')}"
        )
    windows = [None if layer in whole else side for layer in range(depth)]
    period = next(p for p in range(1, depth + 1) if all(windows[i] == windows[i % p] for i in range(depth)))
    return tuple(windows[:period])


def _writes(config: PackedViTConfig) -> dict[str, Any]:
    turns = config.windows
    sides = {window for window in turns if window is not None}
    if len(sides) > 1:
        raise ValueError(f"config.json has one window for all layers that have any, got {sorted(sides)}")
    said = qwen2_vl.write_patches(config)
    side = max(sides) * config.merge * config.patches.patch[0] if sides else 112
    whole = [layer for layer in range(config.depth) if turns[layer % len(turns)] is None]
    return {**said, "window_size": side, "fullatt_block_indexes": whole}


BASE = qwen2_5_vl_7b()
IMAGE_CONFIG = ConfigTable(
    BASE.vision,
    {
        "depth": "depth",
        "hidden_size": "embed",
        "intermediate_size": "inner",
        "num_heads": "heads",
        "out_hidden_size": "outputs",
        "hidden_act": "activation",
        "in_channels": "channels",
        "spatial_merge_size": "merge",
        "initializer_range": "init_std",
    },
    reads=_reads,
    writes=_writes,
)


def read(fields: Fields) -> InterleavedConfig:
    """Make our config of config.json's fields."""
    text = qwen2_vl.TEXT_CONFIG.read(qwen2_vl.text_fields(fields))
    vision = IMAGE_CONFIG.read(Fields.of({"out_hidden_size": text.block.embed, **inside(fields, "vision")}))
    token = fields.integer("image_token_id", qwen2_vl.TOKENS["image_token_id"])
    return InterleavedConfig(vision=vision, text=text, image_token=token)


def write(config: InterleavedConfig) -> dict[str, Any]:
    """Write config.json's fields, in the form of the files on the hub, which every version of transformers reads."""
    return {
        **qwen2_vl.TEXT_CONFIG.write(config.text),
        "vision_config": {"model_type": "qwen2_5_vl", **IMAGE_CONFIG.write(config.vision)},
        **qwen2_vl.TOKENS,
        "image_token_id": config.image_token,
    }


GATED = tuple(
    row
    for ours, theirs in (("gate", "gate_proj"), ("up", "up_proj"), ("down", "down_proj"))
    for row in linear(f"trunk.blocks.feedforward.{ours}", f"{qwen2_vl.BLOCK}mlp.{theirs}")
)

FAMILIES = {
    "qwen2_5_vl": qwen2_vl.interleaved_family(
        "qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", (read, write), (*qwen2_vl.ATTENDING, *GATED)
    ),
}
