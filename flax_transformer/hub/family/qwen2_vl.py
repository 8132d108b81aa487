"""Qwen2-VL checkpoints (Wang et al. 2024): texts with images of any size among their tokens."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import llama
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import INTERLEAVED
from flax_transformer.hub.interleaved_call import in_rows, interleaved_lm, text_layers
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.rotary import read_rotary, write_rotary
from flax_transformer.hub.table import VECTOR, Matrix, Table, TensorRow, conv, embedding, linear, norm, under
from flax_transformer.hub.towers import inside
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.multimodal.interleaved import InterleavedConfig
from flax_transformer.models.multimodal.qwen2_vl import SECTIONS, qwen2_vl_7b
from flax_transformer.models.vision.packed_vit import PackedViTConfig
from flax_transformer.nn import Rotary, with_fields

BASE = qwen2_vl_7b()
TOKENS = {"image_token_id": 151_655, "video_token_id": 151_656, "vision_start_token_id": 151_652,
          "vision_end_token_id": 151_653}  # fmt: skip
MROPE = "mrope"
"""What old config.json call rotary positions of several ids; `transformers` reads it as the default kind."""


def _rotary(fields: Fields) -> Rotary:
    """Read rotary positions and their sections.

    Raises:
      ValueError: sections that are not three.
    """
    name = "rope_scaling" if fields.get("rope_scaling") is not None else "rope_parameters"
    given = fields.get(name)
    given = given if isinstance(given, dict) else {}
    sections = given.get("mrope_section", list(SECTIONS))
    if not isinstance(sections, list) or len(sections) != 3 or any(type(each) is not int for each in sections):
        raise ValueError(f"config.json must give mrope_section as three whole numbers, it is {sections!r}")
    kinds = {key: "default" if value == MROPE else value for key, value in given.items() if key != "mrope_section"}
    rotary = read_rotary(fields.updated({name: kinds, "rope_theta": fields.get("rope_theta") or 1_000_000.0}))
    return replace(rotary, sections=tuple(sections))


def _reads(fields: Fields) -> dict[str, Any]:
    fields = Fields.of({**llama.QWEN, "max_window_layers": 80, **fields})
    heads = fields.integer("num_attention_heads")
    kv_heads = fields.integer("num_key_value_heads", None) or heads
    return {"kv_heads": kv_heads, "rotary": _rotary(fields), "window": llama.read_qwen_window(fields)}


def _writes(config: CausalConfig) -> dict[str, Any]:
    rotary = config.block.attention.rotary
    said = write_rotary(replace(rotary, sections=None))
    scaling = said["rope_scaling"] or {"type": MROPE}
    return {
        **said, **llama.said_qwen_window(config), "num_key_value_heads": config.block.attention.resolved_kv_heads,
        "rope_scaling": {**scaling, "mrope_section": list(rotary.sections)},
    }  # fmt: skip


TEXT_CONFIG = ConfigTable(
    replace(
        with_fields(BASE.text, vocab=152_064, embed=8192, inner=29_568, heads=64, kv_heads=8, depth=80, norm_eps=1e-5),
        tied_output=False,
    ),
    llama.ROWS, reads=_reads, writes=_writes,
)  # fmt: skip


def read_patches(fields: Fields, width: int) -> dict[str, Any]:
    """Read the size of patches, and split the turning pairs of a head between row and column.

    Args:
      width: D, of the encoder of images.

    Raises:
      ValueError: heads that cannot be split so, or rotary positions of another kind.
    """
    size, span = fields.integer("patch_size", 14), fields.integer("temporal_patch_size", 2)
    heads, given = fields.integer("num_heads"), fields.get("rope_parameters") or {}
    if not heads or width % (4 * heads):
        raise ValueError(f"heads of images have a multiple of 4 channels each, got {width} in {heads}")
    if not isinstance(given, dict) or given.get("rope_type", "axial") != "axial":
        raise ValueError(f"config.json must give images axial rotary positions, it has {given!r}")
    base, quarter = float(Fields.of(given).number("rope_theta", 10_000.0)), width // heads // 4
    return {
        "rotary": replace(BASE.vision.block.attention.rotary, base=base, sections=(quarter, quarter)),
        "patches.patch": (size, size),
        "patches.image": (16 * size, 16 * size),
        "patches.span": span,
        "patches.frames": span,
    }


def write_patches(config: PackedViTConfig) -> dict[str, Any]:
    """Write what `read_patches` reads.

    Raises:
      ValueError: patches that are no squares.
    """
    high, wide = config.patches.patch
    if high != wide:
        raise ValueError(f"config.json has square patches, got {high}×{wide}")
    said = {"patch_size": high, "temporal_patch_size": config.patches.span}
    base = config.block.attention.rotary.base
    return said if base == 10_000.0 else {**said, "rope_parameters": {"rope_type": "axial", "rope_theta": base}}


def _reads_images(fields: Fields) -> dict[str, Any]:
    width = fields.integer("embed_dim")
    return {"inner": width * fields.integer("mlp_ratio", 4), **read_patches(fields, width)}


def _writes_images(config: PackedViTConfig) -> dict[str, Any]:
    width, inner = config.block.embed, config.block.feedforward.inner
    if inner % width or config.windows != (None,):
        raise ValueError(
            "config.json has an inner width that is a multiple of the width, and no windows, got "
            f"{inner} of {width}, windows {config.windows}"
        )
    return {"mlp_ratio": inner // width, **write_patches(config)}


IMAGE_CONFIG = ConfigTable(
    BASE.vision,
    {
        "depth": "depth",
        "embed_dim": "embed",
        "num_heads": "heads",
        "hidden_size": "outputs",
        "hidden_act": "activation",
        "in_channels": "channels",
        "spatial_merge_size": "merge",
        "initializer_range": "init_std",
    },
    reads=_reads_images,
    writes=_writes_images,
)


def text_fields(fields: Fields) -> Fields:
    """Return the fields of the text: beside those of images in files on the hub, in an object in today's.

    Raises:
      ValueError: what is no object.
    """
    if not isinstance(fields.get("text_config"), dict | None):
        raise ValueError(f"config.json must give text_config as an object, it is {fields['text_config']!r:.40}")
    if not fields.get("text_config"):
        return fields
    text = inside(fields, "text")
    return text.updated({"tie_word_embeddings": fields.flag("tie_word_embeddings", False)
                         or text.flag("tie_word_embeddings", False)})  # fmt: skip


def read(fields: Fields) -> InterleavedConfig:
    """Make our config of config.json's fields."""
    text = TEXT_CONFIG.read(text_fields(fields))
    vision = IMAGE_CONFIG.read(Fields.of({"hidden_size": text.block.embed, **inside(fields, "vision")}))
    token = fields.integer("image_token_id", TOKENS["image_token_id"])
    return InterleavedConfig(vision=vision, text=text, image_token=token)


def write(config: InterleavedConfig) -> dict[str, Any]:
    """Write config.json's fields, in the form of the files on the hub, which every version of transformers reads."""
    return {
        **TEXT_CONFIG.write(config.text),
        "vision_config": {"model_type": "qwen2_vl", **IMAGE_CONFIG.write(config.vision)},
        **TOKENS,
        "image_token_id": config.image_token,
    }


BLOCK = "blocks.{}."
QKV = tuple(f"trunk.blocks.attention.{part}" for part in ("query", "key", "value"))
ATTENDING = (
    *conv("patches.tubelet", "patch_embed.proj"),
    *norm("trunk.blocks.attention_residual.norm", BLOCK + "norm1"),
    TensorRow(tuple(f"{part}.kernel" for part in QKV), BLOCK + "attn.qkv.weight", Matrix(1, transposed=True)),
    TensorRow(tuple(f"{part}.bias" for part in QKV), BLOCK + "attn.qkv.bias", VECTOR),
    *linear("trunk.blocks.attention.out", BLOCK + "attn.proj", inputs=2),
    *norm("trunk.blocks.feedforward_residual.norm", BLOCK + "norm2"),
    *norm("trunk.norm", "merger.ln_q"),
    *linear("merger.up", "merger.mlp.0"),
    *linear("merger.down", "merger.mlp.2"),
)
FEEDFORWARD = (
    *linear("trunk.blocks.feedforward.up", BLOCK + "mlp.fc1"),
    *linear("trunk.blocks.feedforward.down", BLOCK + "mlp.fc2"),
)


def interleaved_family(model_type: str, name: str, config: tuple[Callable, Callable], images: Table) -> Family:
    """Return a family of texts with images among their tokens.

    Args:
      name: of its class.
      config: what reads and writes config.json.
      images: the rows of the encoder of images.
    """
    known = Architecture(
        config[0], interleaved_lm, embedding("text.head.token", "lm_head"), uses=("text-generation",),
        inputs=INTERLEAVED, layers=text_layers, prepare=in_rows,
    )  # fmt: skip
    return Family(
        model_type=model_type, architectures={name: known},
        table=(*under(images, "vision.", "visual."), *under(llama.TABLE, "text.", "model.")),
        write=config[1], ignored=(r"\.inv_freq$",),
        renamed={r"^model\.language_model\.": "model.", r"^model\.visual\.": "visual."},
        modules={r"^model\.": "model.language_model.", r"^visual\.": "model.visual."},
        copies={"lm_head.weight": "model.embed_tokens.weight"},
    )  # fmt: skip


FAMILIES = {
    "qwen2_vl": interleaved_family(
        "qwen2_vl", "Qwen2VLForConditionalGeneration", (read, write), (*ATTENDING, *FEEDFORWARD)
    ),
}
