"""DistilBERT checkpoints (Sanh et al. 2019)."""

from flax_transformer.hub.call import encoder_classifier, encoder_model, encoder_span, multiple_choice
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.bert import BUFFERS
from flax_transformer.hub.head import classifier, masked_lm
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import TensorRow, embedding, linear, norm
from flax_transformer.models.text.distilbert import distilbert_base_uncased

CONFIG = ConfigTable(
    distilbert_base_uncased().encoder,
    {
        "vocab_size": "vocab",
        "max_position_embeddings": "max_length",
        "dim": "embed",
        "n_layers": "depth",
        "n_heads": "heads",
        "hidden_dim": "inner",
        "activation": "activation",
        "initializer_range": "init_std",
        "dropout": ("feedforward_residual.dropout", "embedding.dropout"),
        "attention_dropout": "attention_dropout",
    },
)
"""Sinusoidal positions are in the checkpoint, a table like any other."""
read = CONFIG.read

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
    TensorRow(("output_bias",), "vocab_projector.bias"),
    TensorRow(("head.token.embedding",), "vocab_projector.weight"),
    TensorRow(("head.output_bias",), "vocab_projector.bias"),
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
            "DistilBertModel": Architecture(
                read, encoder_model, base=True, ignored=LARGER, uses=("feature-extraction",)
            ),
            "DistilBertForMaskedLM": masked_lm(read, MASKED, uses=("fill-mask",)),
            "DistilBertForSequenceClassification": classifier(
                read, encoder_classifier, DENSE, None, DROPOUT, ignored=LARGER, **POOLED, uses=("classification",)
            ),
            "DistilBertForTokenClassification": classifier(
                read, encoder_classifier, OUTPUT, None, {"dropout": 0.1}, ignored=LARGER, uses=("token-classification",)
            ),
            "DistilBertForQuestionAnswering": classifier(
                read, encoder_span, SPAN, 2, {"qa_dropout": 0.1}, ignored=LARGER, uses=("question-answering",)
            ),
            "DistilBertForMultipleChoice": classifier(
                read, multiple_choice, DENSE, 1, DROPOUT, ignored=LARGER, **POOLED, uses=("multiple-choice",)
            ),
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="distilbert.",
        ignored=BUFFERS,
        copies={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    )
}
