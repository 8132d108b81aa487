"""DINOv2 checkpoints (Oquab et al. 2023)."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import vit
from flax_transformer.hub.feature_map import backbone
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import LAYERS, MASKABLE, image_classifier, image_model
from flax_transformer.hub.inputs import IMAGES
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, linear, norm, parameter
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.dinov2 import dinov2_base
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import with_fields


def _inner(fields: Fields) -> dict[str, Any]:
    """Find the inner width: of gated layers two thirds of the other, rounded up to a multiple of 8."""
    inner = int(fields.integer("hidden_size", 768) * fields.number("mlp_ratio", 4))
    gated = fields.flag("use_swiglu_ffn", False)
    return {"inner": (int(inner * 2 / 3) + 7) // 8 * 8 if gated else inner, "gated": gated} | (
        {"activation": "silu"} if gated else {}
    )


def _ratio(config: ViTConfig) -> dict[str, Any]:
    layer = config.block.feedforward
    inner = layer.inner * 3 / 2 if layer.gated else layer.inner
    ratio = inner / layer.embed
    said = {"mlp_ratio": int(ratio) if ratio == int(ratio) else ratio, "use_swiglu_ffn": layer.gated}
    return {**said, "hidden_act": "gelu"} if layer.gated else said


ROWS = {name: ours for name, ours in vit.CONFIG.rows.items() if name != "intermediate_size"}
CONFIG = ConfigTable(
    with_fields(dinov2_base(image=224), out_bias=True),
    {**ROWS, "layerscale_value": "layer_scale", "drop_path_rate": "residual.drop_path", "use_mask_token": "mask_token"},
    reads=_inner,
    writes=_ratio,
)
read = CONFIG.read


def _classifier(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=fields.labels, pool="first and mean", skip=1)


def _blocks() -> Table:
    layer, gate = "encoder.layer.{}", "trunk.blocks.feedforward.gate.kernel"
    up, down = (f"trunk.blocks.feedforward.{part}" for part in ("up", "down"))
    plain = (*linear(up, f"{layer}.mlp.fc1"), *linear(down, f"{layer}.mlp.fc2"))
    gated = (
        *linear(("trunk.blocks.feedforward.gate", up), f"{layer}.mlp.weights_in"),
        *linear(down, f"{layer}.mlp.weights_out"),
    )
    scales = (
        parameter(f"trunk.blocks.{ours}_residual.layer_scale", f"{layer}.layer_scale{number}.lambda1")
        for number, ours in enumerate(("attention", "feedforward"), 1)
    )
    return (
        *norm("trunk.blocks.attention_residual.norm", f"{layer}.norm1"),
        *vit.attention("trunk.blocks.attention", f"{layer}.attention"),
        *norm("trunk.blocks.feedforward_residual.norm", f"{layer}.norm2"),
        *(replace(row, unless=gate) for row in plain),
        *(replace(row, given=gate) for row in gated),
        *(row for rows in scales for row in rows),
    )


MASK_TOKEN = parameter("mask_token", "embeddings.mask_token")

FAMILIES = {
    "dinov2": Family(
        model_type="dinov2",
        architectures={
            "Dinov2Model": Architecture(
                read, image_model, base=True, ignored=(r"^classifier\.",),
                uses=("feature-extraction",), inputs=MASKABLE, **LAYERS
            ),
            "Dinov2ForImageClassification": Architecture(
                _classifier, image_classifier, vit.CLASSIFIER, at="backbone.", uses=("classification",), inputs=IMAGES,
                **LAYERS,
            ),
            "Dinov2Backbone": backbone(read, lambda config: config.depth, base=True, tokens=True, end_norm=True,
                ignored=(r"^classifier\.",)),
        },
        table=(*vit.EMBEDDINGS, *MASK_TOKEN, *_blocks(), *norm("trunk.norm", "layernorm")),
        write=CONFIG.write,
        prefix="dinov2.",
        renamed=vit.NEW_ATTENTION,
        modules=vit.NEW_MODULES,
    )
}  # fmt: skip
