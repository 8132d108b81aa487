"""M2M-100 checkpoints (Fan et al. 2021), and NLLB's: pre-norm, positions that do not count padding."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.bart import GENERATION, MODEL, architectures
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Family
from flax_transformer.hub.seq2seq_side import ADDS, COPIES, END_NORMS, PRE_NORM, ROWS, SIDES, SIZES
from flax_transformer.hub.table import embedding
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.m2m_100 import m2m100_418m
from flax_transformer.nn import with_fields


def _reads(fields: Fields) -> dict[str, int]:
    """Read where positions begin: after that of padding, which is the number of its token."""
    return {"embedding.offset": fields.integer("pad_token_id", 1) + 1}


def _writes(config: Seq2SeqConfig) -> dict[str, int]:
    return {"pad_token_id": config.embedding.offset - 1}


DROPPED = "encoder_layerdrop", "decoder_layerdrop"
SIZED = {**SIZES, "activation": "relu", "scaled": True, "attention_dropout": 0.1, "output_bias": False}
CONFIG = ConfigTable(
    with_fields(m2m100_418m(), **SIZED),
    {name: row for name, row in ROWS.items() if name != "output_bias"}
    | {name: f"{name.partition('_')[0]}.layer_drop" for name in DROPPED},
    only={name: value for name, value in PRE_NORM.items() if name not in DROPPED},
    adds={**ADDS, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    reads=_reads,
    writes=_writes,
)
read = CONFIG.read


def counted(inputs: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Find the positions of what either side reads: they count the tokens that are not padding."""
    pad, found = fields.integer("pad_token_id", 1), dict(inputs)
    for ids, positions in (("input_ids", "position_ids"), ("decoder_input_ids", "decoder_position_ids")):
        if ids in inputs:
            on = jnp if isinstance(inputs[ids], jax.core.Tracer) else np
            real = (on.asarray(inputs[ids]) != pad).astype(np.int32)
            found[positions] = on.cumsum(real, axis=-1, dtype=np.int32) * real - 1
    return found


FAMILIES = {
    "m2m_100": Family(
        model_type="m2m_100",
        architectures=architectures("M2M100", read, (GENERATION, MODEL), prepare=counted),
        table=(*embedding("embedding.token", "shared"), *SIDES, *END_NORMS),
        write=CONFIG.write,
        prefix="model.",
        ignored=(r"(^|\.)(encoder|decoder)\.(version|embed_positions\.weights?)$",),
        copies=COPIES,
    )
}
