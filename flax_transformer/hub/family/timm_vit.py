"""Vision Transformers as timm keeps them: ViT, DeiT, CLIP's and DINOv2's encoders."""

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
from flax_transformer.hub.timm_folder import ARCHITECTURE, ARGUMENTS, DISTILLED, arguments, stated_image
from flax_transformer.models.head import ClassifierConfig, head_of, with_head
from flax_transformer.models.vision.deit import DistilledConfig
from flax_transformer.models.vision.vit import ViTConfig, vit_encoder
from flax_transformer.nn import with_fields
from flax_transformer.ops.split_keys import split_keys

EPS, CLIP_EPS = 1e-6, 1e-5
NAME = re.compile(
    r"(vit|deit)_(tiny|small|medium|base|large|huge)(_distilled)?_patch(\d+)(_clip|_clip_quickgelu|_dinov2)?(_\d+)?"
)
SIZES = {
    "tiny": (192, 12, 3), "small": (384, 12, 6), "medium": (512, 12, 8), "base": (768, 12, 12),
    "large": (1024, 24, 16), "huge": (1280, 32, 16),
}  # fmt: skip
"""Width, depth and heads."""
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "relu": "relu", "silu": "silu"}


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
            "deit_SIZE_patchN or deit_SIZE_distilled_patchN, with _clip, _clip_quickgelu or _dinov2 and the pixels "
            f"of a side behind it, of the sizes {', '.join(SIZES)}"
        )
    (embed, depth, heads), kind = SIZES[found[2]], found[5] or ""
    channels, *image = stated_image(fields)
    given = arguments(fields, {
        "img_size": image, "patch_size": int(found[4]), "in_chans": channels, "embed_dim": embed, "depth": depth,
        "num_heads": heads, "mlp_ratio": 4.0, "qkv_bias": True, "init_values": 1e-5 if kind == "_dinov2" else None,
        "pre_norm": kind.startswith("_clip"), "global_pool": fields.get("global_pool") or "token", "fc_norm": None,
        "act_layer": "quick_gelu" if kind == "_clip_quickgelu" else "gelu", "distilled": found[3] is not None,
        "drop_path_rate": 0.0,
    })  # fmt: skip
    if given["global_pool"] not in ("token", "avg") or given["act_layer"] not in ACTIVATIONS:
        raise ValueError(
            f"config.json has global_pool={given['global_pool']!r:.20} and act_layer={given['act_layer']!r:.20}; read "
            f"are token and avg, and {', '.join(ACTIVATIONS)}"
        )
    if given["fc_norm"] is None:
        given["fc_norm"] = given["global_pool"] == "avg"
    if given["distilled"] and given["global_pool"] != "token":
        raise ValueError("a distilled Transformer of timm has global_pool='token'")
    return given


def _eps(fields: Mapping[str, Any]) -> float:
    return CLIP_EPS if "_clip" in _name(fields) else EPS


def _name(fields: Mapping[str, Any]) -> str:
    return fields.get(ARCHITECTURE, "vit_base_patch16_224")


def read(fields: Fields) -> ViTConfig:
    """Return the encoder."""
    given = known_arguments(fields)
    both = (given["img_size"], given["patch_size"])
    image, patch = (tuple(each) if isinstance(each, list | tuple) else (each, each) for each in both)
    embed = given["embed_dim"]
    end = "none" if given["fc_norm"] else "end"
    changed = with_fields(
        vit_encoder("base", 16, image=224), out_bias=True, image=image, patch=patch, channels=given["in_chans"],
        embed=embed, inner=int(embed * given["mlp_ratio"]), depth=given["depth"], heads=given["num_heads"],
        activation=ACTIVATIONS[given["act_layer"]], norm_eps=_eps(fields), layer_scale=given["init_values"],
        drop_path=given["drop_path_rate"],
    )  # fmt: skip
    return replace(
        changed,
        block=replace(changed.block, attention=replace(changed.block.attention, bias=given["qkv_bias"])),
        patches=replace(changed.patches, bias=not given["pre_norm"]),
        tokens=("class_token", "distillation_token") if given["distilled"] else ("class_token",),
        norm={"end": "both", "none": "start"}[end] if given["pre_norm"] else end,
    )


def write(config: ViTConfig) -> dict[str, Any]:
    """Return an architecture, and all arguments that make it this one."""
    block, patches = config.block, config.patches
    distilled = "distillation_token" in config.tokens
    inner, embed = block.feedforward.inner, block.embed
    name = f"deit_base{'_distilled' * distilled}_patch16_224"
    return {
        ARCHITECTURE: "vit_base_patch16_clip_224" if block.residual.norm_eps == CLIP_EPS else name,
        ARGUMENTS: {
            "img_size": list(patches.image), "patch_size": list(patches.patch), "in_chans": patches.channels,
            "embed_dim": embed, "depth": config.depth, "num_heads": block.attention.heads, "mlp_ratio": inner / embed,
            "qkv_bias": block.attention.bias, "init_values": block.residual.layer_scale, "pre_norm": config.start_norm,
            "act_layer": block.feedforward.activation, "drop_path_rate": block.residual.drop_path,
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


def _features(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    keys = split_keys(key)
    states = hidden(model.backbone, inputs, keys[0])
    return ModelOutput(last_hidden_state=states, pooler_output=model.head(states, key=keys[1]))


def _mean_of_both(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    states = hidden(model, inputs, key)
    by_label, by_teacher = model.both(states)
    return ModelOutput(logits=(by_label + by_teacher) / 2, last_hidden_state=states)


def _said(config: ClassifierConfig) -> dict[str, Any]:
    return {"global_pool": "token" if config.head.pool == "first" else "avg"}


def _blocks() -> Table:
    ours, theirs = "trunk.blocks", "blocks.{}"
    parts = tuple(f"{ours}.attention.{part}" for part in ("query", "key", "value"))
    return (
        *norm(f"{ours}.attention_residual.norm", f"{theirs}.norm1"),
        *linear(parts, f"{theirs}.attn.qkv"),
        *linear(f"{ours}.attention.out", f"{theirs}.attn.proj", inputs=2),
        *parameter(f"{ours}.attention_residual.layer_scale", f"{theirs}.ls1.gamma"),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.norm2"),
        *linear(f"{ours}.feedforward.up", f"{theirs}.mlp.fc1"),
        *linear(f"{ours}.feedforward.down", f"{theirs}.mlp.fc2"),
        *parameter(f"{ours}.feedforward_residual.layer_scale", f"{theirs}.ls2.gamma"),
    )


TABLE = (
    *parameter("class_token", "cls_token", ones=1),
    *parameter("distillation_token", "dist_token", ones=1),
    *parameter("positions", "pos_embed", ones=1, fit=fitted_positions(lambda fields: read(fields).patches.grid)),
    *conv("patches.patch", "patch_embed.proj"),
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
                lambda fields: _head(fields, 0), _features, NORM, _said, at="backbone.", base=True,
                ignored=(r"^head(_dist)?\.",), uses=("feature-extraction",), inputs=IMAGES, **LAYERS,
            ),
        },
        table=TABLE,
        write=write,
    )
}  # fmt: skip
