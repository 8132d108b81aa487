"""ELECTRA checkpoints (Clark et al. 2020): BERTs whose tables may be narrower than the model, with other heads.

Discriminators say of each token whether it is another than there was; generators guess masked tokens.
"""

from dataclasses import replace
from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import (
    ModelOutput,
    encoder_classifier,
    encoder_model,
    encoder_span,
    multiple_choice,
)
from flax_transformer.hub.family import bert
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier, masked_lm
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import TensorRow, linear, norm
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.nn import with_fields


def _project(fields: Fields) -> dict[str, int | None]:
    width = fields.integer("hidden_size")
    return {"project": None if fields.integer("embedding_size") == width else width}


SMALL = with_fields(bert.CONFIG.like, embed=256, heads=4, inner=1024)
CONFIG = replace(
    bert.CONFIG,
    like=replace(SMALL, embedding=replace(SMALL.embedding, embed=128, project=256)),
    rows={**bert.CONFIG.rows, "hidden_size": "block.embed", "embedding_size": "embedding.embed"},
    reads=_project,
)
read = CONFIG.read


def _discriminator(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=1, dense=fields.activation("hidden_act", "gelu"))


def _choice(fields: Fields) -> ClassifierConfig:
    """Read the head that scores a choice, which is told in words of XLNet."""
    fields.only(summary_type="first", summary_use_proj=True)
    given = fields.get("summary_activation", "gelu")
    dense = "identity" if given is None else fields.activation("summary_activation", "gelu")
    rate = fields.number("summary_last_dropout", 0.1)
    return with_head(read(fields), outputs=1, pool="first", dense=dense, dropout=rate)


def discriminate(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return one logit a token, positive where it is another than there was, as ElectraForPreTraining does."""
    found = encoder_classifier(model, inputs, key, fields)
    return replace(found, logits=found.logits[..., 0])


MASKED = (
    *linear("dense", "generator_predictions.dense"),
    *norm("norm", "generator_predictions.LayerNorm"),
    TensorRow(("output_bias",), "generator_lm_head.bias"),
    TensorRow(("head.token.embedding",), "generator_lm_head.weight"),
    TensorRow(("head.output_bias",), "generator_lm_head.bias"),
)
DISCRIMINATOR = (
    *linear("head.dense", "discriminator_predictions.dense"),
    *linear("head.output", "discriminator_predictions.dense_prediction"),
)
OUTPUT, SPAN = linear("head.output", "classifier"), linear("head.output", "qa_outputs")
SEQUENCE = (*linear("head.dense", "classifier.dense"), *linear("head.output", "classifier.out_proj"))
CHOICES = (*linear("head.dense", "sequence_summary.summary"), *OUTPUT)
LARGER = (r"^discriminator_predictions\.", r"^generator_(predictions|lm_head)\.")
ABOVE = {"at": "backbone.", "ignored": LARGER}

FAMILIES = {
    "electra": Family(
        model_type="electra",
        architectures={
            "ElectraModel": Architecture(read, encoder_model, base=True, ignored=LARGER, uses=("feature-extraction",)),
            "ElectraForPreTraining": Architecture(
                _discriminator, discriminate, DISCRIMINATOR, **ABOVE, uses=("replaced-token-detection",)
            ),
            "ElectraForMaskedLM": masked_lm(read, MASKED, ignored=LARGER, activation="gelu", uses=("fill-mask",)),
            "ElectraForSequenceClassification": classifier(
                read, encoder_classifier, SEQUENCE, None, bert.DROPOUT, ignored=LARGER, dropout_first=True,
                pool="first", dense="gelu", uses=("classification",),
            ),
            "ElectraForTokenClassification": classifier(
                read, encoder_classifier, OUTPUT, None, bert.DROPOUT, ignored=LARGER, uses=("token-classification",)
            ),
            "ElectraForQuestionAnswering": classifier(read, encoder_span, SPAN, 2, ignored=LARGER,
                uses=("question-answering",)),
            "ElectraForMultipleChoice": Architecture(_choice, multiple_choice, CHOICES, **ABOVE,
                uses=("multiple-choice",)),
        },
        table=(*bert.TABLE, *linear("embedding.project", "embeddings_project")),
        write=CONFIG.write,
        prefix="electra.",
        ignored=bert.BUFFERS,
        renamed=bert.RENAMED,
        copies={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    )
}  # fmt: skip
