"""Nyströmformer checkpoints (Xiong et al. 2021): BERTs that attend through landmarks, or exactly, and convolve."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.call import encoder_classifier, encoder_model, encoder_span, multiple_choice
from flax_transformer.hub.family import bert, roberta
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.head import classifier, masked_lm
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Kernel, TensorRow, linear
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import ClassifierConfig, with_head
from flax_transformer.models.text.nystromformer import nystromformer_512
from flax_transformer.ops import attention
from flax_transformer.ops.attention.nystrom import NystromAttention


def _reads(fields: Fields) -> dict[str, Any]:
    """Read how it attends: exactly, where texts are as long as there are landmarks."""
    landmarks, length = fields.integer("num_landmarks", 64), fields.integer("segment_means_seq_len", 64)
    exact = landmarks == length
    if not exact and (landmarks < 1 or length % landmarks):
        raise ValueError(
            f"num_landmarks must divide segment_means_seq_len, got {landmarks} landmarks, {length} positions"
        )
    return {
        "attention.attend": attention if exact else NystromAttention(landmarks=landmarks, start="batch"),
        "attention.window": None
        if fields.get("conv_kernel_size", 65) is None
        else fields.integer("conv_kernel_size", 65),
    }


def _writes(config: EncoderConfig) -> dict[str, Any]:
    layer, most = config.block.attention, config.embedding.max_length
    landmarks = getattr(layer.attend, "landmarks", 64)
    # With landmarks, the longest text that they divide; any that is longer than they are many says that there are some.
    longest = max(most - most % landmarks, 2 * landmarks)
    length = longest if isinstance(layer.attend, NystromAttention) else landmarks
    return {"num_landmarks": landmarks, "segment_means_seq_len": length, "conv_kernel_size": layer.window}


CONFIG = replace(
    bert.CONFIG,
    like=nystromformer_512().encoder,
    # Published models drop no attention weights, whatever this field says.
    rows={name: row for name, row in bert.CONFIG.rows.items() if name != "attention_probs_dropout_prob"},
    only={"add_cross_attention": False, "inv_coeff_init_option": False},
    reads=_reads,
    writes=_writes,
)
read = CONFIG.read
DROPOUT = {"hidden_dropout_prob": 0.1}


def _sequence(fields: Fields) -> ClassifierConfig:
    """Read the head that classifies, whose dense layer has the activation of the blocks."""
    rate, dense = fields.number("hidden_dropout_prob", 0.1), fields.activation("hidden_act", "gelu_new")
    return with_head(read(fields), outputs=fields.labels, pool="first", dense=dense, dropout=rate, dropout_first=True)


TABLE = (
    *bert.TABLE,
    TensorRow(("trunk.blocks.attention.residual.kernel",), "encoder.layer.{}.attention.self.conv.weight", Kernel(1)),
)
CHOICES = (*linear("head.dense", "pre_classifier"), *bert.OUTPUT)
LARGER = (r"^cls\.",)

ARCHITECTURES = {
    "Model": Architecture(read, encoder_model, base=True, ignored=LARGER, uses=("feature-extraction",)),
    "ForMaskedLM": masked_lm(read, bert.MASKED, ignored=(r"^cls\.predictions\.bias$",), uses=("fill-mask",)),
    "ForSequenceClassification": Architecture(
        _sequence, encoder_classifier, roberta.SEQUENCE, at="backbone.", ignored=LARGER, uses=("classification",)
    ),
    "ForTokenClassification": classifier(
        read, encoder_classifier, bert.OUTPUT, None, DROPOUT, ignored=LARGER, uses=("token-classification",)
    ),
    "ForQuestionAnswering": classifier(
        read, encoder_span, linear("head.output", "qa_outputs"), 2, ignored=LARGER, uses=("question-answering",)
    ),
    "ForMultipleChoice": classifier(
        read, multiple_choice, CHOICES, 1, ignored=LARGER, pool="first", dense="relu", uses=("multiple-choice",)
    ),
}

FAMILIES = {
    "nystromformer": Family(
        model_type="nystromformer",
        architectures={f"Nystromformer{name}": architecture for name, architecture in ARCHITECTURES.items()},
        table=TABLE,
        write=CONFIG.write,
        prefix="nystromformer.",
        ignored=bert.BUFFERS,
        renamed=bert.RENAMED,
        copies={
            "cls.predictions.decoder.weight": "nystromformer.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    )
}
