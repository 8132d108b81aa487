"""RoBERTa checkpoints (Liu et al. 2019), and those of XLM-RoBERTa and CamemBERT, which are RoBERTas."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import (
    ModelOutput,
    causal_lm,
    encoder_classifier,
    encoder_lm,
    encoder_span,
    multiple_choice,
    pooled_encoder,
)
from flax_transformer.hub.family import bert
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier, decoder_lm, masked_lm
from flax_transformer.hub.inputs import TYPES_FIRST, Inputs
from flax_transformer.hub.registration import Family
from flax_transformer.hub.side_call import states_to_text
from flax_transformer.hub.table import TensorRow, linear, norm
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.text.causal_bert import CausalBertConfig
from flax_transformer.models.text.roberta import token_positions
from flax_transformer.nn import with_fields

KINDS = {"roberta": ("Roberta", 50265), "xlm-roberta": ("XLMRoberta", 30522), "camembert": ("Camembert", 30522)}
"""Model types: how their classes' names begin, and the vocabulary of a config.json that says none."""


def _positions(fields: Fields) -> dict[str, int]:
    """Read a table of positions that has rows for padding and what is before it."""
    first, rows = _padding(fields) + 1, fields.integer("max_position_embeddings", 512)
    if rows <= first:
        raise ValueError(f"positions must go on after padding's, got max_position_embeddings={rows}, pad={first - 1}")
    return {"offset": first, "max_length": rows - first}


def _rows(config: EncoderConfig | CausalBertConfig) -> dict[str, int]:
    embedding = config.embedding
    return {"max_position_embeddings": embedding.max_length + embedding.offset, "pad_token_id": embedding.offset - 1}


CONFIGS = {
    kind: replace(
        bert.CONFIG,
        like=with_fields(bert.CONFIG.like, vocab=vocab),
        rows={name: row for name, row in bert.CONFIG.rows.items() if name != "max_position_embeddings"},
        reads=_positions,
        writes=_rows,
    )
    for kind, (_, vocab) in KINDS.items()
}


def read(fields: Fields) -> EncoderConfig:
    """Make our config of config.json's fields."""
    return CONFIGS[fields.get("model_type", "roberta")].read(fields)


def _padding(fields: Fields) -> int:
    return fields.integer("pad_token_id", 1)


def _counted(call: Callable[..., ModelOutput]) -> Callable[..., ModelOutput]:
    """Count positions over the tokens that are not padding; those that are given count the rows of the table."""

    @functools.wraps(call)
    def counted(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
        pad, positions = _padding(fields), inputs.position_ids
        positions = token_positions(inputs.input_ids, pad) if positions is None else positions - (pad + 1)
        return call(model, replace(inputs, position_ids=positions), key, fields)

    return counted


OUT = (
    *linear("dense", "lm_head.dense"),
    *norm("norm", "lm_head.layer_norm"),
    TensorRow(("output_bias",), "lm_head.bias"),
)
MASKED = (
    *OUT,
    TensorRow(("head.token.embedding",), "lm_head.decoder.weight"),
    TensorRow(("head.output_bias",), "lm_head.decoder.bias"),
)
OUTPUT = linear("head.output", "classifier")
SEQUENCE = (*linear("head.dense", "classifier.dense"), *linear("head.output", "classifier.out_proj"))
CHOICES = (*linear("head.dense", "roberta.pooler.dense"), *OUTPUT)

POOLED, DROPOUT = bert.POOLED, bert.DROPOUT
LARGER = (r"^lm_head\.", r"^(roberta\.)?pooler\.")
# With an untied output layer there is a bias lm_head.bias too, which nothing reads.
UNREAD = (r"^lm_head\.bias$", r"^(roberta\.)?pooler\.")

ARCHITECTURES = {
    "Model": classifier(
        read, _counted(pooled_encoder), linear("head.dense", "pooler.dense"), 0, base=True, ignored=LARGER, **POOLED,
        uses=("feature-extraction",),
    ),
    "ForMaskedLM": masked_lm(read, MASKED, _counted(encoder_lm), ignored=UNREAD, activation="gelu",
        uses=("fill-mask",)),
    "ForSequenceClassification": classifier(
        read, _counted(encoder_classifier), SEQUENCE, None, DROPOUT, ignored=LARGER, dropout_first=True, **POOLED,
        uses=("classification",),
    ),
    "ForTokenClassification": classifier(
        read, _counted(encoder_classifier), OUTPUT, None, DROPOUT, ignored=LARGER, uses=("token-classification",)
    ),
    "ForQuestionAnswering": classifier(
        read, _counted(encoder_span), linear("head.output", "qa_outputs"), 2, ignored=LARGER,
        uses=("question-answering",)
    ),
    "ForMultipleChoice": replace(
        classifier(
            read, _counted(multiple_choice), CHOICES, 1, {"hidden_dropout_prob": 0.1}, ignored=LARGER, **POOLED,
            uses=("multiple-choice",),
        ),
        inputs=TYPES_FIRST,
    ),
}  # fmt: skip


def _looks(kind: str) -> Family:
    from flax_transformer.hub.text_decoder import looking

    return looking(kind, FAMILIES[kind], _counted(states_to_text))


FAMILIES = {
    kind: Family(
        model_type=kind,
        looks=functools.partial(_looks, kind),
        architectures={
            **{f"{start}{name}": architecture for name, architecture in ARCHITECTURES.items()},
            f"{start}ForCausalLM": decoder_lm(
                CONFIGS[kind], OUT, _counted(causal_lm), dense="gelu", ignored=UNREAD[1:]
            ),
        },
        table=bert.TABLE,
        write=CONFIGS[kind].write,
        prefix="roberta.",
        ignored=bert.BUFFERS,
        renamed=bert.RENAMED,
        copies={
            "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    )
    for kind, (start, _) in KINDS.items()
}
