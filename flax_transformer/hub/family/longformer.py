"""Longformer checkpoints (Beltagy et al. 2020): RoBERTas that see windows, and global tokens that see all."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.call import (
    encoder_classifier,
    encoder_lm,
    encoder_span,
    multiple_choice,
    pooled_encoder,
)
from flax_transformer.hub.family import bert, roberta
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier, masked_lm
from flax_transformer.hub.inputs import LONG_TEXT, TYPES_FIRST
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import linear
from flax_transformer.models.text.global_attention import GlobalTrunkConfig
from flax_transformer.models.text.longformer import LongformerConfig, longformer_base_4096
from flax_transformer.nn import with_fields
from flax_transformer.ops.mask_field import check_broadcast

STEP = 8
"""Global tokens are counted up to a multiple of so many, so that not every number of them is a program of its own."""


def _reads(fields: Fields) -> dict[str, Any]:
    return {**roberta._positions(fields), "windows": read_windows(fields, "num_hidden_layers")}


def read_windows(fields: Fields, layers: str) -> tuple[int, ...]:
    """Read the window of every layer as the fewest that they take turns with.

    Args:
      layers: the field that says how many there are.
    """
    given, depth = fields.get("attention_window", 512), fields.integer(layers)
    if not isinstance(given, list):
        return (Fields.of({"attention_window": given}).integer("attention_window"),)
    if len(given) != depth:
        raise ValueError(f"attention_window must be one number, or one for each of {depth} layers, got {len(given)}")
    windows = tuple(Fields.of({"attention_window": each}).integer("attention_window") for each in given)
    periods = (n for n in range(1, depth + 1) if depth % n == 0 and windows == windows[:n] * (depth // n))
    return windows[: next(periods)]


def write_windows(config: GlobalTrunkConfig) -> int | list[int]:
    """Spell the windows of all layers: one number where it is the same for all."""
    one, windows = len(config.windows) == 1, list(config.windows) * (config.depth // len(config.windows))
    return windows[0] if one else windows


def _writes(config: LongformerConfig) -> dict[str, Any]:
    return {**roberta._rows(config), "attention_window": write_windows(config)}


BASE = with_fields(longformer_base_4096(30_522).encoder, max_length=510, types=2, norm_eps=1e-12)
CONFIG = replace(
    roberta.CONFIGS["roberta"],
    like=replace(BASE, embedding=replace(BASE.embedding, norm=1e-12)),
    reads=_reads,
    writes=_writes,
)
read = CONFIG.read


def global_positions(inputs: Mapping[str, Any], otherwise: np.ndarray | jax.Array | None = None) -> dict[str, Any]:
    """Find the tokens that a mask makes global.

    Of a mask that is not known before a call is compiled all positions are looked at: the result is the same, the cost
    that of full attention.

    Args:
      otherwise: the mask where none is given; None: no token is global.

    Raises:
      ValueError: a mask that is not of the tokens.
    """
    rest, shape = dict(inputs), np.shape(inputs["input_ids"])
    mask = rest.pop("global_attention_mask", otherwise)
    if mask is None:
        return rest
    check_broadcast("global_attention_mask", np.shape(mask), shape)
    if isinstance(mask, jax.core.Tracer):
        at = jnp.where(mask != 0, jnp.arange(shape[-1]), -1)
        return {**rest, "global_positions": jnp.broadcast_to(at, shape)}
    chosen = np.broadcast_to(np.asarray(mask) != 0, shape)
    most = min(-(-max(int(chosen.sum(-1).max(initial=0)), 1) // STEP) * STEP, shape[-1])
    at = np.argsort(~chosen, axis=-1, kind="stable")[..., :most]
    real = np.take_along_axis(chosen, at, axis=-1)
    return {**rest, "global_positions": np.where(real, at, -1).astype(np.int32)}


def with_global_positions(inputs: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Find the global tokens that are given, as an architecture's `prepare`."""
    return global_positions(inputs)


def _leading(fields: Fields) -> LongformerConfig:
    """Make the first token global, unless others are said to be, as for classification."""
    return replace(read(fields), leading=1)


def _beside_marks(before: bool) -> Callable[[Mapping[str, Any], Fields], dict[str, Any]]:
    """Make the tokens before the first end mark global, a question's, or those after the second, a choice's."""

    def prepare(inputs: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
        if "global_attention_mask" in inputs:
            return global_positions(inputs)
        ids, mark = inputs["input_ids"], fields.integer("sep_token_id", 2)
        marks = (jnp if isinstance(ids, jax.core.Tracer) else np).asarray(ids) == mark
        if isinstance(marks, np.ndarray) and (marks.sum(-1) != 3).any():
            raise ValueError(
                f"a question and its text have three end marks, sep_token_id={mark}, in every row; got "
                f"{sorted(set(marks.sum(-1).ravel().tolist()))}: give global_attention_mask for others"
            )
        end = marks.argmax(-1)[..., None]
        at = np.arange(np.shape(ids)[-1])
        return global_positions(inputs, at < end if before else at > end + 1)

    return prepare


def _long(architecture: Architecture, prepare: Callable[..., dict[str, Any]] = with_global_positions) -> Architecture:
    inputs = replace(LONG_TEXT, order=architecture.inputs.order)
    return replace(architecture, inputs=inputs, prepare=prepare)


TABLE = (
    *bert.TABLE,
    *(
        row
        for part in ("query", "key", "value")
        for row in linear(
            f"trunk.blocks.attention.everywhere.{part}", f"encoder.layer.{{}}.attention.self.{part}_global"
        )
    ),
)
CHOICES = (*linear("head.dense", "longformer.pooler.dense"), *roberta.OUTPUT)
POOLED, DROPOUT = bert.POOLED, {"hidden_dropout_prob": 0.1}
LARGER = (r"^lm_head\.", r"^(longformer\.)?pooler\.")
UNREAD = (r"^lm_head\.bias$", r"^(longformer\.)?pooler\.")

ARCHITECTURES = {
    "Model": _long(
        classifier(
            read, roberta._counted(pooled_encoder), linear("head.dense", "pooler.dense"), 0, base=True, ignored=LARGER,
            **POOLED, uses=("feature-extraction",),
        )
    ),
    "ForMaskedLM": _long(
        masked_lm(read, roberta.MASKED, roberta._counted(encoder_lm), ignored=UNREAD, activation="gelu",
            uses=("fill-mask",))
    ),
    "ForSequenceClassification": _long(
        classifier(
            _leading, roberta._counted(encoder_classifier), roberta.SEQUENCE, None, DROPOUT, ignored=LARGER,
            dropout_first=True, **POOLED, uses=("classification",),
        )
    ),
    "ForTokenClassification": _long(
        classifier(
            read, roberta._counted(encoder_classifier), roberta.OUTPUT, None, DROPOUT, ignored=LARGER,
            uses=("token-classification",)
        )
    ),
    "ForQuestionAnswering": _long(
        classifier(
            read, roberta._counted(encoder_span), linear("head.output", "qa_outputs"), 2, ignored=LARGER,
            uses=("question-answering",)
        ),
        _beside_marks(before=True),
    ),
    "ForMultipleChoice": _long(
        replace(
            classifier(
                read, roberta._counted(multiple_choice), CHOICES, 1, DROPOUT, ignored=LARGER, **POOLED,
                uses=("multiple-choice",),
            ),
            inputs=TYPES_FIRST,
        ),
        _beside_marks(before=False),
    ),
}  # fmt: skip

FAMILIES = {
    "longformer": Family(
        model_type="longformer",
        architectures={f"Longformer{name}": architecture for name, architecture in ARCHITECTURES.items()},
        table=TABLE,
        write=CONFIG.write,
        prefix="longformer.",
        ignored=bert.BUFFERS,
        renamed=bert.RENAMED,
        copies={
            "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    )
}
