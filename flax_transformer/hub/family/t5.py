"""T5 checkpoints (Raffel et al. 2020), and those of mT5 (Xue et al. 2021), which are T5 1.1 by another name."""

from collections.abc import Callable, Collection, Mapping
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
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import ACTIVATIONS, Fields, spelled
from flax_transformer.hub.inputs import EMBEDDED_TO_TEXT, TEXT_TO_TEXT
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, TensorRow, embedding, linear, norm
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.t5 import t5_small
from flax_transformer.nn import FeedForwardConfig, with_fields
from flax_transformer.ops import attention_uniform_on_empty

MT5 = {"vocab_size": 250_112, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu"}
"""What mT5's config.json need not say, and T5's would."""


def settled(fields: Fields, names: Collection[str]) -> Fields:
    """Return whether the output layer is the embedding table, which only the names of the tensors tell.

    Transformers 5 writes `tie_word_embeddings` true whatever the model, and T5 1.1, whose published config.json says
    false, is without a layer of its own where transformers 5 made it. With hidden states scaled it is always tied.
    """
    if _scaled(fields):
        return fields
    own = any(name.endswith("lm_head.weight") for name in names)
    said = {} if _is_mt5(fields) else {"scale_decoder_outputs": False}
    return fields.updated({"tie_word_embeddings": not own, **said})


def _is_mt5(fields: Fields) -> bool:
    return fields.get("model_type") == "mt5"


def _scaled(fields: Fields) -> bool:
    """Read whether hidden states are scaled before the output layer, which mT5 never does."""
    tied = fields.flag("tie_word_embeddings", True)
    return not _is_mt5(fields) and fields.flag("scale_decoder_outputs", tied)


def _activation(fields: Fields) -> dict[str, Any]:
    *gated, name = str(fields.get("feed_forward_proj", "relu")).split("-")
    if gated not in ([], ["gated"]) or name not in ACTIVATIONS:
        known = ", ".join(("gated-gelu", *ACTIVATIONS))
        raise ValueError(f"config.json has feed_forward_proj={fields['feed_forward_proj']!r}; supported are {known}")
    if gated and name == "gelu":
        name = "gelu_new"  # T5 1.1 approximates
    fields.only(dense_act_fn=name, is_gated_act=bool(gated))
    return {"activation": ACTIVATIONS[name], "gated": bool(gated)}


def _projection(feedforward: FeedForwardConfig) -> str:
    name = spelled(feedforward.activation)
    if not feedforward.gated:
        return name
    return "gated-gelu" if name == "gelu_new" else f"gated-{name}"


def _reads(fields: Fields) -> dict[str, Any]:
    depth = fields.integer("num_decoder_layers", None) or fields.integer("num_layers")
    scale = fields.integer("d_model") ** -0.5 if _scaled(fields) else 1.0
    return {**_activation(fields), "decoder.depth": depth, "output_scale": scale}


def _writes(config: Seq2SeqConfig) -> dict[str, Any]:
    return {
        "feed_forward_proj": _projection(config.encoder.block.feedforward),
        "num_decoder_layers": config.decoder.depth,
        "scale_decoder_outputs": config.output_scale != 1,
        "is_encoder_decoder": True,
    }


def _encoder_writes(config: EncoderConfig) -> dict[str, Any]:
    return {
        "feed_forward_proj": _projection(config.block.feedforward),
        "num_decoder_layers": config.depth,
        "is_encoder_decoder": False,
    }


ROWS = {
    "vocab_size": "vocab",
    "d_model": "embed",
    "d_kv": "head_width",
    "d_ff": "inner",
    "num_heads": "heads",
    "layer_norm_epsilon": "norm_eps",
    "dropout_rate": ("block.dropout", "dropout", "attention_dropout", "activation_dropout"),
    "initializer_factor": "embedding.init_std",
    "relative_attention_num_buckets": "buckets",
    "relative_attention_max_distance": "max_distance",
}
TOKENS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}

SMALL = with_fields(t5_small(), attend=attention_uniform_on_empty)
CONFIG = ConfigTable(
    SMALL,
    {**ROWS, "num_layers": "encoder.depth", "tie_word_embeddings": "tied_output"},
    adds=TOKENS,
    reads=_reads,
    writes=_writes,
)
"""Of both sides, of fields that are `settled`."""
ENCODER = ConfigTable(
    EncoderConfig(embedding=SMALL.embedding, **vars(SMALL.encoder)),
    {**ROWS, "num_layers": "depth"},
    adds=TOKENS,
    reads=_activation,
    writes=_encoder_writes,
)
"""Of the encoder alone."""


def read(fields: Fields) -> Seq2SeqConfig:
    """Make our config of config.json's fields, once they are `settled`."""
    return CONFIG.read(_complete(fields))


def read_encoder(fields: Fields) -> EncoderConfig:
    """Make the config of the encoder alone."""
    return ENCODER.read(_complete(fields))


def _complete(fields: Fields) -> Fields:
    return Fields.of({**MT5, **fields}) if _is_mt5(fields) else fields


def write(config: Seq2SeqConfig | EncoderConfig) -> dict[str, Any]:
    """Make config.json's fields of our config."""
    return (CONFIG if isinstance(config, Seq2SeqConfig) else ENCODER).write(config)


def write_mt5(config: Seq2SeqConfig | EncoderConfig) -> dict[str, Any]:
    """Make the fields of an mT5, which never scales what goes into its output layer."""
    return {name: value for name, value in write(config).items() if name != "scale_decoder_outputs"}


def _side(ours: str, theirs: str, attentions: tuple[str, ...]) -> Table:
    """Return the rows of one side: of each block the layers of attention, then the feed-forward one."""
    names = {"attention": "SelfAttention", "cross": "EncDecAttention"}
    rows: list[TensorRow] = []
    for i, mine in enumerate(attentions):
        layer = f"{theirs}.block.{{}}.layer.{i}"
        for part in ("query", "key", "value"):
            rows += linear(f"{ours}.blocks.{mine}.{part}", f"{layer}.{names[mine]}.{part[0]}")
        rows += linear(f"{ours}.blocks.{mine}.out", f"{layer}.{names[mine]}.o", inputs=2)
        rows += norm(f"{ours}.blocks.{mine}_residual.norm", f"{layer}.layer_norm")
    layer = f"{theirs}.block.{{}}.layer.{len(attentions)}"
    gate = f"{ours}.blocks.feedforward.gate.kernel"
    return (
        *rows,
        *linear(f"{ours}.blocks.feedforward.gate", f"{layer}.DenseReluDense.wi_0"),
        *(replace(row, given=gate) for row in linear(f"{ours}.blocks.feedforward.up", f"{layer}.DenseReluDense.wi_1")),
        *(replace(row, unless=gate) for row in linear(f"{ours}.blocks.feedforward.up", f"{layer}.DenseReluDense.wi")),
        *linear(f"{ours}.blocks.feedforward.down", f"{layer}.DenseReluDense.wo"),
        *norm(f"{ours}.blocks.feedforward_residual.norm", f"{layer}.layer_norm"),
        *norm(f"{ours}.norm", f"{theirs}.final_layer_norm"),
        *embedding(f"{ours}.relative.bucket", f"{theirs}.block.0.layer.0.SelfAttention.relative_attention_bias"),
    )


TABLE = (
    *embedding("embedding.token", "shared"),
    *_side("encoder", "encoder", ("attention",)),
    *_side("decoder", "decoder", ("attention", "cross")),
    # The encoder alone is another model of ours.
    *_side("trunk", "encoder", ("attention",)),
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
    head: Mapping[str, Any],
    **options: Any,
) -> Architecture:
    """Make the architecture of a model with a head.

    Args:
      rows: of the head.
      head: what its `HeadConfig` has; as many outputs as labels by default.
      options: what else an `Architecture` has.
    """

    def config(fields: Fields) -> ClassifierConfig:
        width, rate = fields.integer("d_model", 512), fields.number("classifier_dropout", 0.0)
        shape = HeadConfig(**{"embed": width, "outputs": fields.labels, "dropout": rate, **head})
        return ClassifierConfig(backbone=backbone(fields), head=shape)

    return Architecture(config, call, rows, at="backbone.", **options)


BOTH = {"inputs": TEXT_TO_TEXT}
LAST = {"pool": "last", "dense": "tanh", "dropout_first": True}
ARCHITECTURES = {
    "ForConditionalGeneration": Architecture(read, seq2seq_lm, OUTPUT, base=True, inputs=EMBEDDED_TO_TEXT,
        uses=("text2text-generation",)),
    "Model": Architecture(
        _model, seq2seq_model, base=True, ignored=HEAD, inputs=EMBEDDED_TO_TEXT, uses=("feature-extraction",)
    ),
    "EncoderModel": Architecture(read_encoder, encoder_model, base=True, ignored=DECODER, uses=("feature-extraction",)),
    "ForSequenceClassification": _classifier(
        _model, seq2seq_classifier, CLASSES, LAST, check=check_ends, ignored=HEAD, **BOTH, uses=("classification",)
    ),
    "ForQuestionAnswering": _classifier(
        _model, seq2seq_span, linear("head.output", "qa_outputs"), {"outputs": 2}, base=True, ignored=HEAD, **BOTH,
        uses=("question-answering",),
    ),
    "ForTokenClassification": _classifier(
        read_encoder, encoder_classifier, linear("head.output", "classifier"), {}, ignored=DECODER,
        uses=("token-classification",)
    ),
}  # fmt: skip
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
