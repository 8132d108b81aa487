"""mBART checkpoints (Liu et al. 2020), and mBART-50's: pre-norm BARTs, a norm at the end of either side."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.bart import ANSWERS, GENERATION, MODEL, SEQUENCE, TABLE, architectures
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Family
from flax_transformer.hub.seq2seq_side import ADDS, COPIES, END_NORMS, PRE_NORM, ROWS, SIZES
from flax_transformer.models.text.mbart import mbart_large_cc25
from flax_transformer.nn import with_fields

CONFIG = ConfigTable(
    with_fields(mbart_large_cc25(50_265), **SIZES),
    ROWS,
    only={
        **PRE_NORM, "normalize_embedding": True, "static_position_embeddings": False, "add_bias_logits": False
    },
    adds={**ADDS, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2},
)  # fmt: skip
read = CONFIG.read


def restored(inputs: Mapping[str, Any], fields: Fields) -> Mapping[str, Any]:
    """Give the decoder the source again, where nothing is to be decoded: its last token, of its language, first."""
    if "decoder_input_ids" in inputs:
        return inputs
    ids = inputs["input_ids"]
    on = jnp if isinstance(ids, jax.core.Tracer) else np
    ids = on.asarray(ids)
    last = (ids != fields.integer("pad_token_id", 1)).sum(-1) - 1
    first = on.take_along_axis(ids, last[..., None], axis=-1)
    return {**inputs, "decoder_input_ids": on.concatenate([first, ids[..., :-1]], axis=-1)}


FAMILIES = {
    "mbart": Family(
        model_type="mbart",
        architectures=architectures("MBart", read, (GENERATION, MODEL, SEQUENCE, ANSWERS), prepare=restored),
        table=(*TABLE, *END_NORMS),
        write=CONFIG.write,
        prefix="model.",
        ignored=(r"(^|\.)(encoder|decoder)\.version$",),
        copies=COPIES,
    )
}
