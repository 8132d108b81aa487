"""LXMERT checkpoints (Tan & Bansal 2019).

Axes: B texts, T tokens, R regions of an image, S = T + R, D width.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family import bert
from flax_transformer.hub.family.bert import attention, blocks
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import TensorRow, linear, norm
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.multimodal.lxmert import LxmertPretrainingConfig, answers_of, lxmert_encoder
from flax_transformer.ops.mask_field import check_broadcast
from flax_transformer.ops.split_keys import split_keys

LOSSES = ("task_obj_predict", "task_qa", "visual_obj_loss", "visual_attr_loss", "visual_feat_loss")
CONFIG = ConfigTable(
    lxmert_encoder(),
    {
        "vocab_size": "vocab",
        "max_position_embeddings": "max_length",
        "type_vocab_size": "types",
        "hidden_size": "embed",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "initializer_range": "init_std",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "l_layers": ".depth",
        "r_layers": "region_depth",
        "x_layers": "cross_depth",
        "visual_feat_dim": "features",
        "visual_pos_dim": "box_values",
    },
    only=dict.fromkeys(LOSSES, True),
)
read = CONFIG.read

CROSS = "encoder.x_layers.{}"
TABLE = (
    *(row for row in bert.TABLE if row.ours[0].startswith("embedding.")),
    *linear("regions.feature", "encoder.visn_fc.visn_fc"),
    *norm("regions.feature_norm", "encoder.visn_fc.visn_layer_norm"),
    *linear("regions.place", "encoder.visn_fc.box_fc"),
    *norm("regions.place_norm", "encoder.visn_fc.box_layer_norm"),
    *blocks("trunk.blocks", "encoder.layer.{}"),
    *blocks("region_trunk.blocks", "encoder.r_layers.{}"),
    *attention("cross_trunk.blocks.cross", f"{CROSS}.visual_attention", "att"),
    *blocks("cross_trunk.blocks.text", CROSS, looks="lang_self_att", up="lang_inter", down="lang_output"),
    *blocks("cross_trunk.blocks.regions", CROSS, looks="visn_self_att", up="visn_inter", down="visn_output"),
)
POOLER, ANSWERS, REGIONS = "lxmert.pooler.dense", "answer_head.logit_fc", "obj_predict_head"


def scores(ours: str) -> tuple[TensorRow, ...]:
    """Return the rows of the layers that score answers."""
    return (
        *linear(f"{ours}.dense", f"{ANSWERS}.0"), *norm(f"{ours}.norm", f"{ANSWERS}.2"),
        *linear(f"{ours}.output", f"{ANSWERS}.3"),
    )  # fmt: skip


PRETRAINED = (
    *linear("dense", "cls.predictions.transform.dense"),
    *norm("norm", "cls.predictions.transform.LayerNorm"),
    TensorRow(("output_bias",), "cls.predictions.bias"),
    *linear("sentence.dense", POOLER),
    *linear("sentence.output", "cls.seq_relationship"),
    *scores("answers"),
    *linear("region_dense", f"{REGIONS}.transform.dense"),
    *norm("region_norm", f"{REGIONS}.transform.LayerNorm"),
    *linear("objects", f"{REGIONS}.decoder_dict.obj"),
    *linear("attributes", f"{REGIONS}.decoder_dict.attr"),
    *linear("features", f"{REGIONS}.decoder_dict.feat"),
)
GIVEN = Signature(
    ("input_ids", "visual_feats", "visual_pos"), ("attention_mask", "token_type_ids", "visual_attention_mask")
)


def sides(model: Any, inputs: Inputs, key: PRNGKeyArray | None) -> tuple[Float[Array, "B S D"], ModelOutput]:
    """Run an encoder: all hidden states, and those of either side."""
    mask, seen = inputs.attention_mask, inputs.visual_attention_mask
    hidden = model(
        inputs.input_ids, features=inputs.visual_feats, boxes=inputs.visual_pos,
        visible=None if mask is None else mask != 0, seen=None if seen is None else seen != 0,
        types=inputs.token_type_ids, key=key,
    )  # fmt: skip
    text, regions = jnp.split(hidden, [inputs.input_ids.shape[-1]], axis=-2)
    return hidden, ModelOutput(language_output=text, vision_output=regions)


def pooled(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return hidden states of both sides and what the pooler makes of the first, as LxmertModel does."""
    keys = split_keys(key)
    hidden, found = sides(model.backbone, inputs, keys[0])
    return replace(found, pooled_output=model.head(hidden, key=keys[1]))


def answered(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score answers, as LxmertForQuestionAnswering does."""
    keys = split_keys(key)
    hidden, found = sides(model.backbone, inputs, keys[0])
    return replace(found, question_answering_score=model.head(hidden, key=keys[1]))


def pretrained(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score tokens, whether a text is of its image, and answers, as LxmertForPreTraining does."""
    hidden, found = sides(model.encoder, inputs, key)
    return replace(
        found, prediction_logits=model.output(found.language_output).logits(),
        cross_relationship_score=model.sentence(hidden), question_answering_score=model.answer(hidden),
    )  # fmt: skip


def layers(seen: dict[str, list[Array]], output: ModelOutput) -> dict[str, Any]:
    """Name what the layers of each side gave, and what they look at; those that join them come third."""
    T, named = output.language_output.shape[-2], {}
    if "hidden_states" in seen:
        text, regions, both, *_ = seen["hidden_states"]
        named["language_hidden_states"] = (*text[1:], *both[..., :T, :], output.language_output)
        named["vision_hidden_states"] = (*regions[1:], *both[..., T:, :], output.vision_output)
    if "attention_weights" in seen:
        text, regions, both, *_ = seen["attention_weights"]
        named |= {"language_attentions": tuple(text), "vision_attentions": tuple(regions)}
        named["cross_encoder_attentions"] = tuple(both[..., :T, T:])
    return named


def check(inputs: Inputs, fields: Fields) -> None:
    """Refuse regions of other widths than the model's, or not as many of one kind as of another.

    Raises:
      ValueError: says which.
    """
    rows, features = inputs.input_ids.shape[0], inputs.visual_feats
    wide, box_values = fields.integer("visual_feat_dim", 2048), fields.integer("visual_pos_dim", 4)
    if features.ndim != 3 or features.shape[0] != rows or features.shape[-1] != wide:
        raise ValueError(f"visual_feats must be [{rows}, R, {wide}], a row of regions a text, got {features.shape}")
    if inputs.visual_pos.shape != (*features.shape[:2], box_values):
        raise ValueError(f"visual_pos must be {[*features.shape[:2], box_values]}, got {list(inputs.visual_pos.shape)}")
    if inputs.visual_attention_mask is not None:
        check_broadcast("visual_attention_mask", inputs.visual_attention_mask.shape, features.shape[:2])


def _pooling(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=0, pool="first", dense="tanh")


def _answering(fields: Fields) -> ClassifierConfig:
    return answers_of(read(fields), fields.integer("num_qa_labels", 9_500))


def _pretraining(fields: Fields) -> LxmertPretrainingConfig:
    names = {"answers": "num_qa_labels", "objects": "num_object_labels", "attributes": "num_attr_labels"}
    counts = {ours: fields.integer(theirs, getattr(LxmertPretrainingConfig, ours)) for ours, theirs in names.items()}
    return LxmertPretrainingConfig(encoder=read(fields), **counts)


def _counts(config: LxmertPretrainingConfig) -> dict[str, int]:
    return {
        "num_qa_labels": config.answers, "num_object_labels": config.objects, "num_attr_labels": config.attributes
    }  # fmt: skip


BOTH = {"inputs": GIVEN, "layers": layers, "check": check}
HEADS = (r"^cls\.", rf"^{REGIONS}\.")
FAMILIES = {
    "lxmert": Family(
        model_type="lxmert",
        architectures={
            "LxmertModel": Architecture(
                _pooling, pooled, linear("head.dense", "pooler.dense"), at="backbone.", base=True,
                ignored=(*HEADS, r"^answer_head\."), uses=("feature-extraction",), **BOTH,
            ),
            "LxmertForPreTraining": Architecture(
                _pretraining, pretrained, PRETRAINED, _counts, at="encoder.",
                uses=("fill-mask", "next-sentence-prediction"), **BOTH
            ),
            "LxmertForQuestionAnswering": Architecture(
                _answering, answered, (*linear("head.pooler.dense", POOLER), *scores("head.scores")),
                lambda config: {"num_qa_labels": config.head.classes}, at="backbone.", ignored=HEADS,
                uses=("visual-question-answering",),
                **BOTH,
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="lxmert.",
        ignored=(r"(^|\.)embeddings\.position_ids$",),
        copies={"cls.predictions.decoder.weight": "lxmert.embeddings.word_embeddings.weight"},
    )
}  # fmt: skip
