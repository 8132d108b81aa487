"""Gemma checkpoints (Gemma Team 2024, 2025): Gemma 2, and the text models of Gemma 3."""

from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.llama import BIASES, GATED, LAYER, ROWS, attending, decoder_family, heads_of
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.layer_types import (
    FULL,
    SLIDING,
    Window,
    depth_of,
    read_two_rotaries,
    read_window,
    write_two_rotaries,
    write_window,
)
from flax_transformer.hub.rotary import write_rotary
from flax_transformer.hub.table import norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.gemma import gemma2_2b, gemma3_4b
from flax_transformer.nn import with_fields
from flax_transformer.ops import CappedAttention, attention

BASES = "rope_theta", "rope_local_base_freq"


def _common(fields: Fields) -> dict[str, Any]:
    """Read what is not one to one, but for windows and rotary positions."""
    if fields.get("use_bidirectional_attention"):
        raise ValueError("config.json has use_bidirectional_attention, of which only false is supported")
    scalar = fields.number("query_pre_attn_scalar", 256)
    if not scalar > 0:
        raise ValueError(f"config.json must give query_pre_attn_scalar above 0, it is {scalar}")
    return {
        "attention.kv_heads": fields.integer("num_key_value_heads", 4),
        "attention.head_width": fields.integer("head_dim", 256),
        "attention.scale": float(scalar) ** -0.5,
        "logit_cap": _cap(fields, "final_logit_softcapping"),
    }


def _window(fields: Fields, usual: list[str]) -> Window:
    window = Fields.of({"sliding_window": 4096, **fields}).integer("sliding_window", None)
    return read_window(fields, window, usual)


def _cap(fields: Fields, name: str) -> float | None:
    value = fields.number(name, None)
    return None if value is None else float(value)


def _gemma2(fields: Fields) -> dict[str, Any]:
    fields = Fields.of({"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, **fields})
    cap, depth = _cap(fields, "attn_logit_softcapping"), depth_of(fields)
    return {
        **_common(fields),
        "rotary": heads_of(fields)["rotary"],
        "attention.attend": attention if cap is None else CappedAttention(cap=cap),
        "window": _window(fields, [FULL if i % 2 else SLIDING for i in range(depth)]),
    }


def _gemma3(fields: Fields) -> dict[str, Any]:
    every = fields.integer("sliding_window_pattern", 6)
    kinds = [SLIDING if (i + 1) % max(every, 1) else FULL for i in range(depth_of(fields))]
    return {
        **_common(fields),
        "qk_norm": fields.number("rms_norm_eps"),
        "rotary": read_two_rotaries(fields, full=1_000_000.0, sliding=10_000.0, names=BASES),
        "window": _window(fields, kinds),
    }


def _said(config: CausalConfig) -> dict[str, Any]:
    """Write what both have; transformers wants a window also where no layer has one."""
    mixing = config.block.attention.resolved()
    scalar, window = round(mixing.scale**-2, 6), write_window(config.windows, config.depth)
    return {
        "num_key_value_heads": mixing.kv_heads,
        "head_dim": mixing.head_width,
        "query_pre_attn_scalar": int(scalar) if scalar == int(scalar) else scalar,
        "final_logit_softcapping": config.logit_cap,
        **window,
        **({"sliding_window": 4096} if window["sliding_window"] is None else {}),
    }


def _said_gemma2(config: CausalConfig) -> dict[str, Any]:
    attend = config.block.attention.attend
    cap = attend.cap if isinstance(attend, CappedAttention) else None
    return {**_said(config), **write_rotary(config.block.attention.rotary), "attn_logit_softcapping": cap}


def _said_gemma3(config: CausalConfig) -> dict[str, Any]:
    return {**_said(config), **write_two_rotaries(config.block.attention.rotary, BASES)}


GEMMA = {name: ours for name, ours in ROWS.items() if name != "hidden_act"} | {"hidden_activation": "activation"}
CONFIGS = {
    "gemma2": ConfigTable(gemma2_2b(), {**GEMMA, **BIASES}, reads=_gemma2, writes=_said_gemma2),
    "gemma3_text": ConfigTable(
        with_fields(gemma3_4b(), embed=2304, inner=9216, depth=26), {**GEMMA, **BIASES},
        {"attn_logit_softcapping": None}, reads=_gemma3, writes=_said_gemma3,
    ),
}  # fmt: skip
TABLE = (
    *attending(after="attention_residual.output_norm", before="pre_feedforward_layernorm"),
    *norm("trunk.blocks.feedforward_residual.output_norm", LAYER + "post_feedforward_layernorm"),
    *GATED,
)
FAMILIES = {
    "gemma2": decoder_family(
        "gemma2", "Gemma2", "model.", CONFIGS["gemma2"], TABLE,
        classes=("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification"),
    ),
    "gemma3_text": decoder_family(
        "gemma3_text", "Gemma3", "model.", CONFIGS["gemma3_text"], TABLE,
        classes=("ForCausalLM", "TextModel", "TextForSequenceClassification"),
    ),
}  # fmt: skip
