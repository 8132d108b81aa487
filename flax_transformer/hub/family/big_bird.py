"""BigBird checkpoints (Zaheer et al. 2020): BERTs of long texts, whose attention is block-sparse."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import (
    ModelOutput,
    encoder_classifier,
    encoder_span,
    multiple_choice,
    pooled_encoder,
    pretraining,
)
from flax_transformer.hub.config import choice
from flax_transformer.hub.family import bert, roberta
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier, decoder_lm, masked_lm
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import linear, norm, under
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.text.big_bird import bigbird_roberta_base, span_head
from flax_transformer.nn import with_fields

CONFIG = replace(
    bert.CONFIG,
    like=with_fields(bigbird_roberta_base().encoder, out_bias=True),
    rows={
        **bert.CONFIG.rows,
        "attention_type": choice("attention.sparse", {"block_sparse": True, "original_full": False}),
        "block_size": "attention.block_size",
        "num_random_blocks": "attention.random_blocks",
        "use_bias": "attention.bias",
        "rescale_embeddings": "embedding.scaled",
    },
)
read = CONFIG.read


def _sequence(fields: Fields) -> ClassifierConfig:
    """Read the head that classifies, whose dense layer has the activation of the blocks."""
    rate = fields.number("classifier_dropout", None)
    rate = fields.number("hidden_dropout_prob", 0.1) if rate is None else rate
    dense = fields.activation("hidden_act", "gelu_new")
    return with_head(read(fields), outputs=fields.labels, pool="first", dense=dense, dropout=rate, dropout_first=True)


def _span(fields: Fields) -> ClassifierConfig:
    return span_head(read(fields))


def question_span(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Score every token after the question, which ends at the first end mark, as either end of an answer.

    The question's are of the first type, if nobody says of which; they cannot be in the answer, but for the very first.
    """
    ids = inputs.input_ids
    asked = jnp.arange(ids.shape[-1]) <= jnp.argmax(ids == fields.integer("sep_token_id", 66), axis=-1)[..., None]
    types = inputs.token_type_ids
    # Without a table of types `hub.Pretrained` takes those away that are given.
    types = 1 - asked.astype(jnp.int32) if types is None and model.backbone.cfg.embedding.types else types
    found = encoder_span(model, replace(inputs, token_type_ids=types), key, fields)
    out = jnp.where(asked.at[..., 0].set(False), 1e6, 0)
    return replace(found, start_logits=found.start_logits - out, end_logits=found.end_logits - out)


POOLER = linear("head.dense", "bert.pooler")
SPAN = (
    *linear("head.feedforward.up", "qa_classifier.intermediate.dense"),
    *linear("head.feedforward.down", "qa_classifier.output.dense"),
    *norm("head.residual.norm", "qa_classifier.output.LayerNorm"),
    *linear("head.output", "qa_classifier.qa_outputs"),
)
LARGER, UNREAD, POOLED = bert.LARGER, bert.UNREAD, bert.POOLED

ARCHITECTURES = {
    "Model": classifier(
        read, pooled_encoder, linear("head.dense", "pooler"), 0, base=True, ignored=LARGER, **POOLED,
        uses=("feature-extraction",)
    ),
    "ForPreTraining": masked_lm(
        read, (*bert.MASKED, *linear("sentence.dense", "bert.pooler"), *linear("sentence.output", bert.SENTENCES)),
        pretraining, ignored=UNREAD, next_sentence=True, uses=("fill-mask", "next-sentence-prediction"),
    ),
    "ForCausalLM": decoder_lm(
        CONFIG, under(bert.OUT, "", "cls.predictions."), ignored=bert.OTHERS, said={"attention_type": "original_full"}
    ),
    "ForMaskedLM": masked_lm(read, bert.MASKED, ignored=UNREAD, uses=("fill-mask",)),
    "ForSequenceClassification": Architecture(
        _sequence, encoder_classifier, roberta.SEQUENCE, at="backbone.", ignored=LARGER, uses=("classification",)
    ),
    "ForTokenClassification": classifier(
        read, encoder_classifier, bert.OUTPUT, dropout=bert.DROPOUT, ignored=LARGER, uses=("token-classification",)
    ),
    "ForQuestionAnswering": Architecture(_span, question_span, SPAN, at="backbone.", ignored=LARGER,
        uses=("question-answering",)),
    "ForMultipleChoice": classifier(
        read, multiple_choice, (*POOLER, *bert.OUTPUT), 1, {"hidden_dropout_prob": 0.1}, ignored=LARGER, **POOLED,
        uses=("multiple-choice",),
    ),
}  # fmt: skip

FAMILIES = {
    "big_bird": Family(
        model_type="big_bird",
        architectures={f"BigBird{name}": architecture for name, architecture in ARCHITECTURES.items()},
        table=bert.TABLE,
        write=CONFIG.write,
        prefix="bert.",
        ignored=bert.BUFFERS,
        renamed=bert.RENAMED,
        copies={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    )
}
