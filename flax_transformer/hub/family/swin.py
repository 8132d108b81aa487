"""Swin checkpoints (Liu et al. 2021)."""

from functools import partial
from typing import Any

from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.config import ConfigTable, choice, sides
from flax_transformer.hub.family import vit
from flax_transformer.hub.feature_map import backbone, bare
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import MASKABLE, hidden, image_classifier, image_restorer
from flax_transformer.hub.inputs import IMAGES, Inputs
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm, parameter
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.restore import RestorerConfig
from flax_transformer.models.vision.swin import SwinConfig, swin_tiny
from flax_transformer.nn import with_fields

STAGES = 8
"""As many as a checkpoint may have; published ones have four."""


def inner_width(width: int, ratio: float | int) -> int:
    """Return the inner width of a feed-forward layer.

    Raises:
      ValueError: for one that is not whole, which transformers would round anew in each stage.
    """
    inner = width * ratio
    if abs(inner - round(inner)) > 1e-6 or inner < 1:
        raise ValueError(f"config.json must give mlp_ratio so that {width} times it is whole, it is {ratio}")
    return round(inner)


def ratio_of(inner: int, width: int) -> float | int:
    """Return the ratio of two widths as config.json has it."""
    return inner // width if inner % width == 0 else inner / width


def _first(fields: Fields) -> dict[str, Any]:
    heads = fields["num_heads"]
    inner = inner_width(fields.integer("embed_dim"), fields.number("mlp_ratio", 4.0))
    return {"first.heads": heads[0] if heads else 1, "inner": inner}


def _ratio(config: SwinConfig) -> dict[str, Any]:
    return {"mlp_ratio": ratio_of(config.first.feedforward.inner, config.first.embed)}


CONFIG = ConfigTable(
    with_fields(swin_tiny().backbone, out_bias=True),
    {
        "image_size": sides("image"),
        "patch_size": sides("patches.patch"),
        "num_channels": "channels",
        "embed_dim": "embed",
        "depths": "depths",
        "num_heads": "stage_heads",
        "window_size": "attention.size",
        "qkv_bias": "attention.bias",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "initializer_range": "init_std",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "drop_path_rate": ".drop_path",
        "use_absolute_embeddings": choice(".position", {True: "learned", False: "none"}),
    },
    reads=_first,
    writes=_ratio,
)
read = CONFIG.read


def _classifying(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=fields.labels, pool="mean")


def _restoring(fields: Fields) -> RestorerConfig:
    backbone = with_fields(read(fields), mask_token=True)
    return RestorerConfig(
        backbone=backbone, embed=backbone.block.embed, stride=fields.integer("encoder_stride", 32),
        channels=backbone.patches.channels, skip=0, precision=backbone.patches.precision,
    )  # fmt: skip


def _filled(fields: Fields) -> SwinConfig:
    return with_fields(read(fields), filled=True)


def averaged(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states and their mean, as SwinModel does."""
    states = hidden(model, inputs, key)
    return ModelOutput(last_hidden_state=states, pooler_output=states.mean(axis=1))


def layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name what stages were given and the last one gave, and the attention weights of the last layer of each."""
    found = {}
    if "grid_states" in seen:
        found["hidden_states"] = tuple(x.reshape(len(x), -1, x.shape[-1]) for x in seen["grid_states"])
        found["reshaped_hidden_states"] = tuple(x.transpose(0, 3, 1, 2) for x in seen["grid_states"])
    if "attention_weights" in seen:
        found["attentions"] = tuple(stage[-1].reshape(-1, *stage.shape[-3:]) for stage in seen["attention_weights"])
    return found


def _stage(i: int) -> Table:
    ours, theirs = f"stages.{i}.blocks", f"encoder.layers.{i}.blocks.{{}}"
    attention, after = f"{ours}.attention", f"encoder.layers.{i}.downsample"
    return (
        *norm(f"{ours}.attention_residual.norm", f"{theirs}.layernorm_before"),
        *linear(f"{attention}.attention.query", f"{theirs}.attention.self.query"),
        *linear(f"{attention}.attention.key", f"{theirs}.attention.self.key"),
        *linear(f"{attention}.attention.value", f"{theirs}.attention.self.value"),
        *parameter(f"{attention}.relative.table", f"{theirs}.attention.self.relative_position_bias_table"),
        *linear(f"{attention}.attention.out", f"{theirs}.attention.output.dense", inputs=2),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.layernorm_after"),
        *linear(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense"),
        *linear(f"{ours}.feedforward.down", f"{theirs}.output.dense"),
        *norm(f"merges.{i}.norm", f"{after}.norm"),
        *linear(f"merges.{i}.project", f"{after}.reduction"),
    )


def _grid(fields: Fields) -> tuple[int, int]:
    return read(fields).patches.grid


TABLE = (
    *conv("patches.patch", "embeddings.patch_embeddings.projection"),
    *norm("patch_norm", "embeddings.norm"),
    *parameter("positions", "embeddings.position_embeddings", ones=1, fit=fitted_positions(_grid)),
    *parameter("mask_token", "embeddings.mask_token", ones=1),
    *(row for i in range(STAGES) for row in _stage(i)),
    *norm("norm", "layernorm"),
)
RENAMED = {
    r"\.attention\.q_proj\.": ".attention.self.query.",
    r"\.attention\.k_proj\.": ".attention.self.key.",
    r"\.attention\.v_proj\.": ".attention.self.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.attention\.relative_position_bias\.relative": ".attention.self.relative",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}
"""Names of transformers 5, which keeps others in files."""
MODULES = {
    r"\.attention\.self\.(q|k|v)(uery|ey|alue)\.": r".attention.\1_proj.",
    r"\.attention\.output\.dense\.": ".attention.o_proj.",
    r"\.intermediate\.dense\.": ".mlp.fc1.",
    r"(blocks\.\d+)\.output\.dense\.": r"\1.mlp.fc2.",
}
"""The same, the other way."""
LARGER = (r"(^|\.)embeddings\.mask_token$", r"^classifier\.", r"^decoder\.")
LAYERS = {"marks": ("grid_states",), "layers": layers}

FAMILIES = {
    "swin": Family(
        model_type="swin",
        architectures={
            "SwinModel": Architecture(
                read, averaged, base=True, ignored=LARGER, uses=("feature-extraction",), inputs=IMAGES, **LAYERS
            ),
            "SwinForImageClassification": Architecture(
                _classifying, image_classifier, vit.CLASSIFIER, at="backbone.", ignored=LARGER,
                uses=("classification",),
                inputs=IMAGES, **LAYERS,
            ),
            "SwinForMaskedImageModeling": Architecture(
                _restoring, image_restorer, vit.PIXELS, at="backbone.", ignored=LARGER[1:2], uses=("fill-mask",),
                inputs=MASKABLE, **LAYERS,
            ),
            "SwinBackbone": backbone(
                _filled, lambda config: len(config.depths), ignored=LARGER,
                widths=lambda config: config.stage_widths,
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="swin.",
        ignored=(r"\.relative_position_index$",),
        renamed=RENAMED,
        modules=MODULES,
        spelled=partial(bare, r"^swin\.(?=encoder\.|embeddings\.)"),
    )
}  # fmt: skip
