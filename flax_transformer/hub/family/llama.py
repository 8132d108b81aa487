"""Llama checkpoints (Touvron et al. 2023), and those of its kin: Mistral, Qwen 2 and Qwen 3."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.call import causal_classifier, causal_lm, causal_model, causal_span
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import TEXT_OR_EMBEDDED
from flax_transformer.hub.layer_types import FULL, SLIDING, Window, depth_of, read_window, write_window
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.rotary import read_rotary, write_rotary
from flax_transformer.hub.table import Table, embedding, linear, norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.models.text.llama import llama2_7b, mistral_7b, qwen2_5_0_5b, qwen3_0_6b
from flax_transformer.nn import with_fields

ROWS = {
    "vocab_size": "vocab",
    "max_position_embeddings": "max_length",
    "hidden_size": "embed",
    "intermediate_size": "inner",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "hidden_act": "activation",
    "rms_norm_eps": "norm_eps",
    "initializer_range": "init_std",
    "attention_dropout": "attention_dropout",
    "tie_word_embeddings": "tied_output",
}
BIASES = {"attention_bias": ("attention.bias", "attention.out_bias")}
QWEN = {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28}
"""What else a Qwen's config.json need not say."""


def heads_of(fields: Fields) -> dict[str, Any]:
    """Read how many heads there are, how wide, and their rotary positions."""
    heads = fields.integer("num_attention_heads")
    width = fields.integer("head_dim", None) or fields.integer("hidden_size") // max(heads, 1)
    kv_heads = fields.integer("num_key_value_heads", None) or heads
    return {"kv_heads": kv_heads, "head_width": width, "rotary": read_rotary(fields)}


def _mistral(fields: Fields) -> dict[str, Any]:
    fields = Fields.of({"num_key_value_heads": 8, "sliding_window": 4096, **fields})
    return {**heads_of(fields), "window": fields.integer("sliding_window", None)}


def _qwen2(fields: Fields) -> dict[str, Any]:
    fields = Fields.of({**QWEN, **fields})
    return {**heads_of(fields), "window": read_qwen_window(fields)}


def _qwen3(fields: Fields) -> dict[str, Any]:
    return {**_qwen2(Fields.of({"head_dim": 128, **fields})), "qk_norm": fields.number("rms_norm_eps")}


def read_qwen_window(fields: Fields) -> Window:
    """Read the windows of a Qwen, of fields that have all of `QWEN`: from some layer on, or by kinds of layers."""
    depth = depth_of(fields)
    used = fields.flag("use_sliding_window", False)
    window = fields.integer("sliding_window", None) if used else None
    first = depth if window is None else fields.integer("max_window_layers")
    return read_window(fields, window, [FULL if i < first else SLIDING for i in range(depth)])


def _said(config: CausalConfig) -> dict[str, Any]:
    attention = config.block.attention
    rotary = {} if attention.rotary is None else write_rotary(attention.rotary)
    return {"num_key_value_heads": attention.resolved_kv_heads, "head_dim": attention.width, **rotary}


def said_window(config: CausalConfig) -> dict[str, Any]:
    """Write what `heads_of` reads, and the window.

    Raises:
      ValueError: windows that differ from layer to layer.
    """
    if isinstance(config.window, tuple):
        raise ValueError(f"config.json has one window for all layers, got {config.window}")
    return {**_said(config), "sliding_window": config.window}


def said_qwen_window(config: CausalConfig) -> dict[str, Any]:
    """Write what `read_qwen_window` reads."""
    said = write_window(config.windows, config.depth)
    return {**said, "use_sliding_window": config.window is not None, "max_window_layers": 0}


def _said_qwen(config: CausalConfig) -> dict[str, Any]:
    return {**_said(config), **said_qwen_window(config)}


SIZES = {"embed": 4096, "inner": 22_016, "heads": 32, "depth": 32, "max_length": 32_768, "tied_output": False}
CONFIGS = {
    "llama": ConfigTable(
        with_fields(llama2_7b(), max_length=2048, norm_eps=1e-6), {**ROWS, **BIASES, "mlp_bias": "feedforward.bias"},
        reads=heads_of, writes=_said,
    ),
    "mistral": ConfigTable(
        with_fields(mistral_7b(), max_length=131_072, norm_eps=1e-6), ROWS, {"layer_types": None},
        reads=_mistral, writes=said_window,
    ),
    "qwen2": ConfigTable(with_fields(qwen2_5_0_5b(), **SIZES), ROWS, reads=_qwen2, writes=_said_qwen),
    "qwen3": ConfigTable(
        with_fields(qwen3_0_6b(), **SIZES), {**ROWS, **BIASES}, reads=_qwen3, writes=_said_qwen
    ),
}  # fmt: skip


LAYER = "layers.{}."
PARTS = {part: f"trunk.blocks.attention.{part}" for part in ("query", "key", "value")}
APART = tuple(row for part, ours in PARTS.items() for row in linear(ours, f"{LAYER}self_attn.{part[0]}_proj"))
"""Queries, keys and values with a tensor each."""


def attending(after: str = "feedforward_residual.norm", before: str | None = None, projections: Table = APART) -> Table:
    """Return the rows of all but the feed-forward layers.

    Args:
      after: of the block, what they call the norm after attention.
      before: what they call the norm before the feed-forward layer, where that is another.
      projections: of queries, keys and values.
    """
    return (
        *embedding("embedding.token", "embed_tokens"),
        *norm("trunk.blocks.attention_residual.norm", LAYER + "input_layernorm"),
        *projections,
        *linear("trunk.blocks.attention.out", LAYER + "self_attn.o_proj", inputs=2),
        *norm("trunk.blocks.attention.query_norm", LAYER + "self_attn.q_norm"),
        *norm("trunk.blocks.attention.key_norm", LAYER + "self_attn.k_norm"),
        *norm(f"trunk.blocks.{after}", LAYER + "post_attention_layernorm"),
        *(() if before is None else norm("trunk.blocks.feedforward_residual.norm", LAYER + before)),
        *norm("trunk.norm", "norm"),
    )


ATTENDING = attending()
GATED = (
    *linear("trunk.blocks.feedforward.gate", LAYER + "mlp.gate_proj"),
    *linear("trunk.blocks.feedforward.up", LAYER + "mlp.up_proj"),
    *linear("trunk.blocks.feedforward.down", LAYER + "mlp.down_proj"),
)
TABLE = (*ATTENDING, *GATED)
OUTPUT = r"^lm_head\."


def _headless(read: Callable[[Fields], CausalConfig], fields: Fields) -> CausalConfig:
    return replace(read(fields), tied_output=True)


def _classifier(read: Callable[[Fields], CausalConfig], head: Mapping[str, Any], fields: Fields) -> ClassifierConfig:
    backbone = _headless(read, fields)
    head = {"outputs": fields.labels, "init_std": backbone.block.attention.init_std, **head}
    return ClassifierConfig(backbone=backbone, head=HeadConfig(embed=backbone.block.embed, **head))


def _tokens(read: Callable[[Fields], CausalConfig], fields: Fields) -> ClassifierConfig:
    rate = fields.number("classifier_dropout", None)
    return _classifier(read, {"dropout": 0.1 if rate is None else rate}, fields)


CLASSES = ("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def decoder_family(
    model_type: str,
    name: str,
    span_prefix: str,
    config: ConfigTable,
    table: Table = TABLE,
    *,
    classes: tuple[str, ...] = CLASSES,
) -> Family:
    """Return a family of decoders that are Llamas but for what their config and their table say.

    Args:
      name: what its classes begin with.
      span_prefix: of the backbone in the class that answers questions.
      classes: what the names of its classes go on with, each ending as one of `CLASSES`.
    """
    kinds = architectures(config, span_prefix)
    return Family(
        model_type=model_type,
        architectures={name + each: kinds[_kind(each)] for each in classes},
        table=table,
        write=config.write,
        prefix="model.",
        ignored=(r"\.rotary_emb\.inv_freq$",),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
    )


def _kind(name: str) -> str:
    return next(kind for kind in sorted(CLASSES, key=len, reverse=True) if name.endswith(kind))


def architectures(
    config: ConfigTable, span_prefix: str, output: Table | None = None, unread: str = OUTPUT
) -> dict[str, Architecture]:
    """Return the architectures of a decoder, by what the names of their classes end with; arguments as above.

    Args:
      output: rows of the output layer.
      unread: pattern of its tensors.
    """
    read = config.read
    score, ends = linear("head.output", "score"), linear("head.output", "qa_outputs")
    last, span = partial(_classifier, read, {"pool": "last", "bias": False}), partial(_classifier, read, {"outputs": 2})
    above = {"at": "backbone.", "ignored": (unread,)}
    return {
        "ForCausalLM": Architecture(
            read, causal_lm, embedding("head.token", "lm_head") if output is None else output,
            uses=("text-generation",), inputs=TEXT_OR_EMBEDDED,
        ),
        "Model": Architecture(
            partial(_headless, read), causal_model, base=True, ignored=(unread,), uses=("feature-extraction",),
            inputs=TEXT_OR_EMBEDDED,
        ),
        "ForSequenceClassification": Architecture(
            last, causal_classifier, score, **above, uses=("classification",)
        ),
        "ForTokenClassification": Architecture(
            partial(_tokens, read), causal_classifier, score, **above, uses=("token-classification",)
        ),
        "ForQuestionAnswering": Architecture(
            span, causal_span, ends, prefix=span_prefix, **above, uses=("question-answering",)
        ),
    }  # fmt: skip


FAMILIES = {
    "llama": decoder_family("llama", "Llama", "transformer.", CONFIGS["llama"]),
    "mistral": decoder_family("mistral", "Mistral", "model.", CONFIGS["mistral"]),
    "qwen2": decoder_family("qwen2", "Qwen2", "transformer.", CONFIGS["qwen2"]),
    "qwen3": decoder_family("qwen3", "Qwen3", "transformer.", CONFIGS["qwen3"]),
}
