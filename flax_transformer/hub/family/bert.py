"""BERT checkpoints (Devlin et al. 2019)."""

from typing import Any

from flax_transformer.hub.call import encoder_classifier, encoder_span, multiple_choice, pooled_encoder, pretraining
from flax_transformer.hub.fields import Fields, spelled
from flax_transformer.hub.head import classifier, guesser
from flax_transformer.hub.registration import Family
from flax_transformer.hub.table import Row, embedding, linear, norm
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.nn import EmbeddingConfig, transformer_block


def read(fields: Fields) -> EncoderConfig:
    """Make our config of config.json's fields."""
    fields.only(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    embed = fields.integer("hidden_size", 768)
    std, eps = fields.number("initializer_range", 0.02), fields.number("layer_norm_eps", 1e-12)
    dropout = fields.number("hidden_dropout_prob", 0.1)
    return EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=fields.integer("vocab_size", 30522), embed=embed, position="learned", scaled=False, norm=True,
            max_length=fields.integer("max_position_embeddings", 512), types=fields.integer("type_vocab_size", 2),
            norm_eps=eps, dropout=dropout, init_std=std,
        ),
        block=transformer_block(
            embed=embed, heads=fields.integer("num_attention_heads", 12), init_std=std,
            inner=fields.integer("intermediate_size", 3072), norm_eps=eps, dropout=dropout,
            activation=fields.activation("hidden_act", "gelu"),
            attention_dropout=fields.number("attention_probs_dropout_prob", 0.1),
        ),
        depth=fields.integer("num_hidden_layers", 12),
    )  # fmt: skip


def write(config: EncoderConfig) -> dict[str, Any]:
    """Make config.json's fields of our config."""
    return {
        "vocab_size": config.embedding.vocab,
        "max_position_embeddings": config.embedding.max_length,
        "type_vocab_size": config.embedding.types,
        "hidden_size": config.block.embed,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.block.attention.heads,
        "intermediate_size": config.block.feedforward.inner,
        "hidden_act": spelled(config.block.feedforward.activation),
        "layer_norm_eps": config.block.residual.norm_eps,
        "initializer_range": 0.02 if config.block.attention.init_std is None else config.block.attention.init_std,
        "hidden_dropout_prob": config.block.residual.dropout,
        "attention_probs_dropout_prob": config.block.attention.attention_dropout,
    }


TABLE = (
    *embedding("embedding.token", "embeddings.word_embeddings"),
    *embedding("embedding.position", "embeddings.position_embeddings"),
    *embedding("embedding.type", "embeddings.token_type_embeddings"),
    *norm("embedding.norm", "embeddings.LayerNorm"),
    *linear("trunk.blocks.attention.query", "encoder.layer.{}.attention.self.query"),
    *linear("trunk.blocks.attention.key", "encoder.layer.{}.attention.self.key"),
    *linear("trunk.blocks.attention.value", "encoder.layer.{}.attention.self.value"),
    *linear("trunk.blocks.attention.out", "encoder.layer.{}.attention.output.dense", inputs=2),
    *norm("trunk.blocks.attention_residual.norm", "encoder.layer.{}.attention.output.LayerNorm"),
    *linear("trunk.blocks.feedforward.up", "encoder.layer.{}.intermediate.dense"),
    *linear("trunk.blocks.feedforward.down", "encoder.layer.{}.output.dense"),
    *norm("trunk.blocks.feedforward_residual.norm", "encoder.layer.{}.output.LayerNorm"),
)
MASKED = (
    *linear("dense", "cls.predictions.transform.dense"),
    *norm("norm", "cls.predictions.transform.LayerNorm"),
    Row(("output_bias",), "cls.predictions.bias"),
    Row(("head.token.embedding",), "cls.predictions.decoder.weight"),
    Row(("head.output_bias",), "cls.predictions.decoder.bias"),
)
POOLER = linear("head.dense", "bert.pooler.dense")
OUTPUT = linear("head.output", "classifier")
SENTENCES = "cls.seq_relationship"

POOLED = {"pool": "first", "dense": "tanh"}
DROPOUT = {"classifier_dropout": None, "hidden_dropout_prob": 0.1}
BUFFERS = (r"(^|\.)embeddings\.(position_ids|token_type_ids)$",)
RENAMED = {r"\.LayerNorm\.gamma$": ".LayerNorm.weight", r"\.LayerNorm\.beta$": ".LayerNorm.bias"}
LARGER = (r"^cls\.", r"^(bert\.)?pooler\.")
# With an untied output layer there is a bias cls.predictions.bias too, which nothing reads.
UNREAD = (r"^cls\.(seq_relationship\.|predictions\.bias$)", r"^(bert\.)?pooler\.")

ARCHITECTURES = {
    "Model": classifier(
        read, pooled_encoder, linear("head.dense", "pooler.dense"), 0, base=True, ignored=LARGER, **POOLED,
        uses=("embed",),
    ),
    "ForPreTraining": guesser(
        read, (*MASKED, *linear("sentence.dense", "bert.pooler.dense"), *linear("sentence.output", SENTENCES)),
        pretraining, ignored=UNREAD, next_sentence=True, uses=("fill", "follow"),
    ),
    "ForMaskedLM": guesser(read, MASKED, ignored=UNREAD, uses=("fill",)),
    "ForNextSentencePrediction": classifier(
        read, encoder_classifier, (*POOLER, *linear("head.output", SENTENCES)), 2, ignored=LARGER, **POOLED,
        uses=("classify", "follow"),
    ),
    "ForSequenceClassification": classifier(
        read, encoder_classifier, (*POOLER, *OUTPUT), dropout=DROPOUT, ignored=LARGER, **POOLED, uses=("classify",)
    ),
    "ForTokenClassification": classifier(
        read, encoder_classifier, OUTPUT, dropout=DROPOUT, ignored=LARGER, uses=("label",)
    ),
    "ForQuestionAnswering": classifier(
        read, encoder_span, linear("head.output", "qa_outputs"), 2, ignored=LARGER, uses=("span",)
    ),
    "ForMultipleChoice": classifier(
        read, multiple_choice, (*POOLER, *OUTPUT), 1, DROPOUT, ignored=LARGER, **POOLED, uses=("choose",)
    ),
}  # fmt: skip

FAMILIES = {
    "bert": Family(
        model_type="bert",
        architectures={f"Bert{name}": architecture for name, architecture in ARCHITECTURES.items()},
        table=TABLE,
        write=write,
        prefix="bert.",
        ignored=BUFFERS,
        renamed=RENAMED,
        copies={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    )
}
