"""DINOv3 checkpoints (Siméoni et al. 2025)."""

from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.family import vit
from flax_transformer.hub.feature_map import backbone
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS, MASKABLE, image_classifier, image_model
from flax_transformer.hub.inputs import IMAGES
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm, parameter
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.backbone import BackboneConfig
from flax_transformer.models.vision.dinov3 import DINOv3Config, dinov3_small

PROJECTIONS = "query", "key", "value"
REGISTER = "register_tokens"


def _besides(fields: Fields) -> dict[str, Any]:
    """Read which of queries, keys and values have a bias, and how many registers there are."""
    biased = tuple(part for part in PROJECTIONS if fields.flag(f"{part}_bias", part != "key"))
    return {
        "attention.bias": biased,
        "tokens": ("class_token", *(REGISTER,) * fields.integer("num_register_tokens", 0)),
        **{f"places.{name}": _move(fields, f"pos_embed_{name}", usual) for name, usual in MOVES.items()},
    }


def _move(fields: Fields, name: str, usual: float | None) -> float | None:
    return None if fields.get(name, usual) is None else float(fields.number(name, usual))


def _write(config: DINOv3Config) -> dict[str, Any]:
    attention = config.block.attention
    return {
        **{f"{part}_bias": part in attention.biased for part in PROJECTIONS},
        "num_register_tokens": config.tokens.count(REGISTER),
        **{f"pos_embed_{name}": getattr(attention.places, name) for name in MOVES},
    }


MOVES = {"shift": None, "jitter": None, "rescale": 2.0}
CONFIG = ConfigTable(
    dinov3_small(),
    {
        "image_size": sides("image"),
        "patch_size": sides("patches.patch"),
        "num_channels": "channels",
        "hidden_size": "embed",
        "num_hidden_layers": "depth",
        "num_attention_heads": "attention.heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "initializer_range": "init_std",
        "attention_dropout": "attention_dropout",
        "rope_theta": "places.base",
        "proj_bias": "out_bias",
        "mlp_bias": "feedforward.bias",
        "use_gated_mlp": "gated",
        "layerscale_value": "layer_scale",
        "drop_path_rate": "residual.drop_path",
    },
    reads=_besides,
    writes=_write,
)
read = CONFIG.read


def _classifier(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=fields.labels, pool="first and mean", skip=len(read(fields).tokens))


def _maps(plain: Architecture, fields: Fields) -> BackboneConfig:
    """Read a backbone.

    Raises:
      ValueError: maps that are not normalised, or not given as grids, or class tokens beside them.
    """
    fields.only(apply_layernorm=True, reshape_hidden_states=True, return_class_token=False)
    return plain.config(fields)


def _backbone() -> Architecture:
    plain = backbone(read, lambda config: config.depth, base=True, tokens=True, end_norm=True, ignored=IGNORED)
    return replace(plain, config=partial(_maps, plain))


def _blocks() -> Table:
    ours, layer = "trunk.blocks", "layer.{}"
    parts = (linear(f"{ours}.attention.{part}", f"{layer}.attention.{part[0]}_proj") for part in PROJECTIONS)
    scales = (
        parameter(f"{ours}.{part}_residual.layer_scale", f"{layer}.layer_scale{number}.lambda1")
        for number, part in enumerate(("attention", "feedforward"), 1)
    )
    return (
        *norm(f"{ours}.attention_residual.norm", f"{layer}.norm1"),
        *(row for rows in parts for row in rows),
        *linear(f"{ours}.attention.out", f"{layer}.attention.o_proj", inputs=2),
        *norm(f"{ours}.feedforward_residual.norm", f"{layer}.norm2"),
        *(
            row
            for part in ("gate", "up", "down")
            for row in linear(f"{ours}.feedforward.{part}", f"{layer}.mlp.{part}_proj")
        ),
        *(row for rows in scales for row in rows),
    )


IGNORED = (r"^classifier\.",)
EMBEDDINGS = (
    *parameter("class_token", "embeddings.cls_token", ones=1),
    *parameter(REGISTER, "embeddings.register_tokens", ones=1),
    *parameter("mask_token", "embeddings.mask_token", ones=1),
    *conv("patches.patch", "embeddings.patch_embeddings"),
)

FAMILIES = {
    "dinov3_vit": Family(
        model_type="dinov3_vit",
        architectures={
            "DINOv3ViTModel": Architecture(
                read, image_model, base=True, ignored=IGNORED, uses=("feature-extraction",), inputs=MASKABLE, **LAYERS
            ),
            "DINOv3ViTForImageClassification": Architecture(
                _classifier, image_classifier, vit.CLASSIFIER, at="backbone.", uses=("classification",), inputs=IMAGES,
                **LAYERS,
            ),
            "DINOv3ViTBackbone": _backbone(),
        },
        table=(*EMBEDDINGS, *_blocks(), *norm("trunk.norm", "norm")),
        write=CONFIG.write,
        ignored=(r"^embeddings\.register_tokens$",),
        renamed={r"^model\.layer\.": "layer."},
        modules={r"^layer\.": "model.layer."},
    )
}  # fmt: skip
