"""GPT-NeoX checkpoints (Black et al. 2022), and those of Pythia."""

from dataclasses import replace
from typing import Any

from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.family.llama import PARTS, ROWS, architectures
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Family
from flax_transformer.hub.rotary import read_rotary, write_rotary
from flax_transformer.hub.table import embedding, grouped, linear, norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.gpt_neox import gpt_neox_20b

WIDTHS = {
    name: ours for name, ours in ROWS.items() if name not in ("rms_norm_eps", "hidden_size", "num_attention_heads")
}


def _reads(fields: Fields) -> dict[str, Any]:
    width = fields.integer("hidden_size") // max(fields.integer("num_attention_heads"), 1)
    beside = {
        "rope_theta": fields.number("rotary_emb_base", 10_000.0),
        "partial_rotary_factor": fields.number("rotary_pct", 0.25),
    }
    return {"rotary": read_rotary(fields.updated(beside), partial_of=width), "head_width": width}


def _writes(config: CausalConfig) -> dict[str, Any]:
    mixing = config.block.attention
    if mixing.width * mixing.heads != mixing.embed or mixing.resolved_kv_heads != mixing.heads:
        raise ValueError(
            f"config.json has words for heads of width D / N, all with keys of their own, got D={mixing.embed}, "
            f"N={mixing.heads}, K={mixing.resolved_kv_heads}, H={mixing.width}"
        )
    said = write_rotary(mixing.rotary, partial_of=mixing.width)
    return {
        "rotary_emb_base": said["rope_theta"],
        "rotary_pct": said["partial_rotary_factor"],
        "rope_scaling": said["rope_scaling"],
    }


CONFIG = ConfigTable(
    gpt_neox_20b(),
    {
        **WIDTHS, "hidden_size": "embed", "num_attention_heads": "heads", "layer_norm_eps": "norm_eps",
        "attention_bias": ("attention.bias", "attention.out_bias"), "hidden_dropout": "dropout",
        "use_parallel_residual": "parallel",
    },
    reads=_reads, writes=_writes,
)  # fmt: skip
LAYER = "layers.{}."
TABLE = (
    *embedding("embedding.token", "embed_in"),
    *norm("trunk.blocks.attention_residual.norm", LAYER + "input_layernorm"),
    *grouped(tuple(PARTS.values()), LAYER + "attention.query_key_value"),
    *linear("trunk.blocks.attention.out", LAYER + "attention.dense", inputs=2),
    *norm("trunk.blocks.feedforward_residual.norm", LAYER + "post_attention_layernorm"),
    *linear("trunk.blocks.feedforward.up", LAYER + "mlp.dense_h_to_4h"),
    *linear("trunk.blocks.feedforward.down", LAYER + "mlp.dense_4h_to_h"),
    *norm("trunk.norm", "final_layer_norm"),
)
KINDS = architectures(CONFIG, "gpt_neox.", embedding("head.token", "embed_out"), r"^(embed_out|lm_head)\.")
KINDS["ForTokenClassification"] = replace(KINDS["ForTokenClassification"], head=linear("head.output", "classifier"))
FAMILIES = {
    "gpt_neox": Family(
        model_type="gpt_neox",
        architectures={f"GPTNeoX{kind}": architecture for kind, architecture in KINDS.items()},
        table=TABLE,
        write=CONFIG.write,
        prefix="gpt_neox.",
        ignored=(r"\.rotary_emb\.inv_freq$", r"\.attention\.(bias|masked_bias)$"),
        renamed={r"^lm_head\.": "embed_out."},
        modules={r"^embed_out\.": "lm_head."},
        copies={"embed_out.weight": "gpt_neox.embed_in.weight"},
    )
}
