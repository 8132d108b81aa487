"""PVT checkpoints (Wang et al. 2021)."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.config import ConfigTable, sides
from flax_transformer.hub.family import vit
from flax_transformer.hub.family.swin import inner_width, ratio_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.image_call import hidden, image_classifier
from flax_transformer.hub.inputs import IMAGES, Inputs
from flax_transformer.hub.positions import fitted_positions
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, conv, linear, norm, parameter
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.pvt import PVTConfig, pvt_tiny
from flax_transformer.nn import with_fields
from flax_transformer.ops.resample import bilinear

STAGES = 8
"""As many as a checkpoint may have; published ones have four."""
EACH = {
    "hidden_sizes": "widths",
    "depths": "depths",
    "num_attention_heads": "stage_heads",
    "patch_sizes": "strides",
    "sequence_reduction_ratios": "reductions",
}
"""Lists with an entry for each stage, of which the first `num_encoder_blocks` count."""


def read_lists(fields: Fields, each: Mapping[str, str], ratios: list[int]) -> dict[str, Any]:
    """Read the lists with an entry for each stage, of which the first `num_encoder_blocks` count, and what is the same
    of the first stage's blocks.

    Args:
      each: where ours are, by the name of theirs.
      ratios: `mlp_ratios` where config.json gives none.

    Raises:
      ValueError: what is no list, or too short, or a ratio by which an inner width is not whole.
    """
    count, lists = fields.integer("num_encoder_blocks", 4), {name: fields[name] for name in each}
    lists["mlp_ratios"] = fields.get("mlp_ratios", ratios)
    for name, values in lists.items():
        if count < 1 or not isinstance(values, list) or len(values) < count:
            raise ValueError(f"config.json must give {name} for each of {count} stages, it is {values!r}")
    found = {ours: tuple(fields[name][:count]) for name, ours in each.items()}
    numbers = [Fields.of({"mlp_ratios": each}).number("mlp_ratios") for each in lists["mlp_ratios"][:count]]
    found["inners"] = tuple(map(inner_width, found["widths"], numbers))
    return {
        **found, "embed": found["widths"][0], "first.heads": found["stage_heads"][0], "inner": found["inners"][0],
    }  # fmt: skip


def write_lists(config: Any) -> dict[str, Any]:
    """Write what `read_lists` reads and no row of a table names."""
    ratios = [ratio_of(inner, width) for inner, width in zip(config.inners, config.widths, strict=True)]
    return {"num_encoder_blocks": len(config.depths), "mlp_ratios": ratios}


def _stages(fields: Fields) -> dict[str, Any]:
    strides, sizes = fields.get("strides", fields["patch_sizes"]), fields["patch_sizes"]
    found = read_lists(fields.updated({"strides": strides}), {**EACH, "strides": "strides"}, [8, 8, 4, 4])
    if found["strides"] != tuple(sizes[: len(found["strides"])]):
        raise ValueError(f"patches must lie side by side, got patch_sizes={sizes}, strides={strides}")
    return {**found, "patches.patch": (found["strides"][0],) * 2}


def _lists(config: PVTConfig) -> dict[str, Any]:
    return {**write_lists(config), "strides": list(config.strides)}


CONFIG = ConfigTable(
    with_fields(pvt_tiny().backbone, out_bias=True),
    {
        **EACH,
        "image_size": sides("patches.image"),
        "num_channels": "channels",
        "qkv_bias": "attention.bias",
        "hidden_act": "activation",
        "layer_norm_eps": "norm_eps",
        "initializer_range": "init_std",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "drop_path_rate": ".drop_path",
    },
    reads=_stages,
    writes=_lists,
)
read = CONFIG.read


def _classifying(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=fields.labels, pool="first")


def states(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states, as PvtModel does."""
    return ModelOutput(last_hidden_state=hidden(model, inputs, key))


def layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name what each layer gave, and what the norm at the end made of the last, and their attention weights."""
    found = {}
    if "hidden_states" in seen:
        stages = zip(seen["hidden_states"], seen["trunk_output"], strict=True)
        found["hidden_states"] = (*chain(*((*given[1:], end) for given, end in stages)), output.last_hidden_state)
    if "attention_weights" in seen:
        found["attentions"] = tuple(chain(*seen["attention_weights"]))
    return found


def _stage(i: int) -> Table:
    ours, theirs = f"stages.{i}.blocks", f"encoder.block.{i}.{{}}"
    inside, before = f"{theirs}.attention.self", f"encoder.patch_embeddings.{i}"
    fit = fitted_positions(lambda fields: read(fields).stage_patches[i].grid, bilinear)
    return (
        *conv(f"embeddings.{i}.patches.patch", f"{before}.projection"),
        *norm(f"embeddings.{i}.norm", f"{before}.layer_norm"),
        *parameter(f"embeddings.{i}.class_token", f"{before}.cls_token", ones=1),
        *parameter(f"embeddings.{i}.positions", f"{before}.position_embeddings", ones=1, fit=fit),
        *norm(f"{ours}.attention_residual.norm", f"{theirs}.layer_norm_1"),
        *linear(f"{ours}.attention.attention.query", f"{inside}.query"),
        *linear(f"{ours}.attention.attention.key", f"{inside}.key"),
        *linear(f"{ours}.attention.attention.value", f"{inside}.value"),
        *conv(f"{ours}.attention.patches.patch", f"{inside}.sequence_reduction"),
        *norm(f"{ours}.attention.norm", f"{inside}.layer_norm"),
        *linear(f"{ours}.attention.attention.out", f"{theirs}.attention.output.dense", inputs=2),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.layer_norm_2"),
        *linear(f"{ours}.feedforward.up", f"{theirs}.mlp.dense1"),
        *linear(f"{ours}.feedforward.down", f"{theirs}.mlp.dense2"),
    )


LAYERS = {"marks": ("hidden_states", "trunk_output"), "layers": layers}

FAMILIES = {
    "pvt": Family(
        model_type="pvt",
        architectures={
            "PvtModel": Architecture(
                read, states, base=True, ignored=(r"^classifier\.",),
                uses=("feature-extraction",), inputs=IMAGES, **LAYERS
            ),
            "PvtForImageClassification": Architecture(
                _classifying, image_classifier, vit.CLASSIFIER, at="backbone.", uses=("classification",), inputs=IMAGES,
                **LAYERS,
            ),
        },
        table=(*(row for i in range(STAGES) for row in _stage(i)), *norm("norm", "encoder.layer_norm")),
        write=CONFIG.write,
        prefix="pvt.",
    )
}  # fmt: skip
