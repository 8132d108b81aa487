"""ConvNeXt checkpoints (Liu et al. 2022)."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.feature_map import backbone, channels_first, map_classifier, of_maps
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, TensorRow, conv, linear, norm
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.convnext import ConvNextConfig
from flax_transformer.ops.split_keys import split_keys

STAGES = 8
"""As many stages as a checkpoint may have."""


def read_scale(fields: Fields) -> Mapping[str, Any]:
    """Read what factors of channels start with; 0 means that there are none.

    Raises:
      ValueError: for another number of stages than there are depths.
    """
    if (stages := fields.get("num_stages", len(fields["depths"]))) != len(fields["depths"]):
        raise ValueError(
            f"config.json must give depths of as many stages as num_stages, {stages}, it has {fields.depths}"
        )
    return {"layer_scale": fields.number("layer_scale_init_value", 1e-6) or None}


def write_scale(config: ConvNextConfig) -> dict[str, Any]:
    """Write what factors of channels start with."""
    return {"layer_scale_init_value": config.layer_scale or 0.0, "num_stages": len(config.depths)}


CONFIG = ConfigTable(
    ConvNextConfig(),
    {
        "num_channels": "channels",
        "patch_size": "patch",
        "hidden_sizes": "widths",
        "depths": "depths",
        "hidden_act": "activation",
        "initializer_range": "init_std",
        "drop_path_rate": "drop_path",
    },
    reads=read_scale,
    writes=write_scale,
)


def stage(number: int) -> Table:
    """Return the rows of one stage."""
    ours, theirs = f"stage{number + 1}.blocks", f"encoder.stages.{number}.layers.{{}}"
    merge, merged = f"merge{number + 1}", f"encoder.stages.{number}.downsampling_layer"
    return (
        *norm(f"{merge}.norm", f"{merged}.0"),
        *conv(f"{merge}.convolution", f"{merged}.1"),
        *conv(f"{ours}.convolution", f"{theirs}.dwconv"),
        *norm(f"{ours}.norm", f"{theirs}.layernorm"),
        *linear(f"{ours}.feedforward.up", f"{theirs}.pwconv1"),
        *linear(f"{ours}.feedforward.down", f"{theirs}.pwconv2"),
        TensorRow((f"{ours}.residual.layer_scale",), f"{theirs}.layer_scale_parameter"),
    )


TABLE = (
    *conv("patches", "embeddings.patch_embeddings"),
    *norm("norm", "embeddings.layernorm"),
    *(row for number in range(STAGES) for row in stage(number)),
)


def pooled(fields: Fields) -> ClassifierConfig:
    """Put a pooler on the network."""
    return with_head(CONFIG.read(fields), outputs=0, pool="mean", norm=fields.number("layer_norm_eps", 1e-12))


def classifying(fields: Fields) -> ClassifierConfig:
    """Put a pooler and a linear layer on the network."""
    eps = fields.number("layer_norm_eps", 1e-12)
    return with_head(CONFIG.read(fields), outputs=fields.labels, pool="mean", norm=eps)


def pooled_map(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return the last feature map, and its mean after a norm, as ConvNextModel does."""
    keys = split_keys(key)
    found = model.backbone.feature_map(images_of(inputs), key=keys[0])
    hidden = found.reshape(*found.shape[:-3], -1, found.shape[-1])
    return ModelOutput(last_hidden_state=channels_first(found), pooler_output=model.head(hidden, key=keys[1]))


FAMILIES = {
    "convnext": Family(
        model_type="convnext",
        architectures={
            "ConvNextModel": of_maps(
                Architecture(
                    pooled, pooled_map, norm("head.norm", "layernorm"), at="backbone.", base=True,
                    uses=("feature-extraction",),
                    ignored=(r"^classifier\.",),
                )
            ),
            "ConvNextForImageClassification": of_maps(
                Architecture(
                    classifying, map_classifier,
                    (*norm("head.norm", "convnext.layernorm"), *linear("head.output", "classifier")), at="backbone.",
                    uses=("classification",),
                )
            ),
            "ConvNextBackbone": backbone(
                CONFIG.read, lambda config: len(config.depths), base=True, eps=1e-6,
                widths=lambda config: config.stage_widths, ignored=(r"^classifier\.", r"^layernorm\."),
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="convnext.",
    )
}  # fmt: skip
