"""Llama checkpoints (Touvron et al. 2023), and those of its kin: Mistral, Qwen 2 and Qwen 3."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub import llama_config as config
from flax_transformer.hub.call import causal_classifier, causal_lm, causal_model, causal_span
from flax_transformer.hub.family import Architecture, Family, Fields
from flax_transformer.hub.table import embedding, linear, norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import ClassifierConfig, HeadConfig

LAYER = "layers.{}."
TABLE = (
    *embedding("embedding.token", "embed_tokens"),
    *norm("blocks.attention_norm", LAYER + "input_layernorm"),
    *linear("blocks.attention.query", LAYER + "self_attn.q_proj"),
    *linear("blocks.attention.key", LAYER + "self_attn.k_proj"),
    *linear("blocks.attention.value", LAYER + "self_attn.v_proj"),
    *linear("blocks.attention.out", LAYER + "self_attn.o_proj", inputs=2),
    *norm("blocks.attention.query_norm", LAYER + "self_attn.q_norm"),
    *norm("blocks.attention.key_norm", LAYER + "self_attn.k_norm"),
    *norm("blocks.feedforward_norm", LAYER + "post_attention_layernorm"),
    *linear("blocks.feedforward.gate", LAYER + "mlp.gate_proj"),
    *linear("blocks.feedforward.up", LAYER + "mlp.up_proj"),
    *linear("blocks.feedforward.down", LAYER + "mlp.down_proj"),
    *norm("norm", "norm"),
)
OUTPUT = r"^lm_head\."


def _headless(read: Callable[[Fields], CausalConfig], fields: Fields) -> CausalConfig:
    return replace(read(fields), tied_output=True)


def _classifier(read: Callable[[Fields], CausalConfig], head: Mapping[str, Any], fields: Fields) -> ClassifierConfig:
    backbone = _headless(read, fields)
    head = {"outputs": fields.labels, "init_std": backbone.block.init_std, **head}
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
            f"{name}ForCausalLM": Architecture(read, causal_lm, embedding("head.token", "lm_head")),
            f"{name}Model": Architecture(partial(_headless, read), causal_model, base=True, ignored=(OUTPUT,)),
            f"{name}ForSequenceClassification": Architecture(last, causal_classifier, score, **above),
            f"{name}ForTokenClassification": Architecture(partial(_tokens, read), causal_classifier, score, **above),
            f"{name}ForQuestionAnswering": Architecture(span, causal_span, ends, prefix=span_prefix, **above),
        },
        table=TABLE,
        write=write,
        prefix="model.",
        ignored=(r"\.rotary_emb\.inv_freq$",),
        copies={"lm_head.weight": "model.embed_tokens.weight"},
    )


FAMILIES = {
    "llama": _family("llama", "Llama", config.read_llama, config.write_llama, "transformer."),
    "mistral": _family("mistral", "Mistral", config.read_mistral, config.write_mistral, "model."),
    "qwen2": _family("qwen2", "Qwen2", config.read_qwen2, config.write_qwen2, "transformer."),
    "qwen3": _family("qwen3", "Qwen3", config.read_qwen3, config.write_qwen3, "transformer."),
}
