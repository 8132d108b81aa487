"""Falcon checkpoints (Almazrouei et al. 2023): 7B, 40B, 11B, and those with ALiBi (RefinedWeb 1B and 7B)."""

import re
from dataclasses import replace
from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.llama import PARTS, architectures
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Family
from flax_transformer.hub.rotary import read_rotary, write_rotary
from flax_transformer.hub.table import embedding, grouped, linear, norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.falcon import falcon_7b
from flax_transformer.nn import AlibiConfig, ResidualConfig


def _kind(fields: Fields) -> tuple[bool, int]:
    """Read whether sublayers stand side by side, and how many norms are before them.

    Raises:
      ValueError: what transformers makes parameters for and does not use.
    """
    new, parallel = fields.flag("new_decoder_architecture", False), fields.flag("parallel_attn", True)
    norms = fields.integer("num_ln_in_parallel_attn", None) or (2 if new or not parallel else 1)
    if norms not in (1, 2) or (new and not parallel) or (parallel and not new and norms == 2):
        raise ValueError(
            "config.json must have one norm before sublayers side by side, or two with new_decoder_architecture, got "
            f"num_ln_in_parallel_attn={norms}, new_decoder_architecture={new}, parallel_attn={parallel}"
        )
    return parallel, 2 if not parallel else norms


def _reads(fields: Fields) -> dict[str, Any]:
    heads, embed = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    parallel, norms = _kind(fields)
    if fields.flag("new_decoder_architecture", False):
        kv_heads = fields.integer("num_kv_heads", None) or heads
    else:
        kv_heads = 1 if fields.flag("multi_query", True) else heads
    rate, eps = float(fields.number("hidden_dropout", 0.0)), float(fields.number("layer_norm_epsilon", 1e-5))
    without = ResidualConfig(embed=embed, norm_eps=eps, norm_position="none", dropout=rate)
    alibi = fields.flag("alibi", False)
    return {
        "inner": fields.integer("ffn_hidden_size", None) or 4 * embed,
        "kv_heads": kv_heads,
        "parallel": parallel,
        "feedforward_residual": without if norms == 1 else None,
        "rotary": None if alibi else read_rotary(fields),
        "relative": AlibiConfig(scale=(embed // max(heads, 1)) ** -0.5, rounded=True) if alibi else None,
    }


def _writes(config: CausalConfig) -> dict[str, Any]:
    block, mixing = config.block, config.block.attention
    kv_heads, one = mixing.resolved_kv_heads, block.feedforward_residual is not None
    if mixing.width * mixing.heads != mixing.embed:
        raise ValueError(
            f"config.json has words for heads of width D / N, got D={mixing.embed}, N={mixing.heads}, H={mixing.width}"
        )
    new = block.parallel and not (one and kv_heads in (1, mixing.heads))
    said = {} if mixing.rotary is None else write_rotary(mixing.rotary)
    return {
        **said,
        "ffn_hidden_size": block.feedforward.inner,
        "new_decoder_architecture": new,
        "num_ln_in_parallel_attn": (1 if one else 2) if new else None,
        "num_kv_heads": kv_heads if new else mixing.heads,
        "multi_query": not new and kv_heads == 1,
        "parallel_attn": block.parallel,
        "alibi": mixing.rotary is None,
    }


CONFIG = ConfigTable(
    falcon_7b(),
    {
        "vocab_size": "vocab",
        "max_position_embeddings": "max_length",
        "hidden_size": "embed",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "activation": "activation",
        "layer_norm_epsilon": "norm_eps",
        "initializer_range": "init_std",
        "hidden_dropout": "residual.dropout",
        "attention_dropout": "attention_dropout",
        "bias": ("attention.bias", "attention.out_bias", "feedforward.bias"),
        "tie_word_embeddings": "tied_output",
    },
    reads=_reads,
    writes=_writes,
)
LAYER = "h.{}."
TABLE = (
    *embedding("embedding.token", "word_embeddings"),
    *norm("trunk.blocks.attention_residual.norm", LAYER + "ln_attn"),
    *grouped(tuple(PARTS.values()), LAYER + "self_attention.query_key_value"),
    *linear("trunk.blocks.attention.out", LAYER + "self_attention.dense", inputs=2),
    *norm("trunk.blocks.feedforward_residual.norm", LAYER + "ln_mlp"),
    *linear("trunk.blocks.feedforward.up", LAYER + "mlp.dense_h_to_4h"),
    *linear("trunk.blocks.feedforward.down", LAYER + "mlp.dense_4h_to_h"),
    *norm("trunk.norm", "ln_f"),
)
"""Norms are called so where there are two before sublayers side by side."""
OTHERWISE = {"ln_attn": "input_layernorm", "ln_mlp": "post_attention_layernorm"}


def _spelled(name: str, fields: Fields) -> str:
    if _kind(fields) == (True, 2):
        return name
    return re.sub(r"\.(ln_attn|ln_mlp)\.", lambda found: f".{OTHERWISE[found[1]]}.", name)


KINDS = architectures(CONFIG, "transformer.", embedding("head.token", "lm_head"))
KINDS["ForTokenClassification"] = replace(KINDS["ForTokenClassification"], head=linear("head.output", "classifier"))
FAMILIES = {
    "falcon": Family(
        model_type="falcon",
        architectures={f"Falcon{kind}": architecture for kind, architecture in KINDS.items()},
        table=TABLE,
        write=CONFIG.write,
        prefix="transformer.",
        ignored=(r"\.rotary_emb\.inv_freq$", r"\.maybe_rotary\.inv_freq$"),
        renamed={rf"(^|\.){theirs}\.": rf"\1{ours}." for ours, theirs in OTHERWISE.items()},
        spelled=_spelled,
        copies={"lm_head.weight": "transformer.word_embeddings.weight"},
    )
}
