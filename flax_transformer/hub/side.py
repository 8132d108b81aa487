"""What BART's and Marian's checkpoints have in common: the two sides."""

from typing import Any

from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.hub.table import Layout, Row, Table, linear, norm
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, TrunkConfig, transformer_block


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
        transformer_block(
            embed=fields.integer("d_model", 1024), heads=fields.integer(f"{side}_attention_heads", 16),
            inner=fields.integer(f"{side}_ffn_dim", 4096), cross=side == "decoder",
            activation=fields.activation("activation_function", "gelu"), dropout=fields.number("dropout", 0.1),
            attention_dropout=fields.number("attention_dropout", 0.0),
            activation_dropout=fields.number("activation_dropout", 0.0), init_std=fields.number("init_std", 0.02),
        )
        for side in ("encoder", "decoder")
    )  # fmt: skip
    return {
        "encoder": TrunkConfig(block=encoder, depth=fields.integer("encoder_layers", 12)),
        "decoder": TrunkConfig(block=decoder, depth=fields.integer("decoder_layers", 12)),
    }


def write_sides(config: Seq2SeqConfig) -> dict[str, Any]:
    """Write what BART and Marian say alike."""
    encoder, decoder = config.encoder.block, config.decoder.block
    return {
        "is_encoder_decoder": True,
        "vocab_size": config.embedding.vocab,
        "d_model": encoder.embed,
        "encoder_layers": config.encoder.depth,
        "decoder_layers": config.decoder.depth,
        "encoder_attention_heads": encoder.attention.heads,
        "decoder_attention_heads": decoder.attention.heads,
        "encoder_ffn_dim": encoder.feedforward.inner,
        "decoder_ffn_dim": decoder.feedforward.inner,
        "max_position_embeddings": config.embedding.max_length,
        "scale_embedding": config.embedding.scaled,
        "activation_function": spelled(encoder.feedforward.activation),
        "dropout": encoder.residual.dropout,
        "attention_dropout": encoder.attention.attention_dropout,
        "activation_dropout": encoder.feedforward.activation_dropout,
        "init_std": encoder.attention.init_std or 0.02,
        "tie_word_embeddings": True,
        **({} if config.output_bias else {"output_bias": False}),
    }


def _side(name: str, attentions: dict[str, str]) -> Table:
    rows = []
    for ours, theirs in attentions.items():
        for part in ("query", "key", "value"):
            rows += linear(f"{name}.blocks.{ours}.{part}", f"{name}.layers.{{}}.{theirs}.{part[0]}_proj")
        rows += linear(f"{name}.blocks.{ours}.out", f"{name}.layers.{{}}.{theirs}.out_proj", inputs=2)
        rows += norm(f"{name}.blocks.{ours}_residual.norm", f"{name}.layers.{{}}.{theirs}_layer_norm")
    return (
        *rows,
        *linear(f"{name}.blocks.feedforward.up", f"{name}.layers.{{}}.fc1"),
        *linear(f"{name}.blocks.feedforward.down", f"{name}.layers.{{}}.fc2"),
        *norm(f"{name}.blocks.feedforward_residual.norm", f"{name}.layers.{{}}.final_layer_norm"),
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
