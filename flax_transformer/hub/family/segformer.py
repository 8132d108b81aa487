"""SegFormer checkpoints (Xie et al. 2021)."""

from itertools import chain
from typing import Any

from jaxtyping import Array, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, images_of
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import vit
from flax_transformer.hub.family.pvt import STAGES, read_lists, write_lists
from flax_transformer.hub.feature_map import channels_first
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import IMAGES, Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.segmentation import segmented
from flax_transformer.hub.table import Table, batch_norm, conv, linear, norm
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.vision.segformer import mit_b0, with_mlp_head
from flax_transformer.models.vision.segmenter import SegmenterConfig
from flax_transformer.nn import with_fields
from flax_transformer.ops.split_keys import split_keys

EACH = {
    "hidden_sizes": "widths",
    "depths": "depths",
    "num_attention_heads": "stage_heads",
    "patch_sizes": "windows",
    "strides": "strides",
    "sr_ratios": "reductions",
}
"""Lists with an entry for each stage, of which the first `num_encoder_blocks` count."""


def _stages(fields: Fields) -> dict[str, Any]:
    return read_lists(fields, EACH, [4, 4, 4, 4])


CONFIG = ConfigTable(
    with_fields(mit_b0().backbone, out_bias=True),
    {
        **EACH,
        "num_channels": ".channels",
        "hidden_act": "activation",
        "initializer_range": "init_std",
        "hidden_dropout_prob": ("residual.dropout", "activation_dropout"),
        "attention_probs_dropout_prob": "attention_dropout",
        "drop_path_rate": ".drop_path",
    },
    reads=_stages,
    writes=write_lists,
)
read = CONFIG.read


def _classifying(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=fields.labels, pool="mean")


def _segmenting(fields: Fields) -> SegmenterConfig:
    if not _in_grid(fields):
        raise ValueError("a segmenter must give its last stage as a grid, config.json has reshape_last_stage=false")
    embed, dropout = fields.integer("decoder_hidden_size", 256), fields.number("classifier_dropout_prob", 0.1)
    return with_mlp_head(read(fields), fields.labels, embed=embed, dropout=dropout)


def _write_head(config: SegmenterConfig) -> dict[str, Any]:
    return {"decoder_hidden_size": config.head.embed, "classifier_dropout_prob": config.dropout}


def _in_grid(fields: Fields) -> bool:
    return fields.flag("reshape_last_stage", True)


def _last(x: Array, fields: Fields) -> Array:
    """Lay out what the last stage gives as config.json says, as a feature map or line by line."""
    return channels_first(x) if _in_grid(fields) else x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _model(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return what the last stage gives, as SegformerModel does."""
    return ModelOutput(last_hidden_state=_last(model.feature_map(images_of(inputs), key=key), fields))


def _classifier(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Classify by the mean of what the last stage gives, as SegformerForImageClassification does."""
    keys = split_keys(key)
    found = model.backbone.feature_map(images_of(inputs), key=keys[0])
    hidden = found.reshape(*found.shape[:-3], -1, found.shape[-1])
    return ModelOutput(logits=model.output(hidden, key=keys[1]), last_hidden_state=_last(found, fields))


def layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, tuple[Array, ...]]:
    """Name what each stage gave, and attention weights."""
    found = {}
    if "stage_maps" in seen:
        found["hidden_states"] = tuple(map(channels_first, seen["stage_maps"]))
        if output.last_hidden_state is not None:
            found["hidden_states"] = (*found["hidden_states"][:-1], output.last_hidden_state)
    if "attention_weights" in seen:
        found["attentions"] = tuple(chain(*seen["attention_weights"]))
    return found


def _stage(i: int) -> Table:
    ours, theirs = f"stages.{i}.blocks", f"encoder.block.{i}.{{}}"
    inside, before = f"{theirs}.attention.self", f"encoder.patch_embeddings.{i}"
    rows = (
        *conv(f"embeddings.{i}.patches", f"{before}.proj"),
        *norm(f"embeddings.{i}.norm", f"{before}.layer_norm"),
        *norm(f"{ours}.attention_residual.norm", f"{theirs}.layer_norm_1"),
        *conv(f"{ours}.attention.patches.patch", f"{inside}.sr"),
        *norm(f"{ours}.attention.norm", f"{inside}.layer_norm"),
        *linear(f"{ours}.attention.attention.out", f"{theirs}.attention.output.dense", inputs=2),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.layer_norm_2"),
        *linear(f"{ours}.feedforward.up", f"{theirs}.mlp.dense1"),
        *conv(f"{ours}.feedforward.convolution", f"{theirs}.mlp.dwconv.dwconv"),
        *linear(f"{ours}.feedforward.down", f"{theirs}.mlp.dense2"),
        *norm(f"stages.{i}.norm", f"encoder.layer_norm.{i}"),
    )
    parts = (linear(f"{ours}.attention.attention.{part}", f"{inside}.{part}") for part in ("query", "key", "value"))
    return (*rows, *chain(*parts))


HEAD = (
    *chain(*(linear(f"head.lateral{i}", f"decode_head.linear_c.{i}.proj") for i in range(STAGES))),
    *conv("head.fuse.convolution", "decode_head.linear_fuse"),
    *batch_norm("head.fuse.norm", "decode_head.batch_norm"),
    *conv("head.output", "decode_head.classifier", ones=2),
)
INSIDE = {
    "attention.self.query": "attention.q_proj",
    "attention.self.key": "attention.k_proj",
    "attention.self.value": "attention.v_proj",
    "attention.self.sr": "attention.sequence_reduction.sequence_reduction",
    "attention.self.layer_norm": "attention.sequence_reduction.layer_norm",
    "attention.output.dense": "attention.o_proj",
    "mlp.dense1": "mlp.fc1",
    "mlp.dense2": "mlp.fc2",
    "layer_norm_1": "layernorm_before",
    "layer_norm_2": "layernorm_after",
}
"""Modules of a block, by their names in files and in transformers 5."""


def _renamed() -> tuple[dict[str, str], dict[str, str]]:
    """Return the patterns that make names of files of those of transformers 5, and the other way."""
    old, new = r"(^|\.)encoder\.{}\.(\d+)\.", r"(^|\.)stages\.(\d+)\.{}\."
    parts = {"patch_embeddings": "patch_embeddings", "block": "blocks", "layer_norm": "layer_norm"}
    head = {r"^decode_head\.linear_projections\.": "decode_head.linear_c."}
    inside = {theirs: mine for mine, theirs in INSIDE.items()}
    read = {new.format(theirs): rf"\1encoder.{mine}.\2." for mine, theirs in parts.items()}
    read |= {rf"(block\.\d+\.\d+)\.{theirs}\.": rf"\1.{mine}." for theirs, mine in inside.items()}
    said = {old.format(mine): rf"\1stages.\2.{theirs}." for mine, theirs in parts.items()}
    said |= {rf"(blocks\.\d+)\.{mine}\.": rf"\1.{theirs}." for mine, theirs in INSIDE.items()}
    return {**head, **read}, {r"^decode_head\.linear_c\.": "decode_head.linear_projections.", **said}


RENAMED, MODULES = _renamed()
LAYERS = {"marks": ("stage_maps",), "layers": layers, "inputs": IMAGES}

FAMILIES = {
    "segformer": Family(
        model_type="segformer",
        architectures={
            "SegformerModel": Architecture(
                read, _model, base=True, ignored=(r"^classifier\.", r"^decode_head\."), uses=("feature-extraction",),
                **LAYERS,
            ),
            "SegformerForImageClassification": Architecture(
                _classifying, _classifier, vit.CLASSIFIER, at="backbone.", ignored=(r"^decode_head\.",),
                uses=("classification",), **LAYERS,
            ),
            "SegformerForSemanticSegmentation": Architecture(
                _segmenting, segmented, HEAD, _write_head, at="backbone.backbone.", ignored=(r"^classifier\.",),
                uses=("image-segmentation",), **LAYERS,
            ),
        },
        table=tuple(row for i in range(STAGES) for row in _stage(i)),
        write=CONFIG.write,
        prefix="segformer.",
        renamed=RENAMED,
        modules=MODULES,
    )
}  # fmt: skip
