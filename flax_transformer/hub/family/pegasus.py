"""PEGASUS checkpoints (Zhang et al. 2020): BART's names, Marian's positions, and a norm at the end of either side."""

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.bart import GENERATION, MODEL, architectures
from flax_transformer.hub.registration import Family
from flax_transformer.hub.seq2seq_side import ADDS, COPIES, END_NORMS, PRE_NORM, ROWS, SIDES, SIZES
from flax_transformer.hub.table import embedding
from flax_transformer.models.text.pegasus import pegasus_large
from flax_transformer.nn import with_fields

CONFIG = ConfigTable(
    with_fields(pegasus_large(50_265), **SIZES),
    ROWS,
    only={**PRE_NORM, "normalize_embedding": False, "static_position_embeddings": True},
    adds={**ADDS, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0},
)
read = CONFIG.read

FAMILIES = {
    "pegasus": Family(
        model_type="pegasus",
        architectures=architectures("Pegasus", read, (GENERATION, MODEL)),
        table=(*embedding("embedding.token", "shared"), *SIDES, *END_NORMS),
        write=CONFIG.write,
        prefix="model.",
        ignored=(r"(^|\.)(encoder|decoder)\.embed_positions\.weight$",),
        copies=COPIES,
    )
}
