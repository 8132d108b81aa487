"""GPT-2 checkpoints (Radford et al. 2019)."""

import math
from typing import Any

from flax_transformer.hub.call import causal_classifier, causal_lm, causal_model, causal_span
from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.hub.registration import LOOKED_UP, Architecture, Family
from flax_transformer.hub.table import conv, embedding, linear, norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import ClassifierConfig, HeadConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block


def read(fields: Fields) -> CausalConfig:
    """Make our config of config.json's fields; scores are float32 here, whatever `reorder_and_upcast_attn` says."""
    fields.only(add_cross_attention=False, tie_word_embeddings=True)
    embed = fields.integer("n_embd", 768)
    std, depth = fields.number("initializer_range", 0.02), fields.integer("n_layer", 12)
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=fields.integer("vocab_size", 50257), embed=embed, position="learned", types="token", scaled=False,
            max_length=fields.integer("n_positions", 1024), dropout=fields.number("embd_pdrop", 0.1), init_std=std,
        ),
        block=transformer_block(
            embed=embed, heads=fields.integer("n_head", 12), norm_position="pre", init_std=std,
            residual_init_std=std / math.sqrt(2 * max(depth, 1)),
            inner=fields.integer("n_inner", None) or 4 * embed,
            norm_eps=fields.number("layer_norm_epsilon", 1e-5),
            activation=fields.activation("activation_function", "gelu_new"),
            dropout=fields.number("resid_pdrop", 0.1), attention_dropout=fields.number("attn_pdrop", 0.1),
            scale=None if fields.flag("scale_attn_weights", True) else 1.0,
        ),
        depth=depth,
        falling_scale=fields.flag("scale_attn_by_inverse_layer_idx", False),
    )  # fmt: skip


def write(config: CausalConfig) -> dict[str, Any]:
    """Make config.json's fields of our config."""
    return {
        "vocab_size": config.embedding.vocab,
        "n_positions": config.embedding.max_length,
        "n_embd": config.embedding.embed,
        "n_layer": config.depth,
        "n_head": config.block.attention.heads,
        "n_inner": config.block.feedforward.inner,
        "activation_function": spelled(config.block.feedforward.activation),
        "layer_norm_epsilon": config.block.residual.norm_eps,
        "initializer_range": config.block.attention.init_std or 0.02,
        "embd_pdrop": config.embedding.dropout,
        "resid_pdrop": config.block.residual.dropout,
        "attn_pdrop": config.block.attention.attention_dropout,
        "scale_attn_weights": config.block.attention.scale != 1.0,
        "scale_attn_by_inverse_layer_idx": config.falling_scale,
    }


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
    *conv(tuple(f"trunk.blocks.attention.{part}" for part in ("query", "key", "value")), "h.{}.attn.c_attn"),
    *conv("trunk.blocks.attention.out", "h.{}.attn.c_proj", inputs=2),
    *norm("trunk.blocks.feedforward_residual.norm", "h.{}.ln_2"),
    *conv("trunk.blocks.feedforward.up", "h.{}.mlp.c_fc"),
    *conv("trunk.blocks.feedforward.down", "h.{}.mlp.c_proj"),
    *norm("trunk.norm", "ln_f"),
)

FAMILIES = {
    "gpt2": Family(
        model_type="gpt2",
        architectures={
            "GPT2LMHeadModel": Architecture(read, causal_lm, uses=("continue",)),
            "GPT2Model": Architecture(read, causal_model, base=True, uses=("embed",)),
            "GPT2ForSequenceClassification": Architecture(
                _sequence, causal_classifier, linear("head.output", "score"), at="backbone.", uses=("classify",)
            ),
            "GPT2ForTokenClassification": Architecture(
                _tokens, causal_classifier, linear("head.output", "classifier"), at="backbone.", uses=("label",)
            ),
            "GPT2ForQuestionAnswering": Architecture(
                _span, causal_span, linear("head.output", "qa_outputs"), at="backbone.", uses=("span",)
            ),
        },
        table=TABLE,
        write=write,
        prefix="transformer.",
        ignored=(r"\.attn\.(bias|masked_bias)$",),
        copies={"lm_head.weight": "transformer.wte.weight"},
        looked_up={**LOOKED_UP, "token_type_ids": "embedding.token"},
    )
}
