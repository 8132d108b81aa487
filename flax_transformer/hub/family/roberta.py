"""RoBERTa checkpoints (Liu et al. 2019), and those of XLM-RoBERTa and CamemBERT, which are RoBERTas."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import (
    Inputs,
    ModelOutput,
    encoder_classifier,
    encoder_span,
    masked_lm,
    multiple_choice,
    pooled_encoder,
)
from flax_transformer.hub.family import bert
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier, guesser
from flax_transformer.hub.registration import Family
from flax_transformer.hub.table import Row, linear, norm
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.text.roberta import token_positions

KINDS = {"roberta": ("Roberta", 50265), "xlm-roberta": ("XLMRoberta", 30522), "camembert": ("Camembert", 30522)}
"""Model types: how their classes' names begin, and the vocabulary of a config.json that says none."""


def read(fields: Fields) -> EncoderConfig:
    """Make our config of config.json's fields; their table of positions has rows for padding and what is before it."""
    vocab = KINDS[fields.get("model_type", "roberta")][1]
    config = bert.read(Fields.of({"vocab_size": vocab, **fields}))
    first = _padding(fields) + 1
    rows = config.embedding.max_length
    if rows <= first:
        raise ValueError(f"positions must go on after padding's, got max_position_embeddings={rows}, pad={first - 1}")
    return replace(config, embedding=replace(config.embedding, offset=first, max_length=rows - first))


def write(config: EncoderConfig) -> dict[str, Any]:
    """Make config.json's fields of our config."""
    embedding = config.embedding
    rows = {"max_position_embeddings": embedding.max_length + embedding.offset, "pad_token_id": embedding.offset - 1}
    return {**bert.write(config), **rows}


def _padding(fields: Fields) -> int:
    return fields.integer("pad_token_id", 1)


def _counted(call: Callable[..., ModelOutput]) -> Callable[..., ModelOutput]:
    """Let positions count the tokens that are not padding; those that are given count the rows of the table."""

    @functools.wraps(call)
    def counted(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
        pad, positions = _padding(fields), inputs.position_ids
        positions = token_positions(inputs.input_ids, pad) if positions is None else positions - (pad + 1)
        return call(model, replace(inputs, position_ids=positions), key, fields)

    return counted


MASKED = (
    *linear("dense", "lm_head.dense"),
    *norm("norm", "lm_head.layer_norm"),
    Row(("output_bias",), "lm_head.bias"),
    Row(("head.token.embedding",), "lm_head.decoder.weight"),
    Row(("head.output_bias",), "lm_head.decoder.bias"),
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
        uses=("embed",),
    ),
    "ForMaskedLM": guesser(read, MASKED, _counted(masked_lm), ignored=UNREAD, activation="gelu", uses=("fill",)),
    "ForSequenceClassification": classifier(
        read, _counted(encoder_classifier), SEQUENCE, None, DROPOUT, ignored=LARGER, dropout_first=True, **POOLED,
        uses=("classify",),
    ),
    "ForTokenClassification": classifier(
        read, _counted(encoder_classifier), OUTPUT, None, DROPOUT, ignored=LARGER, uses=("label",)
    ),
    "ForQuestionAnswering": classifier(
        read, _counted(encoder_span), linear("head.output", "qa_outputs"), 2, ignored=LARGER, uses=("span",)
    ),
    "ForMultipleChoice": classifier(
        read, _counted(multiple_choice), CHOICES, 1, {"hidden_dropout_prob": 0.1}, ignored=LARGER, **POOLED,
        uses=("choose",),
    ),
}  # fmt: skip

FAMILIES = {
    kind: Family(
        model_type=kind,
        architectures={f"{start}{name}": architecture for name, architecture in ARCHITECTURES.items()},
        table=bert.TABLE,
        write=write,
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
