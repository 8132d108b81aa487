"""EVA and EVA-02 as timm keeps them, and its own Vision Transformers with rotary positions."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flax_transformer.hub.family.timm_vit import EMBEDDINGS, NORM, REGISTER, features
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS, image_classifier
from flax_transformer.hub.inputs import IMAGES
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import VECTOR, Matrix, Table, TensorRow, linear, norm, parameter
from flax_transformer.hub.timm_folder import (
    ARCHITECTURE,
    ARGUMENTS,
    arguments,
    pair,
    ratio_of,
    stated_image,
    written_image,
)
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.eva import EPS, GRID, EvaAttentionConfig, EvaConfig, NumberRotary, with_norm
from flax_transformer.models.vision.vit import ViTConfig, vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.nn.feedforward import NormedFeedForwardConfig
from flax_transformer.ops.resample import smooth_bicubic

SIZES = {
    "tiny": (192, 12, 3), "small": (384, 12, 6), "medium": (512, 12, 8), "mediumd": (512, 20, 8),
    "betwixt": (640, 12, 10), "base": (768, 12, 12), "large": (1024, 24, 16), "giant": (1408, 40, 16),
}  # fmt: skip
"""Width, depth and heads."""
NAME = re.compile(
    r"(eva)_(giant)_patch(\d+)(_clip)?_\d+|(eva02)_(tiny|small|base|large)_patch(\d+)(_clip)?_\d+"
    r"|(vit)_(medium|mediumd|betwixt|base)_patch(\d+)_rope_reg(\d+)_gap_\d+"
)


def _of_name(name: str) -> dict[str, Any]:
    """Return the arguments that an architecture's name stands for, of those that are not the usual ones.

    Raises:
      ValueError: an architecture that is not read.
    """
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"config.json is of timm's {name!r:.60}; those of EVA that are read are called eva_giant_patchN_PIXELS, "
            "eva02_SIZE_patchN_PIXELS of the sizes tiny, small, base and large, with _clip before the pixels, or "
            "vit_SIZE_patchN_rope_regN_gap_PIXELS"
        )
    kind, size, patch, last = (part for part in found.groups()[4 * (found.lastindex - 1 >> 2) :][:4])
    embed, depth, heads = SIZES[size]
    given = {"patch_size": int(patch), "embed_dim": embed, "depth": depth, "num_heads": heads}
    if kind == "vit":
        return given | {
            "init_values": 1e-5, "class_token": False, "num_reg_tokens": int(last), "use_rot_pos_emb": True,
            "use_abs_pos_emb": False, "ref_feat_shape": GRID, "qkv_bias": size != "mediumd",
        }  # fmt: skip
    given |= {"global_pool": "token"} if last else {}
    if kind == "eva":
        return given | {"mlp_ratio": 6144 / 1408}
    return given | {
        "mlp_ratio": 4 * 2 / 3, "swiglu_mlp": True, "use_rot_pos_emb": True, "ref_feat_shape": GRID,
        "qkv_fused": size in ("tiny", "small"), "scale_mlp": size in ("base", "large"), "scale_attn_inner": bool(last),
    }  # fmt: skip


def known_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of timm's Eva, by the architecture's name and what config.json says.

    Raises:
      ValueError: an architecture or an argument that is not read, or arguments that do not go together.
    """
    channels, *image = stated_image(fields)
    usual = {
        "img_size": image, "in_chans": channels, "global_pool": "avg", "qkv_bias": True, "qkv_fused": True,
        "mlp_ratio": 4.0, "swiglu_mlp": False, "scale_mlp": False, "scale_attn_inner": False, "drop_path_rate": 0.0,
        "init_values": None, "class_token": True, "num_reg_tokens": 0, "no_embed_class": False,
        "use_abs_pos_emb": True, "use_rot_pos_emb": False, "rope_temperature": 10_000.0, "ref_feat_shape": None,
        "use_fc_norm": None, "dynamic_img_size": False,
    } | _of_name(fields.get(ARCHITECTURE, "eva_giant_patch14_224"))  # fmt: skip
    given = arguments(fields, usual | {"global_pool": fields.get("global_pool") or usual["global_pool"]})
    if given["global_pool"] not in ("token", "avg"):
        raise ValueError(f"config.json has global_pool={given['global_pool']!r:.20}; read are token and avg")
    if given["use_fc_norm"] is None:
        given["use_fc_norm"] = given["global_pool"] == "avg"
    if given["global_pool"] == "token" and not given["class_token"]:
        raise ValueError("an EVA of timm without class_token has global_pool='avg', config.json has 'token'")
    if given["scale_attn_inner"] and not given["use_rot_pos_emb"]:
        raise ValueError("an EVA of timm that is read has scale_attn_inner with use_rot_pos_emb alone")
    return given


def read(fields: Fields) -> ViTConfig:
    """Return the encoder: an EVA-02, or a ViT where nothing is turned."""
    given = known_arguments(fields)
    embed, gated = given["embed_dim"], given["swiglu_mlp"]
    position = "patches" if given["no_embed_class"] else "learned"
    changed = with_fields(
        vit_encoder("base", 16, image=224), out_bias=True, image=pair(given["img_size"]),
        patch=pair(given["patch_size"]), channels=given["in_chans"], embed=embed, depth=given["depth"],
        inner=int(embed * given["mlp_ratio"]), heads=given["num_heads"], gated=gated,
        activation="silu" if gated else "gelu", norm_eps=EPS, layer_scale=given["init_values"],
        drop_path=given["drop_path_rate"],
    )  # fmt: skip
    block = changed.block
    attention = replace(block.attention, bias=("query", "value") if given["qkv_bias"] else ())
    if given["use_rot_pos_emb"]:
        grid = given["ref_feat_shape"] and pair(given["ref_feat_shape"])
        attention = EvaAttentionConfig.like(
            attention, places=NumberRotary(base=float(given["rope_temperature"]), grid=grid),
            inner_norm=EPS if given["scale_attn_inner"] else None,
        )  # fmt: skip
    block = replace(
        block,
        attention=attention,
        feedforward=with_norm(block.feedforward) if given["scale_mlp"] else block.feedforward,
    )
    tokens = (*("class_token",) * bool(given["class_token"]), *(REGISTER,) * given["num_reg_tokens"])
    return (EvaConfig if given["use_rot_pos_emb"] else ViTConfig)(
        patches=changed.patches, block=block, depth=given["depth"], drop_path=changed.drop_path, tokens=tokens,
        position=position if given["use_abs_pos_emb"] else "none",
        resampling="smooth_bicubic" if given["dynamic_img_size"] else "bicubic",
        norm="none" if given["use_fc_norm"] else "end",
    )  # fmt: skip


def write(config: ViTConfig) -> dict[str, Any]:
    """Return an architecture, and all arguments that make it this one."""
    block, patches = config.block, config.patches
    attention, layer = block.attention, block.feedforward
    turned = isinstance(attention, EvaAttentionConfig)
    given = {
        "img_size": list(patches.image), "patch_size": list(patches.patch), "in_chans": patches.channels,
        "embed_dim": block.embed, "depth": config.depth, "num_heads": attention.heads,
        "mlp_ratio": ratio_of(layer.inner, block.embed), "swiglu_mlp": layer.gated,
        "scale_mlp": isinstance(layer, NormedFeedForwardConfig), "qkv_bias": bool(attention.bias),
        "init_values": block.residual.layer_scale, "drop_path_rate": block.residual.drop_path,
        "class_token": "class_token" in config.tokens, "num_reg_tokens": config.tokens.count(REGISTER),
        "no_embed_class": config.position == "patches", "use_abs_pos_emb": config.tabled, "use_rot_pos_emb": turned,
        "use_fc_norm": not config.end_norm, "dynamic_img_size": config.resampling == "smooth_bicubic",
    }  # fmt: skip
    if turned:
        given["scale_attn_inner"] = attention.inner_norm is not None
        given["rope_temperature"] = attention.places.base
        given["ref_feat_shape"] = attention.places.grid and list(attention.places.grid)
    image = written_image(patches.channels, *patches.image)
    return {**image, ARCHITECTURE: "eva_giant_patch14_224", ARGUMENTS: given}


def _head(fields: Fields, outputs: int) -> ClassifierConfig:
    config, given = read(fields), known_arguments(fields)
    eps = {"norm": EPS} if given["use_fc_norm"] else {}
    if given["global_pool"] == "token":
        return with_head(config, outputs=outputs, pool="first", **eps)
    return with_head(config, outputs=outputs, pool="mean", skip=len(config.tokens), **eps)


def _said(config: ClassifierConfig) -> dict[str, Any]:
    """Return what is beside the backbone; timm makes models of the arguments alone."""
    pool = "token" if config.head.pool == "first" else "avg"
    return {"global_pool": pool, ARGUMENTS: {**write(config.backbone)[ARGUMENTS], "global_pool": pool}}


def _attention(ours: str, theirs: str, fused: bool) -> Table:
    parts = ("query", "key", "value")
    rest = (*norm(f"{ours}.norm", f"{theirs}.norm"), *linear(f"{ours}.out", f"{theirs}.proj", inputs=2))
    if not fused:
        return (*(row for part in parts for row in linear(f"{ours}.{part}", f"{theirs}.{part[0]}_proj")), *rest)
    kernels = tuple(f"{ours}.{part}.kernel" for part in parts)
    biases = (TensorRow((f"{ours}.{part}.bias",), f"{theirs}.{part[0]}_bias", VECTOR) for part in ("query", "value"))
    return (TensorRow(kernels, f"{theirs}.qkv.weight", Matrix(1, transposed=True)), *biases, *rest)


def _feedforward(ours: str, theirs: str, gated: bool, normed: bool) -> Table:
    rest = (*norm(f"{ours}.norm", f"{theirs}.norm"), *linear(f"{ours}.down", f"{theirs}.fc2"))
    if not gated:
        return (*linear(f"{ours}.up", f"{theirs}.fc1"), *rest)
    if not normed:
        return (*linear((f"{ours}.gate", f"{ours}.up"), f"{theirs}.fc1"), *rest)
    return (*linear(f"{ours}.gate", f"{theirs}.fc1_g"), *linear(f"{ours}.up", f"{theirs}.fc1_x"), *rest)


def _table(*, fused: bool, gated: bool, normed: bool) -> Table:
    ours, theirs = "trunk.blocks", "blocks.{}"
    return (
        *EMBEDDINGS,
        *parameter("positions", "pos_embed", ones=1, fit=fitted_positions(_grid, smooth_bicubic)),
        *norm(f"{ours}.attention_residual.norm", f"{theirs}.norm1"),
        *_attention(f"{ours}.attention", f"{theirs}.attn", fused),
        *parameter(f"{ours}.attention_residual.layer_scale", f"{theirs}.gamma_1"),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.norm2"),
        *_feedforward(f"{ours}.feedforward", f"{theirs}.mlp", gated, normed),
        *parameter(f"{ours}.feedforward_residual.layer_scale", f"{theirs}.gamma_2"),
        *norm("trunk.norm", "norm"),
    )


def _grid(fields: Fields) -> tuple[int, int]:
    return read(fields).patches.grid


def composed(fields: Fields) -> Family:
    """Return the family as it is for one config.json, whose arguments say which layers are one tensor."""
    given = known_arguments(fields)
    table = _table(fused=given["qkv_fused"], gated=given["swiglu_mlp"], normed=given["scale_mlp"])
    return replace(FAMILIES["timm_eva"], table=table)


FAMILIES = {
    "timm_eva": Family(
        model_type="timm_eva",
        architectures={
            "TimmEvaForImageClassification": Architecture(
                lambda fields: _head(fields, fields.labels), image_classifier, (*NORM, *linear("head.output", "head")),
                _said, at="backbone.", base=True, uses=("classification",), inputs=IMAGES, **LAYERS,
            ),
            "TimmEvaModel": Architecture(
                lambda fields: _head(fields, 0), features, NORM, _said, at="backbone.", base=True,
                ignored=(r"^head\.",), uses=("feature-extraction",), inputs=IMAGES, **LAYERS,
            ),
        },
        table=_table(fused=True, gated=False, normed=False),
        write=write,
        composed=composed,
    )
}  # fmt: skip
