"""Qwen3-MoE checkpoints (Qwen Team 2025): Qwen3's but for the experts, of which each has tensors of its own."""

from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.llama import ATTENDING, BIASES, LAYER, ROWS, decoder_family, heads_of, said_window
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.table import linear
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.qwen3_moe import qwen3_30b_a3b
from flax_transformer.nn import with_fields


def _reads(fields: Fields) -> dict[str, Any]:
    dense, step = fields.get("mlp_only_layers") or [], fields.integer("decoder_sparse_step", 1)
    if dense or step != 1:
        raise ValueError(
            f"config.json has decoder_sparse_step={step}, mlp_only_layers={dense!r}; supported are experts in all "
            "layers"
        )
    experts = "num_experts" if "num_experts" in fields else "num_local_experts"
    used = fields.flag("use_sliding_window", False)
    return {
        **heads_of(Fields.of({"num_key_value_heads": 4, **fields})),
        "experts": fields.integer(experts, 128),
        "normalized": fields.flag("norm_topk_prob", False),
        "qk_norm": fields.number("rms_norm_eps"),
        "window": Fields.of({"sliding_window": 4096, **fields}).integer("sliding_window", None) if used else None,
    }


def _writes(config: CausalConfig) -> dict[str, Any]:
    experts = config.block.feedforward
    return {
        **said_window(config),
        "use_sliding_window": config.window is not None,
        "num_experts": experts.experts,
        "norm_topk_prob": experts.normalized,
    }


SIZES = {"depth": 24, "max_length": 32_768, "base": 10_000.0}
HERE = {name: ours for name, ours in ROWS.items() if name != "intermediate_size"}
CONFIG = ConfigTable(
    with_fields(qwen3_30b_a3b(), **SIZES),
    {**HERE, **BIASES, "moe_intermediate_size": "inner", "num_experts_per_tok": "active"},
    reads=_reads, writes=_writes,
)  # fmt: skip
EACH = LAYER + "mlp.experts.{}."
TABLE = (
    *ATTENDING,
    *linear("trunk.blocks.feedforward.router", LAYER + "mlp.gate"),
    *linear("trunk.blocks.feedforward.experts.gate", EACH + "gate_proj"),
    *linear("trunk.blocks.feedforward.experts.up", EACH + "up_proj"),
    *linear("trunk.blocks.feedforward.experts.down", EACH + "down_proj"),
)
FAMILIES = {"qwen3_moe": decoder_family("qwen3_moe", "Qwen3Moe", "transformer.", CONFIG, TABLE)}
