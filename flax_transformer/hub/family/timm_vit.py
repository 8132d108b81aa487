"""Vision Transformers as timm keeps them: ViT, DeiT, CLIP's and DINOv2's encoders, with registers and without."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS, hidden, image_classifier
from flax_transformer.hub.inputs import IMAGES, Inputs
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm, parameter
from flax_transformer.hub.timm_folder import (
    ARCHITECTURE,
    ARGUMENTS,
    DISTILLED,
    arguments,
    pair,
    ratio_of,
    stated_image,
    written_image,
)
from flax_transformer.models.head import ClassifierConfig, head_of, with_head
from flax_transformer.models.vision.deit import DistilledConfig
from flax_transformer.models.vision.vit import ViTConfig, vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.ops.resample import smooth_bicubic
from flax_transformer.ops.split_keys import split_keys

EPS, CLIP_EPS = 1e-6, 1e-5
REGISTER = "register_tokens"
SIZES = {
    "tiny": (192, 12, 3, 4.0), "small": (384, 12, 6, 4.0), "wee": (256, 14, 4, 5.0), "little": (320, 14, 5, 5.6),
    "medium": (512, 12, 8, 4.0), "mediumd": (512, 20, 8, 4.0), "betwixt": (640, 12, 10, 4.0),
    "base": (768, 12, 12, 4.0), "so150m": (896, 18, 14, 2.572), "so150m2": (832, 21, 13, 34 / 13),
    "large": (1024, 24, 16, 4.0), "huge": (1280, 32, 16, 4.0), "giant": (1408, 40, 16, 48 / 11),
    "so400m": (1152, 27, 16, 4304 / 1152),
}  # fmt: skip
"""Width, depth, heads, and how many times wider layers are inside."""
GATED = (1536, 40, 24, 2.66667 * 2)
"""Those of the giants of DINOv2 and TIPSv2, whose feed-forward layers are gated."""
NAME = re.compile(
    rf"(vit|deit)_({'|'.join(SIZES)})(_distilled)?_patch(\d+)(?:_reg(\d+))?"
    r"(_gap|_clip|_clip_quickgelu|_dinov2|_tipsv2)?(_\d+)?"
)
SCALES = {"_dinov2": 1e-5, "_tipsv2": 1.0}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu"}


def is_gated(fields: Mapping[str, Any]) -> bool:
    """Return whether an architecture's feed-forward layers are gated, which no argument in config.json says."""
    found = NAME.fullmatch(_name(fields))
    return found is not None and found[2] == "giant" and found[6] in SCALES


def _of_name(found: re.Match, gated: bool) -> dict[str, Any]:
    """Return the arguments that an architecture's name stands for, of those that are not the usual ones."""
    size, registers, kind = found[2], int(found[5] or 0), found[6] or ""
    embed, depth, heads, ratio = GATED if gated else SIZES[size]
    given = {
        "patch_size": int(found[4]), "embed_dim": embed, "depth": depth, "num_heads": heads, "mlp_ratio": ratio,
        "init_values": SCALES.get(kind), "pre_norm": kind.startswith("_clip"), "distilled": found[3] is not None,
        "act_layer": "silu" if gated else "quick_gelu" if kind == "_clip_quickgelu" else "gelu",
        "reg_tokens": registers, "no_embed_class": registers > 0,
    }  # fmt: skip
    if kind != "_gap":
        return given
    plain = size in ("base", "huge", "giant", "so150m")  # trained without factors of channels
    own = size.startswith("so150m")
    given |= {"class_token": False, "global_pool": "avg", "init_values": None if plain else 1e-5}
    given |= {"no_embed_class": registers > 0 and not own, "qkv_bias": size != "so150m2"}
    if not registers:
        given |= {"init_values": None if plain else 1e-6, "qkv_bias": plain, "fc_norm": False}
        return given | ({"num_heads": 16} if size == "base" else {})
    return given | ({"fc_norm": False} if size == "so150m" else {})


def known_arguments(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of timm's VisionTransformer, by the architecture's name and what config.json says.

    Raises:
      ValueError: an architecture or an argument that is not read.
    """
    name = _name(fields)
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"config.json is of timm's {name!r:.60}; Vision Transformers that are read are called vit_SIZE_patchN, "
            "deit_SIZE_patchN or deit_SIZE_distilled_patchN, with _regN for registers, _gap, _clip, _clip_quickgelu, "
            f"_dinov2 or _tipsv2 and the pixels of a side behind it, of the sizes {', '.join(SIZES)}"
        )
    channels, *image = stated_image(fields)
    usual = {
        "img_size": image, "in_chans": channels, "qkv_bias": True, "global_pool": "token", "fc_norm": None,
        "drop_path_rate": 0.0, "class_token": True, "dynamic_img_size": False,
    } | _of_name(found, is_gated(fields))  # fmt: skip
    given = arguments(fields, usual | {"global_pool": fields.get("global_pool") or usual["global_pool"]})
    if given["global_pool"] not in ("token", "avg") or given["act_layer"] not in ACTIVATIONS:
        raise ValueError(
            f"config.json has global_pool={given['global_pool']!r:.20} and act_layer={given['act_layer']!r:.20}; read "
            f"are token and avg, and {', '.join(ACTIVATIONS)}"
        )
    if given["fc_norm"] is None:
        given["fc_norm"] = given["global_pool"] == "avg"
    if given["global_pool"] == "token" and not given["class_token"]:
        raise ValueError("a Transformer of timm without class_token has global_pool='avg', config.json has 'token'")
    if given["distilled"] and (given["global_pool"] != "token" or given["reg_tokens"]):
        raise ValueError("a distilled Transformer of timm has global_pool='token' and no registers")
    return given


def _eps(fields: Mapping[str, Any]) -> float:
    return CLIP_EPS if "_clip" in _name(fields) else EPS


def _name(fields: Mapping[str, Any]) -> str:
    return fields.get(ARCHITECTURE, "vit_base_patch16_224")


def _tokens(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the tokens before the patches."""
    first = ("class_token",) * bool(given["class_token"]) + ("distillation_token",) * bool(given["distilled"])
    return (*first, *(REGISTER,) * given["reg_tokens"])


def read(fields: Fields) -> ViTConfig:
    """Return the encoder."""
    given, gated = known_arguments(fields), is_gated(fields)
    image, patch = pair(given["img_size"]), pair(given["patch_size"])
    embed = given["embed_dim"]
    inner = int(embed * given["mlp_ratio"]) // (2 if gated else 1)
    end = "none" if given["fc_norm"] else "end"
    changed = with_fields(
        vit_encoder("base", 16, image=224), out_bias=True, image=image, patch=patch, channels=given["in_chans"],
        embed=embed, inner=inner, depth=given["depth"], heads=given["num_heads"], gated=gated,
        activation=ACTIVATIONS[given["act_layer"]], norm_eps=_eps(fields), layer_scale=given["init_values"],
        drop_path=given["drop_path_rate"],
    )  # fmt: skip
    return replace(
        changed,
        block=replace(changed.block, attention=replace(changed.block.attention, bias=given["qkv_bias"])),
        patches=replace(changed.patches, bias=not given["pre_norm"]),
        tokens=_tokens(given),
        position="patches" if given["no_embed_class"] else "learned",
        resampling="smooth_bicubic" if given["dynamic_img_size"] else "bicubic",
        norm={"end": "both", "none": "start"}[end] if given["pre_norm"] else end,
    )


def write(config: ViTConfig) -> dict[str, Any]:
    """Return an architecture, and all arguments that make it this one."""
    block, patches = config.block, config.patches
    distilled, gated = "distillation_token" in config.tokens, block.feedforward.gated
    inner, embed = block.feedforward.inner * (2 if gated else 1), block.embed
    name = f"deit_base{'_distilled' * distilled}_patch16_224"
    name = "vit_giant_patch14_reg4_dinov2" if gated else name
    return {
        **written_image(patches.channels, *patches.image),
        ARCHITECTURE: "vit_base_patch16_clip_224" if block.residual.norm_eps == CLIP_EPS else name,
        ARGUMENTS: {
            "img_size": list(patches.image), "patch_size": list(patches.patch), "in_chans": patches.channels,
            "embed_dim": embed, "depth": config.depth, "num_heads": block.attention.heads,
            "mlp_ratio": ratio_of(inner, embed), "qkv_bias": block.attention.bias,
            "init_values": block.residual.layer_scale, "pre_norm": config.start_norm,
            "act_layer": block.feedforward.activation, "drop_path_rate": block.residual.drop_path,
            "fc_norm": not config.end_norm, "class_token": "class_token" in config.tokens,
            "reg_tokens": config.tokens.count(REGISTER), "no_embed_class": config.position == "patches",
            "dynamic_img_size": config.resampling == "smooth_bicubic",
        },
    }  # fmt: skip


def _head(fields: Fields, outputs: int) -> ClassifierConfig:
    config, given = read(fields), known_arguments(fields)
    eps = {"norm": _eps(fields)} if given["fc_norm"] else {}
    if given["global_pool"] == "token":
        return with_head(config, outputs=outputs, pool="first", **eps)
    return with_head(config, outputs=outputs, pool="mean", skip=len(config.tokens), **eps)


def _distilled(fields: Fields) -> DistilledConfig:
    backbone = replace(read(fields), tokens=("class_token", "distillation_token"))
    return DistilledConfig(backbone=backbone, head=head_of(backbone, outputs=fields.labels, pool="first"))


def features(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states, and the one vector that a classifier would read."""
    keys = split_keys(key)
    states = hidden(model.backbone, inputs, keys[0])
    return ModelOutput(last_hidden_state=states, pooler_output=model.head(states, key=keys[1]))


def _mean_of_both(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    states = hidden(model, inputs, key)
    by_label, by_teacher = model.both(states)
    return ModelOutput(logits=(by_label + by_teacher) / 2, last_hidden_state=states)


def _said(config: ClassifierConfig) -> dict[str, Any]:
    """Return what is beside the backbone; timm makes models of the arguments alone."""
    pool = "token" if config.head.pool == "first" else "avg"
    return {"global_pool": pool, ARGUMENTS: {**write(config.backbone)[ARGUMENTS], "global_pool": pool}}


def _grid(fields: Fields) -> tuple[int, int]:
    return read(fields).patches.grid


def _blocks() -> Table:
    ours, theirs = "trunk.blocks", "blocks.{}"
    parts = tuple(f"{ours}.attention.{part}" for part in ("query", "key", "value"))
    gated, gate = (f"{ours}.feedforward.gate", f"{ours}.feedforward.up"), f"{ours}.feedforward.gate.kernel"
    return (
        *norm(f"{ours}.attention_residual.norm", f"{theirs}.norm1"),
        *linear(parts, f"{theirs}.attn.qkv"),
        *linear(f"{ours}.attention.out", f"{theirs}.attn.proj", inputs=2),
        *parameter(f"{ours}.attention_residual.layer_scale", f"{theirs}.ls1.gamma"),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.norm2"),
        *(replace(row, unless=gate) for row in linear(f"{ours}.feedforward.up", f"{theirs}.mlp.fc1")),
        *(replace(row, given=gate) for row in linear(gated, f"{theirs}.mlp.fc1")),
        *linear(f"{ours}.feedforward.down", f"{theirs}.mlp.fc2"),
        *parameter(f"{ours}.feedforward_residual.layer_scale", f"{theirs}.ls2.gamma"),
    )


EMBEDDINGS = (
    *parameter("class_token", "cls_token", ones=1),
    *parameter("distillation_token", "dist_token", ones=1),
    *parameter(REGISTER, "reg_token", ones=1),
    *conv("patches.patch", "patch_embed.proj"),
)
TABLE = (
    *EMBEDDINGS,
    *parameter("positions", "pos_embed", ones=1, fit=fitted_positions(_grid, smooth_bicubic)),
    *norm("norm", "norm_pre"),
    *_blocks(),
    *norm("trunk.norm", "norm"),
)
NORM = norm("head.norm", "fc_norm")
HEADS = (*linear("head.output", "head"), *linear("distillation_head.output", "head_dist"))

FAMILIES = {
    "timm_vit": Family(
        model_type="timm_vit",
        architectures={
            "TimmVisionTransformerForImageClassification": Architecture(
                lambda fields: _head(fields, fields.labels), image_classifier, (*NORM, *HEADS[:2]), _said,
                at="backbone.", base=True, uses=("classification",), inputs=IMAGES, **LAYERS,
            ),
            DISTILLED: Architecture(
                _distilled, _mean_of_both, HEADS, at="backbone.", base=True, uses=("classification",), inputs=IMAGES,
                **LAYERS,
            ),
            "TimmVisionTransformerModel": Architecture(
                lambda fields: _head(fields, 0), features, NORM, _said, at="backbone.", base=True,
                ignored=(r"^head(_dist)?\.",), uses=("feature-extraction",), inputs=IMAGES, **LAYERS,
            ),
        },
        table=TABLE,
        write=write,
    )
}  # fmt: skip
