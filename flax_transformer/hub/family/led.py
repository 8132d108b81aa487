"""LED checkpoints (Beltagy et al. 2020): BARTs whose encoder is a Longformer's."""

from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.bart import ANSWERS, GENERATION, MODEL, TABLE, architectures
from flax_transformer.hub.family.longformer import read_windows, with_global_positions, write_windows
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import LONG_TEXT_TO_TEXT
from flax_transformer.hub.registration import Family
from flax_transformer.hub.seq2seq_side import ADDS, ONLY, ROWS, SIZES, copies
from flax_transformer.hub.table import Table, linear
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.led import led_large_16384
from flax_transformer.nn import with_fields


def _reads(fields: Fields) -> dict[str, Any]:
    return {"windows": read_windows(fields, "encoder_layers")}


def _writes(config: Seq2SeqConfig) -> dict[str, Any]:
    return {"attention_window": write_windows(config.encoder)}


LENGTHS = {
    "max_encoder_position_embeddings": "source_embedding.max_length",
    "max_decoder_position_embeddings": "embedding.max_length",
}
SIZED = {name: size for name, size in SIZES.items() if name not in ("max_length", "scaled")}
CONFIG = ConfigTable(
    with_fields(led_large_16384(), windows=(512,), **SIZED),
    {name: row for name, row in ROWS.items() if name not in ("max_position_embeddings", "scale_embedding")} | LENGTHS,
    only={**ONLY, "scale_embedding": False},
    adds={**ADDS, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2},
    reads=_reads,
    writes=_writes,
)
read = CONFIG.read


def _attention() -> Table:
    ours, theirs = "encoder.blocks.attention", "encoder.layers.{}.self_attn"
    rows = linear(f"{ours}.out", f"{theirs}.output", inputs=2)
    for part in ("query", "key", "value"):
        rows += linear(f"{ours}.{part}", f"{theirs}.longformer_self_attn.{part}")
        rows += linear(f"{ours}.everywhere.{part}", f"{theirs}.longformer_self_attn.{part}_global")
    return rows


FAMILIES = {
    "led": Family(
        model_type="led",
        architectures=architectures(
            "LED", read, (GENERATION, MODEL, ANSWERS), inputs=LONG_TEXT_TO_TEXT, prepare=with_global_positions,
        ),
        table=(
            *(row for row in TABLE if not row.theirs.startswith("encoder.layers.{}.self_attn.")),
            *_attention(),
        ),
        write=CONFIG.write,
        prefix="led.",
        ignored=(r"(^|\.)(encoder|decoder)\.version$",),
        copies=copies("led."),
    )
}  # fmt: skip
