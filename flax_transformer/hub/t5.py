"""T5 checkpoints (Raffel et al. 2020), and those of mT5 (Xue et al. 2021), which are T5 1.1 by another name."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flax_transformer.hub.call import (
    ModelOutput,
    encoder_classifier,
    encoder_model,
    seq2seq_classifier,
    seq2seq_lm,
    seq2seq_model,
    seq2seq_span,
)
from flax_transformer.hub.check import check_ends
from flax_transformer.hub.family import Architecture, Family, Fields
from flax_transformer.hub.t5_config import read, read_encoder, settled, write, write_mt5
from flax_transformer.hub.table import Row, Table, embedding, linear, norm
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig


def _side(ours: str, theirs: str, attentions: tuple[str, ...], *, norm_at: str, relative_at: str) -> Table:
    """Give the rows of one side: of each block the layers of attention, then the feed-forward one."""
    names = {"attention": "SelfAttention", "cross": "EncDecAttention"}
    rows: list[Row] = []
    for i, mine in enumerate(attentions):
        layer = f"{theirs}.block.{{}}.layer.{i}"
        for part in ("query", "key", "value"):
            rows += linear(f"{ours}.{mine}.{part}", f"{layer}.{names[mine]}.{part[0]}")
        rows += linear(f"{ours}.{mine}.out", f"{layer}.{names[mine]}.o", inputs=2)
        rows += norm(f"{ours}.{mine}_norm", f"{layer}.layer_norm")
    layer = f"{theirs}.block.{{}}.layer.{len(attentions)}"
    gate = f"{ours}.feedforward.gate.kernel"
    return (
        *rows,
        *linear(f"{ours}.feedforward.gate", f"{layer}.DenseReluDense.wi_0"),
        *(replace(row, given=gate) for row in linear(f"{ours}.feedforward.up", f"{layer}.DenseReluDense.wi_1")),
        *(replace(row, unless=gate) for row in linear(f"{ours}.feedforward.up", f"{layer}.DenseReluDense.wi")),
        *linear(f"{ours}.feedforward.down", f"{layer}.DenseReluDense.wo"),
        *norm(f"{ours}.feedforward_norm", f"{layer}.layer_norm"),
        *norm(norm_at, f"{theirs}.final_layer_norm"),
        *embedding(f"{relative_at}.bucket", f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias"),
    )


TABLE = (
    *embedding("embedding.token", "shared"),
    *_side("encoder", "encoder", ("attention",), norm_at="encoder_norm", relative_at="encoder_relative"),
    *_side("decoder", "decoder", ("attention", "cross"), norm_at="decoder_norm", relative_at="decoder_relative"),
    # The encoder alone is another model of ours.
    *_side("blocks", "encoder", ("attention",), norm_at="norm", relative_at="relative"),
)
OUTPUT = embedding("head.token", "lm_head")
CLASSES = (
    *linear("head.dense", "classification_head.dense"),
    *linear("head.output", "classification_head.out_proj"),
)
HEAD, DECODER = (r"^lm_head\.",), (r"^lm_head\.", r"^(transformer\.)?decoder\.")


def _model(fields: Fields) -> Seq2SeqConfig:
    return replace(read(fields), tied_output=True)


def _classifier(
    backbone: Callable[[Fields], Seq2SeqConfig | EncoderConfig],
    call: Callable[..., ModelOutput],
    rows: Table,
    outputs: int | None = None,
    *,
    base: bool = False,
    ignored: tuple[str, ...] = HEAD,
    check: Callable[..., None] | None = None,
    **head: Any,
) -> Architecture:
    def config(fields: Fields) -> ClassifierConfig:
        width, rate = fields.integer("d_model", 512), fields.number("classifier_dropout", 0.0)
        shape = HeadConfig(embed=width, outputs=outputs or fields.labels, dropout=rate, **head)
        return ClassifierConfig(backbone=backbone(fields), head=shape)

    return Architecture(config, call, rows, at="backbone.", base=base, ignored=ignored, check=check)


ARCHITECTURES = {
    "ForConditionalGeneration": Architecture(read, seq2seq_lm, OUTPUT, base=True),
    "Model": Architecture(_model, seq2seq_model, base=True, ignored=HEAD),
    "EncoderModel": Architecture(read_encoder, encoder_model, base=True, ignored=DECODER),
    "ForSequenceClassification": _classifier(
        _model, seq2seq_classifier, CLASSES, check=check_ends, pool="last", dense="tanh", dropout_first=True
    ),
    "ForQuestionAnswering": _classifier(_model, seq2seq_span, linear("head.output", "qa_outputs"), 2, base=True),
    "ForTokenClassification": _classifier(
        read_encoder, encoder_classifier, linear("head.output", "classifier"), ignored=DECODER
    ),
}
FAMILIES = {
    kind: Family(
        model_type=kind,
        architectures={f"{name}{end}": architecture for end, architecture in ARCHITECTURES.items()},
        table=TABLE,
        write=writer,
        settled=settled,
        prefix="transformer.",
        ignored=(r"\.EncDecAttention\.relative_attention_bias\.weight$",),
        copies={
            f"{name}.weight": "shared.weight"
            for prefix in ("", "transformer.")
            for name in ("lm_head", f"{prefix}encoder.embed_tokens", f"{prefix}decoder.embed_tokens")
        },
    )
    for kind, name, writer in (("t5", "T5", write), ("mt5", "MT5", write_mt5))
}
