"""DistilBERT checkpoints (Sanh et al. 2019)."""

from typing import Any

from flax_transformer.hub.call import encoder_classifier, encoder_model, encoder_span, multiple_choice
from flax_transformer.hub.family.bert import BUFFERS
from flax_transformer.hub.fields import SPELLING, Fields
from flax_transformer.hub.head import classifier, guesser
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Row, embedding, linear, norm
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.nn import BlockConfig, EmbeddingConfig

EPS = 1e-12
"""Of every norm; config.json has no field for it."""


def read(fields: Fields) -> EncoderConfig:
    """Make our config of config.json's fields; sinusoidal positions are in the checkpoint, a table like any other."""
    embed = fields.integer("dim", 768)
    std, dropout = fields.number("initializer_range", 0.02), fields.number("dropout", 0.1)
    return EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=fields.integer("vocab_size", 30522), embed=embed, position="learned", scaled=False, norm=True,
            max_length=fields.integer("max_position_embeddings", 512), norm_eps=EPS, dropout=dropout, init_std=std,
        ),
        block=BlockConfig(
            embed=embed, heads=fields.integer("n_heads", 12), hidden=fields.integer("hidden_dim", 3072), norm_eps=EPS,
            activation=fields.activation("activation", "gelu"), dropout=dropout, out_dropout=0.0,
            attention_dropout=fields.number("attention_dropout", 0.1), init_std=std,
        ),
        depth=fields.integer("n_layers", 6),
    )  # fmt: skip


def write(config: EncoderConfig) -> dict[str, Any]:
    """Make config.json's fields of our config.

    Raises:
      ValueError: when the norms' epsilon is not DistilBERT's, since no field says it.
    """
    if (config.embedding.norm_eps, config.block.norm_eps) != (EPS, EPS):
        raise ValueError(
            f"DistilBERT's norms have an epsilon of {EPS}, got {config.embedding.norm_eps} and {config.block.norm_eps}"
        )
    return {
        "vocab_size": config.embedding.vocab,
        "max_position_embeddings": config.embedding.max_length,
        "dim": config.block.embed,
        "n_layers": config.depth,
        "n_heads": config.block.heads,
        "hidden_dim": config.block.hidden,
        "activation": SPELLING[config.block.activation],
        "initializer_range": 0.02 if config.block.init_std is None else config.block.init_std,
        "dropout": config.block.dropout,
        "attention_dropout": config.block.attention_dropout,
    }


TABLE = (
    *embedding("embedding.token", "embeddings.word_embeddings"),
    *embedding("embedding.position", "embeddings.position_embeddings"),
    *norm("embedding.norm", "embeddings.LayerNorm"),
    *linear("blocks.attention.query", "transformer.layer.{}.attention.q_lin"),
    *linear("blocks.attention.key", "transformer.layer.{}.attention.k_lin"),
    *linear("blocks.attention.value", "transformer.layer.{}.attention.v_lin"),
    *linear("blocks.attention.out", "transformer.layer.{}.attention.out_lin", inputs=2),
    *norm("blocks.attention_norm", "transformer.layer.{}.sa_layer_norm"),
    *linear("blocks.feedforward.up", "transformer.layer.{}.ffn.lin1"),
    *linear("blocks.feedforward.down", "transformer.layer.{}.ffn.lin2"),
    *norm("blocks.feedforward_norm", "transformer.layer.{}.output_layer_norm"),
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
