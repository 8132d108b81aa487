"""Phi-3 checkpoints (Abdin et al. 2024), and those of Phi-3.5 and Phi-4, which are of its kind."""

from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.llama import LAYER, PARTS, ROWS, attending, decoder_family
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.rotary import ORIGINAL, read_rotary, write_rotary
from flax_transformer.hub.table import linear
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.phi3 import phi3_mini_4k
from flax_transformer.nn import Rotary, with_fields
from flax_transformer.ops import LongScaling, rotary_frequencies

OLD = "su", "yarn"
"""What LongRoPE was called in the first files of this family."""


def _reads(fields: Fields) -> dict[str, Any]:
    heads = fields.integer("num_attention_heads")
    width = fields.integer("head_dim", None) or fields.integer("hidden_size") // max(heads, 1)
    return {
        "kv_heads": fields.integer("num_key_value_heads", None) or heads,
        "head_width": width,
        "rotary": _rotary(fields, width),
        "window": fields.integer("sliding_window", None),
    }


def _rotary(fields: Fields, width: int) -> Rotary:
    for name in ("rope_scaling", "rope_parameters"):
        given = fields.get(name)
        if isinstance(given, dict) and given.get("rope_type", given.get("type")) in OLD:
            fields = fields.updated({name: {**given, "rope_type": "longrope"}})
    found = read_rotary(Fields.of({ORIGINAL: 4096, **fields}), partial_of=width)
    if found.frequencies is not rotary_frequencies and not isinstance(found.frequencies, LongScaling):
        raise ValueError(f"config.json must have the rope type default or longrope, it has {found.frequencies}")
    return found


def _writes(config: CausalConfig) -> dict[str, Any]:
    mixing = config.block.attention
    if isinstance(config.window, tuple):
        raise ValueError(f"config.json has one window for all layers, got {config.window}")
    made = mixing.rotary.frequencies
    return {
        "num_key_value_heads": mixing.resolved_kv_heads,
        "head_dim": mixing.width,
        "sliding_window": config.window,
        ORIGINAL: made.original_length if isinstance(made, LongScaling) else 4096,
        **write_rotary(mixing.rotary, partial_of=mixing.width),
    }


CONFIG = ConfigTable(
    with_fields(phi3_mini_4k(), window=None),
    {**ROWS, "resid_pdrop": "residual.dropout", "embd_pdrop": "embedding.dropout"},
    {"attention_bias": False}, reads=_reads, writes=_writes,
)  # fmt: skip
FEEDFORWARD = "trunk.blocks.feedforward."
TABLE = (
    *attending(projections=linear(tuple(PARTS.values()), LAYER + "self_attn.qkv_proj")),
    *linear((FEEDFORWARD + "gate", FEEDFORWARD + "up"), LAYER + "mlp.gate_up_proj"),
    *linear(FEEDFORWARD + "down", LAYER + "mlp.down_proj"),
)
FAMILIES = {
    "phi3": decoder_family(
        "phi3", "Phi3", "model.", CONFIG, TABLE,
        classes=("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification"),
    )
}  # fmt: skip
