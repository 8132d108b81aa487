"""Llama checkpoints (Touvron et al. 2023), and those of its kin: Mistral, Qwen 2 and Qwen 3."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.call import causal_classifier, causal_lm, causal_model, causal_span
from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.rotary import read_rotary, write_rotary
from flax_transformer.hub.table import embedding, linear, norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block

SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
QWEN = {
    **SIZES, "vocab_size": 151_936, "intermediate_size": 22_016, "num_key_value_heads": 32,
    "max_position_embeddings": 32_768, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip
DEFAULTS = {
    "llama": {**SIZES, "vocab_size": 32_000, "intermediate_size": 11_008, "max_position_embeddings": 2048},
    "mistral": {
        **SIZES, "vocab_size": 32_000, "intermediate_size": 14_336, "max_position_embeddings": 131_072,
        "num_key_value_heads": 8, "sliding_window": 4096,
    },
    "qwen2": QWEN,
    "qwen3": {**QWEN, "head_dim": 128},
}  # fmt: skip
"""What `transformers` takes a field to be that config.json lacks, by model type."""


def read_llama(fields: Fields) -> CausalConfig:
    """Make our config of a Llama's fields."""
    bias = fields.flag("attention_bias", False)
    return _read("llama", fields, bias=bias, out_bias=bias, mlp_bias=fields.flag("mlp_bias", False))


def read_mistral(fields: Fields) -> CausalConfig:
    """Make our config of a Mistral's fields."""
    fields.only(layer_types=None)
    config = _read("mistral", fields)
    return replace(config, window=_complete("mistral", fields).integer("sliding_window", None))


def read_qwen2(fields: Fields) -> CausalConfig:
    """Make our config of the fields of a Qwen 2 or 2.5."""
    config = _read("qwen2", fields, bias=True, out_bias=False)
    return replace(config, window=_window(_complete("qwen2", fields), config.depth))


def read_qwen3(fields: Fields) -> CausalConfig:
    """Make our config of a Qwen 3's fields."""
    bias = fields.flag("attention_bias", False)
    config = _read("qwen3", fields, bias=bias, out_bias=bias, qk_norm=_eps(fields))
    return replace(config, window=_window(_complete("qwen3", fields), config.depth))


def _complete(model_type: str, fields: Fields) -> Fields:
    return Fields.of({**DEFAULTS[model_type], **fields})


def _eps(fields: Fields) -> float:
    return fields.number("rms_norm_eps", 1e-6)


def _read(model_type: str, fields: Fields, *, mlp_bias: bool = False, **attention: Any) -> CausalConfig:
    fields = _complete(model_type, fields)
    embed, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    std = fields.number("initializer_range", 0.02)
    block = transformer_block(
        embed=embed, heads=heads, inner=fields.integer("intermediate_size"), norm="rms", norm_position="pre",
        kv_heads=fields.integer("num_key_value_heads", None) or heads, gated=True, init_std=std, bias=mlp_bias,
        head_width=fields.integer("head_dim", None) or embed // max(heads, 1), rotary=read_rotary(fields),
        norm_eps=_eps(fields), activation=fields.activation("hidden_act", "silu"),
        attention_dropout=fields.number("attention_dropout", 0.0),
    )  # fmt: skip
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=fields.integer("vocab_size"), embed=embed, position="none", scaled=False, init_std=std,
            max_length=fields.integer("max_position_embeddings"),
        ),
        block=replace(block, attention=replace(block.attention, **{"bias": False, "out_bias": False, **attention})),
        depth=fields.integer("num_hidden_layers"),
        tied_output=fields.flag("tie_word_embeddings", False),
    )  # fmt: skip


def _window(fields: Fields, depth: int) -> int | None:
    """Read the window of a Qwen; it may be on all layers or on none."""
    used = fields.flag("use_sliding_window", False)
    window = fields.integer("sliding_window", None) if used else None
    first = depth if window is None else fields.integer("max_window_layers")
    given = fields.get("layer_types")
    if not isinstance(given, list | None):
        raise ValueError(f"config.json must give layer_types as a list, it is {given!r}")

    def all_are(kind: str, otherwise: bool) -> bool:
        return otherwise if given is None else given == [kind] * len(given) and len(given) == depth

    if all_are("full_attention", first >= depth):
        return None
    if window is None or not all_are("sliding_attention", first == 0):
        raise ValueError(
            f"config.json has use_sliding_window={used}, sliding_window={window}, layer_types={given!r}, "
            f"max_window_layers={first}; supported are full_attention in all layers, or a window and "
            "sliding_attention in all"
        )
    return window


def _write(config: CausalConfig) -> dict[str, Any]:
    attention, feedforward, residual = config.block.attention, config.block.feedforward, config.block.residual
    return {
        "vocab_size": config.embedding.vocab,
        "max_position_embeddings": config.embedding.max_length,
        "hidden_size": residual.embed,
        "intermediate_size": feedforward.inner,
        "num_hidden_layers": config.depth,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.resolved_kv_heads,
        "head_dim": attention.width,
        "hidden_act": spelled(feedforward.activation),
        "rms_norm_eps": residual.norm_eps,
        "initializer_range": attention.init_std or 0.02,
        "attention_dropout": attention.attention_dropout,
        "tie_word_embeddings": config.tied_output,
        **({} if attention.rotary is None else write_rotary(attention.rotary)),
    }


def write_llama(config: CausalConfig) -> dict[str, Any]:
    """Make a Llama's fields of our config."""
    return {**_write(config), "attention_bias": config.block.attention.bias, "mlp_bias": config.block.feedforward.bias}


def write_mistral(config: CausalConfig) -> dict[str, Any]:
    """Make a Mistral's fields of our config."""
    return {**_write(config), "sliding_window": config.window}


def write_qwen2(config: CausalConfig) -> dict[str, Any]:
    """Make the fields of a Qwen 2 of our config."""
    window = {"use_sliding_window": config.window is not None, "sliding_window": config.window, "max_window_layers": 0}
    return {**_write(config), **window}


def write_qwen3(config: CausalConfig) -> dict[str, Any]:
    """Make the fields of a Qwen 3 of our config."""
    return {**write_qwen2(config), "attention_bias": config.block.attention.bias}


LAYER = "layers.{}."
TABLE = (
    *embedding("embedding.token", "embed_tokens"),
    *norm("trunk.blocks.attention_residual.norm", LAYER + "input_layernorm"),
    *linear("trunk.blocks.attention.query", LAYER + "self_attn.q_proj"),
    *linear("trunk.blocks.attention.key", LAYER + "self_attn.k_proj"),
    *linear("trunk.blocks.attention.value", LAYER + "self_attn.v_proj"),
    *linear("trunk.blocks.attention.out", LAYER + "self_attn.o_proj", inputs=2),
    *norm("trunk.blocks.attention.query_norm", LAYER + "self_attn.q_norm"),
    *norm("trunk.blocks.attention.key_norm", LAYER + "self_attn.k_norm"),
    *norm("trunk.blocks.feedforward_residual.norm", LAYER + "post_attention_layernorm"),
    *linear("trunk.blocks.feedforward.gate", LAYER + "mlp.gate_proj"),
    *linear("trunk.blocks.feedforward.up", LAYER + "mlp.up_proj"),
    *linear("trunk.blocks.feedforward.down", LAYER + "mlp.down_proj"),
    *norm("trunk.norm", "norm"),
)
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


def _family(
    model_type: str, name: str, read: Callable[[Fields], CausalConfig], write: Callable, span_prefix: str
) -> Family:
    """Give a family.

    Args:
      name: what its classes begin with.
      span_prefix: of the backbone in the class that answers questions.
    """
    score, ends = linear("head.output", "score"), linear("head.output", "qa_outputs")
    last, span = partial(_classifier, read, {"pool": "last", "bias": False}), partial(_classifier, read, {"outputs": 2})
    above = {"at": "backbone.", "ignored": (OUTPUT,)}
    return Family(
        model_type=model_type,
        architectures={
            f"{name}ForCausalLM": Architecture(read, causal_lm, embedding("head.token", "lm_head"), uses=("continue",)),
            f"{name}Model": Architecture(
                partial(_headless, read), causal_model, base=True, ignored=(OUTPUT,), uses=("embed",)
            ),
            f"{name}ForSequenceClassification": Architecture(
                last, causal_classifier, score, **above, uses=("classify",)
            ),
            f"{name}ForTokenClassification": Architecture(
                partial(_tokens, read), causal_classifier, score, **above, uses=("label",)
            ),
            f"{name}ForQuestionAnswering": Architecture(
                span, causal_span, ends, prefix=span_prefix, **above, uses=("span",)
            ),
        },
        table=TABLE,
        write=write,
        prefix="model.",
        ignored=(r"\.rotary_emb\.inv_freq$",),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
    )


FAMILIES = {
    "llama": _family("llama", "Llama", read_llama, write_llama, "transformer."),
    "mistral": _family("mistral", "Mistral", read_mistral, write_mistral, "model."),
    "qwen2": _family("qwen2", "Qwen2", read_qwen2, write_qwen2, "transformer."),
    "qwen3": _family("qwen3", "Qwen3", read_qwen3, write_qwen3, "transformer."),
}
