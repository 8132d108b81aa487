"""BART checkpoints (Lewis et al. 2020)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.call import seq2seq_classifier, seq2seq_lm, seq2seq_model, seq2seq_span
from flax_transformer.hub.check import check_ends
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import EMBEDDED_TO_TEXT, TEXT_TO_TEXT
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
GENERATION, MODEL = "ForConditionalGeneration", "Model"
SEQUENCE, ANSWERS = "ForSequenceClassification", "ForQuestionAnswering"


def architectures(
    start: str, read: Callable[[Fields], Seq2SeqConfig], kinds: tuple[str, ...], **options: Any
) -> dict[str, Architecture]:
    """Make a family's classes that are an encoder-decoder, alone or with a head.

    Args:
      start: what their names begin with.
      read: makes the config of config.json's fields, with a bias of the output layer as they say.
      kinds: which there are.
      options: what else an `Architecture` has.
    """

    def alone(fields: Fields) -> Seq2SeqConfig:
        return replace(read(fields), output_bias=False)

    def classifier(fields: Fields, **head: Any) -> ClassifierConfig:
        backbone = alone(fields)
        return ClassifierConfig(backbone=backbone, head=HeadConfig(embed=backbone.decoder.block.embed, **head))

    def sequence(fields: Fields) -> ClassifierConfig:
        named = "id2label" in fields or "num_labels" in fields
        rate, outputs = fields.number("classifier_dropout", 0.0), fields.labels if named else 3
        return classifier(fields, outputs=outputs, pool="last", dense="tanh", dropout=rate, dropout_first=True)

    # What is made of ids before a call is made of nothing else.
    alone_takes = TEXT_TO_TEXT if "prepare" in options else EMBEDDED_TO_TEXT
    above = {"at": "backbone.", "ignored": LARGER, "inputs": TEXT_TO_TEXT, **options}
    options = {"inputs": alone_takes, **options}
    made = {
        GENERATION: Architecture(read, seq2seq_lm, BIAS, uses=("text2text-generation",), **options),
        MODEL: Architecture(
            alone, seq2seq_model, base=True, ignored=LARGER, uses=("feature-extraction",), **options
        ),
        SEQUENCE: Architecture(sequence, seq2seq_classifier, HEAD, check=check_ends, uses=("classification",), **above),
        ANSWERS: Architecture(
            partial(classifier, outputs=2), seq2seq_span, linear("head.output", "qa_outputs"),
            uses=("question-answering",), **above,
        ),
    }  # fmt: skip
    return {f"{start}{kind}": made[kind] for kind in kinds}


FAMILIES = {
    "bart": Family(
        model_type="bart",
        architectures=architectures("Bart", read, (GENERATION, MODEL, SEQUENCE, ANSWERS)),
        table=TABLE,
        write=CONFIG.write,
        prefix="model.",
        ignored=(r"(^|\.)(encoder|decoder)\.version$",),
        copies=COPIES,
    )
}
