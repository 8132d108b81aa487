"""What BART's and Marian's checkpoints have in common: the two sides."""

from typing import Any

from flax_transformer.hub.fields import SPELLING, Fields
from flax_transformer.hub.table import Layout, Row, Table, linear, norm
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import BlockConfig, EmbeddingConfig


def read_embedding(fields: Fields, vocab: int, **options: Any) -> EmbeddingConfig:
    """Read what BART and Marian say alike of their embeddings; `vocab` is what it is by default."""
    return EmbeddingConfig(
        vocab=fields.integer("vocab_size", vocab), embed=fields.integer("d_model", 1024),
        dropout=fields.number("dropout", 0.1), init_std=fields.number("init_std", 0.02),
        max_length=fields.integer("max_position_embeddings", 1024), scaled=fields.flag("scale_embedding", False),
        **options,
    )  # fmt: skip


def read_sides(fields: Fields) -> dict[str, Any]:
    """Read what BART and Marian say alike of encoder and decoder."""
    fields.only(
        tie_word_embeddings=True, normalize_before=False, add_final_layer_norm=False, encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
    )  # fmt: skip
    encoder, decoder = (
        BlockConfig(
            embed=fields.integer("d_model", 1024), heads=fields.integer(f"{side}_attention_heads", 16),
            hidden=fields.integer(f"{side}_ffn_dim", 4096), cross=side == "decoder",
            activation=fields.activation("activation_function", "gelu"), dropout=fields.number("dropout", 0.1),
            attention_dropout=fields.number("attention_dropout", 0.0),
            activation_dropout=fields.number("activation_dropout", 0.0), init_std=fields.number("init_std", 0.02),
        )
        for side in ("encoder", "decoder")
    )  # fmt: skip
    depths = {f"{side}_depth": fields.integer(f"{side}_layers", 12) for side in ("encoder", "decoder")}
    return {"encoder": encoder, "decoder": decoder, **depths}


def write_sides(config: Seq2SeqConfig) -> dict[str, Any]:
    """Write what BART and Marian say alike."""
    encoder, decoder = config.encoder, config.decoder
    return {
        "is_encoder_decoder": True,
        "vocab_size": config.embedding.vocab,
        "d_model": encoder.embed,
        "encoder_layers": config.encoder_depth,
        "decoder_layers": config.decoder_depth,
        "encoder_attention_heads": encoder.heads,
        "decoder_attention_heads": decoder.heads,
        "encoder_ffn_dim": encoder.hidden,
        "decoder_ffn_dim": decoder.hidden,
        "max_position_embeddings": config.embedding.max_length,
        "scale_embedding": config.embedding.scaled,
        "activation_function": SPELLING[encoder.activation],
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention_dropout,
        "activation_dropout": encoder.activation_dropout,
        "init_std": encoder.init_std or 0.02,
        "tie_word_embeddings": True,
        **({} if config.output_bias else {"output_bias": False}),
    }


def _side(name: str, attentions: dict[str, str]) -> Table:
    rows = []
    for ours, theirs in attentions.items():
        for part in ("query", "key", "value"):
            rows += linear(f"{name}.{ours}.{part}", f"{name}.layers.{{}}.{theirs}.{part[0]}_proj")
        rows += linear(f"{name}.{ours}.out", f"{name}.layers.{{}}.{theirs}.out_proj", inputs=2)
        rows += norm(f"{name}.{ours}_norm", f"{name}.layers.{{}}.{theirs}_layer_norm")
    return (
        *rows,
        *linear(f"{name}.feedforward.up", f"{name}.layers.{{}}.fc1"),
        *linear(f"{name}.feedforward.down", f"{name}.layers.{{}}.fc2"),
        *norm(f"{name}.feedforward_norm", f"{name}.layers.{{}}.final_layer_norm"),
    )


SIDES = (
    *_side("encoder", {"attention": "self_attn"}),
    *_side("decoder", {"attention": "self_attn", "cross": "encoder_attn"}),
)
BIAS = (Row(("output_bias",), "final_logits_bias", Layout(1, transposed=True)),)
"""Theirs is a row, [1, V]."""
COPIES = {"lm_head.weight": "shared.weight"} | {
    f"{prefix}{side}.embed_tokens.weight": "shared.weight"
    for prefix in ("", "model.")
    for side in ("encoder", "decoder")
}
