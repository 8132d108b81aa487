"""DistilBERT checkpoints (Sanh et al. 2019)."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.call import encoder_classifier, encoder_model, encoder_span, multiple_choice
from flax_transformer.hub.family.bert import BUFFERS
from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.hub.head import classifier, guesser
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Row, embedding, linear, norm
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block

EPS = 1e-12
"""Of every norm; config.json has no field for it."""


def read(fields: Fields) -> EncoderConfig:
    """Make our config of config.json's fields; sinusoidal positions are in the checkpoint, a table like any other."""
    embed = fields.integer("dim", 768)
    std, dropout = fields.number("initializer_range", 0.02), fields.number("dropout", 0.1)
    block = transformer_block(
        embed=embed, heads=fields.integer("n_heads", 12), inner=fields.integer("hidden_dim", 3072), norm_eps=EPS,
        activation=fields.activation("activation", "gelu"), dropout=dropout, init_std=std,
        attention_dropout=fields.number("attention_dropout", 0.1),
    )  # fmt: skip
    return EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=fields.integer("vocab_size", 30522), embed=embed, position="learned", scaled=False, norm=True,
            max_length=fields.integer("max_position_embeddings", 512), norm_eps=EPS, dropout=dropout, init_std=std,
        ),
        # What comes out of attention is not dropped.
        block=replace(block, residual=replace(block.residual, dropout=0.0), feedforward_residual=block.residual),
        depth=fields.integer("n_layers", 6),
    )  # fmt: skip


def write(config: EncoderConfig) -> dict[str, Any]:
    """Make config.json's fields of our config.

    Raises:
      ValueError: when the norms' epsilon is not DistilBERT's, since no field says it.
    """
    found = config.embedding.norm_eps, config.block.residual.norm_eps
    if found != (EPS, EPS):
        raise ValueError(f"DistilBERT's norms have an epsilon of {EPS}, got {found[0]} and {found[1]}")
    return {
        "vocab_size": config.embedding.vocab,
        "max_position_embeddings": config.embedding.max_length,
        "dim": config.block.embed,
        "n_layers": config.depth,
        "n_heads": config.block.attention.heads,
        "hidden_dim": config.block.feedforward.inner,
        "activation": spelled(config.block.feedforward.activation),
        "initializer_range": 0.02 if config.block.attention.init_std is None else config.block.attention.init_std,
        "dropout": (config.block.feedforward_residual or config.block.residual).dropout,
        "attention_dropout": config.block.attention.attention_dropout,
    }


TABLE = (
    *embedding("embedding.token", "embeddings.word_embeddings"),
    *embedding("embedding.position", "embeddings.position_embeddings"),
    *norm("embedding.norm", "embeddings.LayerNorm"),
    *linear("trunk.blocks.attention.query", "transformer.layer.{}.attention.q_lin"),
    *linear("trunk.blocks.attention.key", "transformer.layer.{}.attention.k_lin"),
    *linear("trunk.blocks.attention.value", "transformer.layer.{}.attention.v_lin"),
    *linear("trunk.blocks.attention.out", "transformer.layer.{}.attention.out_lin", inputs=2),
    *norm("trunk.blocks.attention_residual.norm", "transformer.layer.{}.sa_layer_norm"),
    *linear("trunk.blocks.feedforward.up", "transformer.layer.{}.ffn.lin1"),
    *linear("trunk.blocks.feedforward.down", "transformer.layer.{}.ffn.lin2"),
    *norm("trunk.blocks.feedforward_residual.norm", "transformer.layer.{}.output_layer_norm"),
)
MASKED = (
    *linear("dense", "vocab_transform"),
    *norm("norm", "vocab_layer_norm"),
    Row(("output_bias",), "vocab_projector.bias"),
    Row(("head.token.embedding",), "vocab_projector.weight"),
    Row(("head.output_bias",), "vocab_projector.bias"),
)
SPAN, OUTPUT = linear("head.output", "qa_outputs"), linear("head.output", "classifier")
DENSE = (*linear("head.dense", "pre_classifier"), *OUTPUT)

POOLED = {"pool": "first", "dense": "relu"}
DROPOUT = {"seq_classif_dropout": 0.2}
LARGER = (r"^vocab_(transform|layer_norm|projector)\.",)

FAMILIES = {
    "distilbert": Family(
        model_type="distilbert",
        architectures={
            "DistilBertModel": Architecture(read, encoder_model, base=True, ignored=LARGER, uses=("embed",)),
            "DistilBertForMaskedLM": guesser(read, MASKED, uses=("fill",)),
            "DistilBertForSequenceClassification": classifier(
                read, encoder_classifier, DENSE, None, DROPOUT, ignored=LARGER, **POOLED, uses=("classify",)
            ),
            "DistilBertForTokenClassification": classifier(
                read, encoder_classifier, OUTPUT, None, {"dropout": 0.1}, ignored=LARGER, uses=("label",)
            ),
            "DistilBertForQuestionAnswering": classifier(
                read, encoder_span, SPAN, 2, {"qa_dropout": 0.1}, ignored=LARGER, uses=("span",)
            ),
            "DistilBertForMultipleChoice": classifier(
                read, multiple_choice, DENSE, 1, DROPOUT, ignored=LARGER, **POOLED, uses=("choose",)
            ),
        },
        table=TABLE,
        write=write,
        prefix="distilbert.",
        ignored=BUFFERS,
        copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    )
}
