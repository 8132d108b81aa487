"""DPR checkpoints (Karpukhin et al. 2020): encoders of questions and of passages, and readers."""

from dataclasses import replace
from typing import Any

from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput, encoder_hidden, encoder_span
from flax_transformer.hub.family import bert
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import TEXT, Inputs, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, linear, under
from flax_transformer.models.padded import Padded
from flax_transformer.models.text.passage_reader import PassageReaderConfig, passage_reader
from flax_transformer.models.text.sentence import DenseConfig, SentenceEncoderConfig, sentence_encoder
from flax_transformer.models.text.two_encoders import two_encoders
from flax_transformer.ops.split_keys import split_keys

read = bert.CONFIG.read


def _encoder(fields: Fields) -> SentenceEncoderConfig:
    """Read an encoder, whose vector is the state of the first token, perhaps projected."""
    width = fields.integer("projection_dim", 0)
    dense = (DenseConfig(width=width, activation="identity"),) if width else ()
    return sentence_encoder(read(fields), pools=("first",), dense=dense)


def _projection(config: SentenceEncoderConfig) -> dict[str, Any]:
    return {"projection_dim": config.head.width if config.head.dense else 0}


def _embedded(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return vectors of texts, as DPRQuestionEncoder and DPRContextEncoder do: without a mask the token of padding is
    none of a text."""
    keys, mask = split_keys(key), inputs.attention_mask
    if mask is None:
        mask = inputs.input_ids != fields.integer("pad_token_id", 0)
    hidden = encoder_hidden(model.backbone, replace(inputs, attention_mask=mask), keys[0])
    vectors = model.head(Padded(hidden, mask != 0), key=keys[1])
    return ModelOutput(last_hidden_state=hidden, pooler_output=vectors, sentence_embedding=vectors)


def _reader(fields: Fields) -> PassageReaderConfig:
    fields.only(projection_dim=0)  # transformers has no class that reads what is projected
    return passage_reader(read(fields))


def _read(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return scores of spans and passages, as DPRReader does."""
    found = encoder_span(model, inputs, key, fields)
    return replace(found, relevance_logits=model.relevance(found.last_hidden_state))


def _of_texts(name: str, asks: str = "") -> Architecture:
    rows: Table = linear("head.dense_0", f"{name}.encode_proj")
    return Architecture(
        _encoder, _embedded, rows, _projection, at="backbone.", prefix=f"{name}.bert_model.",
        ignored=(*_pooler(name), *_others(name)), uses=("sentence-similarity",), dot=True, asks=asks,
    )  # fmt: skip


def _pooler(*names: str) -> tuple[str, ...]:
    return tuple(rf"^{name}\.bert_model\.pooler\." for name in names)


def _others(name: str) -> tuple[str, ...]:
    return tuple(rf"^{other}\." for other in SIDES.values() if other != name)


def _both(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return vectors of texts as questions, which is what is searched by; `task.encoder_side` has either side."""
    return _embedded(model.question, inputs, key, fields)


SIDES = {"question": "question_encoder", "passage": "ctx_encoder"}
"""Our name of each encoder, and what its tensors begin with."""


def _both_rows() -> Table:
    rows: Table = ()
    for side, name in SIDES.items():
        rows += under(bert.TABLE, f"{side}.backbone.", f"{name}.bert_model.")
        rows += linear(f"{side}.head.dense_0", f"{name}.encode_proj")
    return rows


FAMILIES = {
    "dpr": Family(
        model_type="dpr",
        architectures={
            "DPRQuestionEncoder": _of_texts("question_encoder", asks="DPRContextEncoder"),
            "DPRContextEncoder": _of_texts("ctx_encoder"),
            "DPREncoders": Architecture(
                lambda fields: two_encoders(_encoder(fields)), _both, _both_rows(),
                lambda config: _projection(config.question), ignored=_pooler(*SIDES.values()),
                uses=("passage-retrieval",), dot=True,
                sides={"question": "DPRQuestionEncoder", "passage": "DPRContextEncoder"},
            ),
            "DPRReader": Architecture(
                _reader, _read,
                (
                    *linear("head.output", "span_predictor.qa_outputs"),
                    *linear("relevance_head.output", "span_predictor.qa_classifier"),
                ),
                lambda config: {"projection_dim": 0}, at="backbone.", prefix="span_predictor.encoder.bert_model.",
                ignored=(r"^span_predictor\.encoder\.bert_model\.pooler\.",), uses=("question-answering",),
                inputs=Signature(TEXT.needs, ("attention_mask", "position_ids")),
            ),
        },
        table=bert.TABLE, write=bert.CONFIG.write, ignored=bert.BUFFERS, renamed=bert.RENAMED,
    )
}  # fmt: skip
