"""BERT checkpoints (Devlin et al. 2019)."""

from flax_transformer.hub.call import encoder_classifier, encoder_span, multiple_choice, pooled_encoder, pretraining
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier, decoder_lm, masked_lm
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, TensorRow, embedding, linear, norm, under
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.text.bert import bert_base_uncased

CONFIG = ConfigTable(
    bert_base_uncased().encoder,
    {
        "vocab_size": "vocab",
        "max_position_embeddings": "max_length",
        "type_vocab_size": "types",
        "hidden_size": "embed",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "inner",
        "hidden_act": "activation",
        "layer_norm_eps": ("norm_eps", "embedding.norm"),
        "initializer_range": "init_std",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
    },
    only={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
)
read = CONFIG.read


def attention(ours: str, theirs: str, inner: str = "self") -> Table:
    """Return the rows of attention and of the norm after it; `inner` is what they call its first three layers."""
    return (
        *linear(f"{ours}.query", f"{theirs}.{inner}.query"),
        *linear(f"{ours}.key", f"{theirs}.{inner}.key"),
        *linear(f"{ours}.value", f"{theirs}.{inner}.value"),
        *linear(f"{ours}.out", f"{theirs}.output.dense", inputs=2),
        *norm(f"{ours}_residual.norm", f"{theirs}.output.LayerNorm"),
    )


def blocks(
    ours: str, theirs: str, *, looks: str = "attention", up: str = "intermediate", down: str = "output"
) -> Table:
    """Return the rows of a trunk's blocks, of which they call the parts so."""
    return (
        *attention(f"{ours}.attention", f"{theirs}.{looks}"),
        *linear(f"{ours}.feedforward.up", f"{theirs}.{up}.dense"),
        *linear(f"{ours}.feedforward.down", f"{theirs}.{down}.dense"),
        *norm(f"{ours}.feedforward_residual.norm", f"{theirs}.{down}.LayerNorm"),
    )


TABLE = (
    *embedding("embedding.token", "embeddings.word_embeddings"),
    *embedding("embedding.position", "embeddings.position_embeddings"),
    *embedding("embedding.type", "embeddings.token_type_embeddings"),
    *norm("embedding.norm", "embeddings.LayerNorm"),
    *blocks("trunk.blocks", "encoder.layer.{}"),
)
CROSS = (
    *(
        row
        for part in ("query", "key", "value")
        for row in linear(f"trunk.blocks.cross.{part}", f"encoder.layer.{{}}.crossattention.self.{part}")
    ),
    *linear("trunk.blocks.cross.out", "encoder.layer.{}.crossattention.output.dense", inputs=2),
    *norm("trunk.blocks.cross_residual.norm", "encoder.layer.{}.crossattention.output.LayerNorm"),
)
"""Of blocks that attend to something else too."""
OUT = (
    *linear("dense", "transform.dense"),
    *norm("norm", "transform.LayerNorm"),
    TensorRow(("output_bias",), "bias"),
)
MASKED = (
    *under(OUT, "", "cls.predictions."),
    TensorRow(("head.token.embedding",), "cls.predictions.decoder.weight"),
    TensorRow(("head.output_bias",), "cls.predictions.decoder.bias"),
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
# Where it is tied that bias is the output layer's.
OTHERS = (r"^cls\.seq_relationship\.", r"^(bert\.)?pooler\.")

ARCHITECTURES = {
    "Model": classifier(
        read, pooled_encoder, linear("head.dense", "pooler.dense"), 0, base=True, ignored=LARGER, **POOLED,
        uses=("feature-extraction",),
    ),
    "ForPreTraining": masked_lm(
        read, (*MASKED, *linear("sentence.dense", "bert.pooler.dense"), *linear("sentence.output", SENTENCES)),
        pretraining, ignored=UNREAD, next_sentence=True, uses=("fill-mask", "next-sentence-prediction"),
    ),
    "LMHeadModel": decoder_lm(CONFIG, under(OUT, "", "cls.predictions."), ignored=OTHERS),
    "ForMaskedLM": masked_lm(read, MASKED, ignored=UNREAD, uses=("fill-mask",)),
    "ForNextSentencePrediction": classifier(
        read, encoder_classifier, (*POOLER, *linear("head.output", SENTENCES)), 2, ignored=LARGER, **POOLED,
        uses=("classification", "next-sentence-prediction"),
    ),
    "ForSequenceClassification": classifier(
        read, encoder_classifier, (*POOLER, *OUTPUT), dropout=DROPOUT, ignored=LARGER, **POOLED,
        uses=("classification",)
    ),
    "ForTokenClassification": classifier(
        read, encoder_classifier, OUTPUT, dropout=DROPOUT, ignored=LARGER, uses=("token-classification",)
    ),
    "ForQuestionAnswering": classifier(
        read, encoder_span, linear("head.output", "qa_outputs"), 2, ignored=LARGER, uses=("question-answering",)
    ),
    "ForMultipleChoice": classifier(
        read, multiple_choice, (*POOLER, *OUTPUT), 1, DROPOUT, ignored=LARGER, **POOLED, uses=("multiple-choice",)
    ),
}  # fmt: skip


def _token_vectors(fields: Fields) -> ClassifierConfig:
    return with_head(read(fields), outputs=fields.integer("dim", 128), bias=False)


COLBERT = Architecture(
    _token_vectors, encoder_classifier, linear("head.output", "linear")[:1], lambda cfg: {"dim": cfg.head.outputs},
    at="backbone.", ignored=LARGER, uses=("late-interaction",),
)  # fmt: skip
"""A vector for each token, compared one by one (Khattab & Zaharia 2020)."""


def _looks() -> Family:
    from flax_transformer.hub.text_decoder import looking

    return looking("bert", FAMILIES["bert"])


FAMILIES = {
    "bert": Family(
        model_type="bert",
        looks=_looks,
        architectures={
            **{f"Bert{name}": architecture for name, architecture in ARCHITECTURES.items()},
            "HF_ColBERT": COLBERT,
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="bert.",
        ignored=BUFFERS,
        renamed=RENAMED,
        copies={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    )
}
