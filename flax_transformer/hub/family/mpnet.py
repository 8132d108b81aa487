"""MPNet checkpoints (Song et al. 2020), as those that sentences are embedded with."""

from dataclasses import replace

from flax_transformer.hub.call import encoder_classifier, encoder_lm, encoder_span, multiple_choice, pooled_encoder
from flax_transformer.hub.family import bert, roberta
from flax_transformer.hub.head import classifier, masked_lm
from flax_transformer.hub.inputs import TEXT, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import Table, embedding, linear, norm
from flax_transformer.models.text.mpnet import mpnet_base
from flax_transformer.nn import with_fields

SAID = ("max_position_embeddings", "type_vocab_size")
BASE = with_fields(mpnet_base().encoder, norm_eps=1e-12)
CONFIG = replace(
    roberta.CONFIGS["roberta"],
    like=replace(BASE, embedding=replace(BASE.embedding, norm=1e-12)),
    rows={name: row for name, row in bert.CONFIG.rows.items() if name not in SAID},
    # transformers sorts distances into 32 buckets, and counts what is not token 1, whatever config.json says.
    only={**bert.CONFIG.only, "relative_attention_num_buckets": 32, "pad_token_id": 1},
    adds={"relative_attention_num_buckets": 32, "bos_token_id": 0, "eos_token_id": 2},
)
read = CONFIG.read


def _attention(ours: str, theirs: str) -> Table:
    rows = norm(f"{ours}_residual.norm", f"{theirs}.LayerNorm")
    for part in ("query", "key", "value"):
        rows += linear(f"{ours}.{part}", f"{theirs}.attn.{part[0]}")
    return rows + linear(f"{ours}.out", f"{theirs}.attn.o", inputs=2)


TABLE = (
    *(row for row in bert.TABLE if ".attention." not in row.theirs),
    *_attention("trunk.blocks.attention", "encoder.layer.{}.attention"),
    *embedding("trunk.relative.bucket", "encoder.relative_attention_bias"),
)
CHOICES = (*linear("head.dense", "mpnet.pooler.dense"), *roberta.OUTPUT)
UNTYPED = Signature(TEXT.needs, tuple(name for name in TEXT.takes if name != "token_type_ids"))
LARGER = (r"^lm_head\.", r"^(mpnet\.)?pooler\.")
UNREAD = (r"^lm_head\.bias$", r"^(mpnet\.)?pooler\.")
DROPOUT = {"hidden_dropout_prob": 0.1}


def _untyped(architecture: Architecture) -> Architecture:
    return replace(architecture, inputs=UNTYPED)


ARCHITECTURES = {
    "Model": classifier(
        read, roberta._counted(pooled_encoder), linear("head.dense", "pooler.dense"), 0, base=True, ignored=LARGER,
        **bert.POOLED, uses=("feature-extraction",),
    ),
    "ForMaskedLM": masked_lm(
        read, roberta.MASKED, roberta._counted(encoder_lm), ignored=UNREAD, activation="gelu", uses=("fill-mask",)
    ),
    "ForSequenceClassification": classifier(
        read, roberta._counted(encoder_classifier), roberta.SEQUENCE, None, DROPOUT, ignored=LARGER,
        dropout_first=True, **bert.POOLED, uses=("classification",),
    ),
    "ForTokenClassification": classifier(
        read, roberta._counted(encoder_classifier), roberta.OUTPUT, None, DROPOUT, ignored=LARGER,
        uses=("token-classification",),
    ),
    "ForQuestionAnswering": classifier(
        read, roberta._counted(encoder_span), linear("head.output", "qa_outputs"), 2, ignored=LARGER,
        uses=("question-answering",),
    ),
    "ForMultipleChoice": classifier(
        read, roberta._counted(multiple_choice), CHOICES, 1, DROPOUT, ignored=LARGER, **bert.POOLED,
        uses=("multiple-choice",),
    ),
}  # fmt: skip

FAMILIES = {
    "mpnet": Family(
        model_type="mpnet",
        architectures={f"MPNet{name}": _untyped(each) for name, each in ARCHITECTURES.items()},
        table=TABLE,
        write=CONFIG.write,
        prefix="mpnet.",
        ignored=bert.BUFFERS,
        renamed=bert.RENAMED,
        copies={
            "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
    )
}
