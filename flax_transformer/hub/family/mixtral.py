"""Mixtral checkpoints (Jiang et al. 2024): Mistral's but for the experts, of which each has tensors of its own."""

from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.llama import ATTENDING, LAYER, ROWS, decoder_family, heads_of, said_window
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.table import linear
from flax_transformer.models.text.mixtral import mixtral_8x7b
from flax_transformer.nn import with_fields


def _read(fields: Fields) -> dict[str, Any]:
    return {
        **heads_of(Fields.of({"num_key_value_heads": 8, **fields})),
        "window": fields.integer("sliding_window", None),
    }


CONFIG = ConfigTable(
    with_fields(mixtral_8x7b(), max_length=131_072),
    {
        **ROWS, "num_local_experts": "experts", "num_experts_per_tok": "active", "router_jitter_noise": "jitter",
    },
    reads=_read, writes=said_window,
)  # fmt: skip
EXPERTS = LAYER + "block_sparse_moe."
EACH = EXPERTS + "experts.{}."
TABLE = (
    *ATTENDING,
    *linear("trunk.blocks.feedforward.router", EXPERTS + "gate"),
    *linear("trunk.blocks.feedforward.experts.gate", EACH + "w1"),
    *linear("trunk.blocks.feedforward.experts.down", EACH + "w2"),
    *linear("trunk.blocks.feedforward.experts.up", EACH + "w3"),
)
FAMILIES = {"mixtral": decoder_family("mixtral", "Mixtral", "model.", CONFIG, TABLE)}
