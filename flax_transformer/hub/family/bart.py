"""BART checkpoints (Lewis et al. 2020)."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.call import seq2seq_classifier, seq2seq_lm, seq2seq_model, seq2seq_span
from flax_transformer.hub.check import check_ends
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import TEXT_TO_TEXT
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.seq2seq_side import ADDS, BIAS, COPIES, ONLY, ROWS, SIDES, SIZES
from flax_transformer.hub.table import embedding, linear, norm
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.bart import bart_large
from flax_transformer.nn import with_fields

CONFIG = ConfigTable(
    with_fields(bart_large(), **SIZES),
    ROWS,
    only={**ONLY, "normalize_embedding": True, "static_position_embeddings": False},
    adds={**ADDS, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
)
read = CONFIG.read


def _model(fields: Fields) -> Seq2SeqConfig:
    return replace(read(fields), output_bias=False)


def _sequence(fields: Fields) -> ClassifierConfig:
    named = "id2label" in fields or "num_labels" in fields
    rate = fields.number("classifier_dropout", 0.0)
    return _classifier(
        fields, outputs=fields.labels if named else 3, pool="last", dense="tanh", dropout=rate, dropout_first=True
    )


def _span(fields: Fields) -> ClassifierConfig:
    return _classifier(fields, outputs=2)


def _classifier(fields: Fields, **head: Any) -> ClassifierConfig:
    return ClassifierConfig(backbone=_model(fields), head=HeadConfig(embed=fields.integer("d_model", 1024), **head))


TABLE = (
    *embedding("embedding.token", "shared"),
    *embedding("source_embedding.position", "encoder.embed_positions"),
    *norm("source_embedding.norm", "encoder.layernorm_embedding"),
    *embedding("embedding.position", "decoder.embed_positions"),
    *norm("embedding.norm", "decoder.layernorm_embedding"),
    *SIDES,
)
LARGER = ("^final_logits_bias$",)
HEAD = (
    *linear("head.dense", "classification_head.dense"),
    *linear("head.output", "classification_head.out_proj"),
)
ABOVE = {"at": "backbone.", "ignored": LARGER, "inputs": TEXT_TO_TEXT}

FAMILIES = {
    "bart": Family(
        model_type="bart",
        architectures={
            "BartForConditionalGeneration": Architecture(
                read, seq2seq_lm, BIAS, inputs=TEXT_TO_TEXT, uses=("text2text-generation",)
            ),
            "BartModel": Architecture(
                _model, seq2seq_model, base=True, ignored=LARGER, inputs=TEXT_TO_TEXT, uses=("feature-extraction",)
            ),
            "BartForSequenceClassification": Architecture(
                _sequence, seq2seq_classifier, HEAD, **ABOVE, check=check_ends, uses=("classification",)
            ),
            "BartForQuestionAnswering": Architecture(
                _span, seq2seq_span, linear("head.output", "qa_outputs"), **ABOVE, uses=("question-answering",)
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="model.",
        ignored=(r"(^|\.)(encoder|decoder)\.version$",),
        copies=COPIES,
    )
}
