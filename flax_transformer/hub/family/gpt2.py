"""GPT-2 checkpoints (Radford et al. 2019)."""

import math
from typing import Any

from flax_transformer.hub.call import causal_classifier, causal_lm, causal_model, causal_span
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import TEXT_OR_EMBEDDED
from flax_transformer.hub.registration import LOOKED_UP, Architecture, Family
from flax_transformer.hub.table import embedding, linear, matrix, norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.models.text.gpt2 import gpt2


def _reads(fields: Fields) -> dict[str, Any]:
    std, depth = fields.number("initializer_range"), fields.integer("n_layer")
    return {
        "inner": fields.integer("n_inner", None) or 4 * fields.integer("n_embd"),
        "attention.scale": None if fields.flag("scale_attn_weights", True) else 1.0,
        "residual_init_std": std / math.sqrt(2 * max(depth, 1)),
    }


def _writes(config: CausalConfig) -> dict[str, Any]:
    return {
        "n_inner": config.block.feedforward.inner,
        "scale_attn_weights": config.block.attention.scale != 1.0,
    }


CONFIG = ConfigTable(
    gpt2(),
    {
        "vocab_size": "vocab",
        "n_positions": "max_length",
        "n_embd": "embed",
        "n_layer": "depth",
        "n_head": "heads",
        "activation_function": "activation",
        "layer_norm_epsilon": "norm_eps",
        "initializer_range": "init_std",
        "embd_pdrop": "embedding.dropout",
        "resid_pdrop": "block.dropout",
        "attn_pdrop": "attention_dropout",
        "scale_attn_by_inverse_layer_idx": "falling_scale",
    },
    only={"add_cross_attention": False, "tie_word_embeddings": True},
    reads=_reads,
    writes=_writes,
)
"""Scores are float32 here, whatever `reorder_and_upcast_attn` says."""
read = CONFIG.read


def _sequence(fields: Fields) -> ClassifierConfig:
    return _classifier(fields, outputs=fields.labels, pool="last", bias=False)


def _tokens(fields: Fields) -> ClassifierConfig:
    return _classifier(fields, outputs=fields.labels)


def _span(fields: Fields) -> ClassifierConfig:
    return _classifier(fields, outputs=2)


def _classifier(fields: Fields, **head: Any) -> ClassifierConfig:
    backbone = read(fields)
    return ClassifierConfig(backbone=backbone, head=HeadConfig(embed=backbone.block.embed, **head))


TABLE = (
    *embedding("embedding.token", "wte"),
    *embedding("embedding.position", "wpe"),
    *norm("trunk.blocks.attention_residual.norm", "h.{}.ln_1"),
    *matrix(tuple(f"trunk.blocks.attention.{part}" for part in ("query", "key", "value")), "h.{}.attn.c_attn"),
    *matrix("trunk.blocks.attention.out", "h.{}.attn.c_proj", inputs=2),
    *norm("trunk.blocks.feedforward_residual.norm", "h.{}.ln_2"),
    *matrix("trunk.blocks.feedforward.up", "h.{}.mlp.c_fc"),
    *matrix("trunk.blocks.feedforward.down", "h.{}.mlp.c_proj"),
    *norm("trunk.norm", "ln_f"),
)


def _looks() -> Family:
    from flax_transformer.hub.text_decoder import looking

    return looking("gpt2", FAMILIES["gpt2"])


FAMILIES = {
    "gpt2": Family(
        model_type="gpt2",
        looks=_looks,
        architectures={
            "GPT2LMHeadModel": Architecture(read, causal_lm, uses=("text-generation",), inputs=TEXT_OR_EMBEDDED),
            "GPT2Model": Architecture(
                read, causal_model, base=True, uses=("feature-extraction",), inputs=TEXT_OR_EMBEDDED
            ),
            "GPT2ForSequenceClassification": Architecture(
                _sequence, causal_classifier, linear("head.output", "score"), at="backbone.", uses=("classification",)
            ),
            "GPT2ForTokenClassification": Architecture(
                _tokens,
                causal_classifier,
                linear("head.output", "classifier"),
                at="backbone.",
                uses=("token-classification",),
            ),
            "GPT2ForQuestionAnswering": Architecture(
                _span, causal_span, linear("head.output", "qa_outputs"), at="backbone.", uses=("question-answering",)
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="transformer.",
        ignored=(r"\.attn\.(bias|masked_bias)$",),
        copies={"lm_head.weight": "transformer.wte.weight"},
        looked_up={**LOOKED_UP, "token_type_ids": "embedding.token"},
    )
}
