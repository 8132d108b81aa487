"""DeepSeek checkpoints (DeepSeek-AI 2024): V2, V3 and R1, whose first layers are dense and the others have experts."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from flax_transformer.hub.config import HEAD_WIDTH, ConfigTable
from flax_transformer.hub.family.llama import BIASES, LAYER, ROWS, decoder_family
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.rotary import read_rotary, write_rotary
from flax_transformer.hub.table import Table, embedding, headwise, linear, norm, parameter, stacked_above
from flax_transformer.models.text.deepseek import deepseek_v2_lite, deepseek_v3
from flax_transformer.models.text.dense_first import DenseFirstConfig
from flax_transformer.nn import Rotary, with_fields

LAYERS = {"num_hidden_layers": 61, "first_k_dense_replace": 3, "q_lora_rank": 1536}
"""What else a config.json of V3 need not say."""
GROUPS = {"n_group": 8, "topk_group": 4}
GREEDY, LIMITED = "greedy", "group_limited_greedy"
NAMES = "rope_scaling", "rope_parameters"


def _common(usual: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Read what both have that is not one to one."""
    fields = Fields.of({**usual, **fields})
    depth, dense = fields.integer("num_hidden_layers"), fields.integer("first_k_dense_replace")
    if dense >= depth:
        raise ValueError(
            f"config.json has first_k_dense_replace={dense} of num_hidden_layers={depth}; supported are experts in some"
        )
    return {
        ".depth": depth - dense,
        "dense_depth": dense,
        "query_latent": fields.integer("q_lora_rank", None),
        "rotary": read_rotary(fields),
        "mscale": _mscale(fields),
    }


def _mscale(fields: Fields) -> float:
    """Read how much YaRN changes the scale of scores by."""
    found = Fields.of(next((fields[name] for name in NAMES if fields.get(name) is not None), {}))
    plain = found.get("rope_type", found.get("type", "default")) == "default"
    return 0.0 if plain else float(found.number("mscale_all_dim", None) or 0)


def _v3(fields: Fields) -> dict[str, Any]:
    found = Fields.of({**GROUPS, **fields})
    groups = {"groups": found.integer("n_group", None) or 1, "kept": found.integer("topk_group", None) or 1}
    return {**_common(LAYERS, fields), **groups}


def _v2(fields: Fields) -> dict[str, Any]:
    how = fields.get("topk_method", GREEDY)
    if how not in (GREEDY, LIMITED):
        raise ValueError(f"config.json has topk_method={how!r}; supported are {GREEDY}, {LIMITED}")
    limited = how == LIMITED
    return {
        **_common({"num_hidden_layers": 32, "first_k_dense_replace": 0, "q_lora_rank": 1536}, fields),
        "groups": fields.integer("n_group") if limited else 1,
        "kept": fields.integer("topk_group") if limited else 1,
    }


def _said(config: DenseFirstConfig) -> dict[str, Any]:
    attention, router = config.block.attention, config.block.feedforward.router
    if isinstance(config.window, int):
        raise ValueError(f"config.json has no words for a window, got {config.window}")
    return {
        "num_hidden_layers": config.depth + config.dense_depth,
        "first_k_dense_replace": config.dense_depth,
        "q_lora_rank": attention.query_latent,
        "num_key_value_heads": attention.heads,
        HEAD_WIDTH: attention.rotary_width,
        "n_group": router.groups,
        "topk_group": router.kept,
        "moe_layer_freq": 1,
        **_said_rotary(attention.rotary, attention.mscale),
    }


def _said_rotary(rotary: Rotary, mscale: float) -> dict[str, Any]:
    said = write_rotary(rotary)
    if not mscale:
        return said
    scaling = {**said["rope_scaling"], "mscale_all_dim": mscale}
    if scaling.get("attention_factor") == 1:  # as DeepSeek's own files spell it
        scaling["mscale"] = mscale
        del scaling["attention_factor"]
    return {**said, "rope_scaling": scaling}


def _said_v3(config: DenseFirstConfig) -> dict[str, Any]:
    return {**_said(config), "topk_method": "noaux_tc", "scoring_func": "sigmoid"}


def _said_v2(config: DenseFirstConfig) -> dict[str, Any]:
    limited = config.block.feedforward.router.groups > 1
    return {**_said(config), "topk_method": LIMITED if limited else GREEDY, "scoring_func": "softmax"}


HERE = {name: ours for name, ours in ROWS.items() if name not in ("intermediate_size", "num_hidden_layers")}
DEEPSEEK = {
    **HERE, **BIASES, "intermediate_size": "dense.inner", "moe_intermediate_size": "block.inner",
    "n_routed_experts": "experts", "num_experts_per_tok": "active", "n_shared_experts": "shared",
    "routed_scaling_factor": "routed_scale", "kv_lora_rank": "latent", "qk_nope_head_dim": "head_width",
    "qk_rope_head_dim": "rotary_width", "v_head_dim": "value_head",
}  # fmt: skip
ONLY = {"moe_layer_freq": 1}
PLAIN = {"frequencies": Rotary().frequencies, "mscale": 0.0}
SIZES = {"embed": 4096, "heads": 32, "query_latent": 1536, "max_length": 2048}
LIKE = with_fields(deepseek_v2_lite(), **SIZES, **PLAIN)
CONFIGS = {
    "deepseek_v3": ConfigTable(
        with_fields(deepseek_v3(), max_length=4096, **PLAIN),
        {**DEEPSEEK, "norm_topk_prob": "normalized", "rope_interleave": "interleaved"},
        {**ONLY, "scoring_func": "sigmoid", "topk_method": "noaux_tc"}, reads=_v3, writes=_said_v3,
    ),
    "deepseek_v2": ConfigTable(
        replace(
            LIKE, dense=with_fields(LIKE.dense, inner=11_008), block=with_fields(LIKE.block, inner=1407)
        ),
        DEEPSEEK, {**ONLY, "scoring_func": "softmax", "norm_topk_prob": False, "mlp_bias": False},
        reads=_v2, writes=_said_v2,
    ),
}  # fmt: skip


def _stack(ours: str) -> Table:
    """Return the rows of a stack, but for its feed-forward layers."""
    attention, theirs = f"{ours}attention.", LAYER + "self_attn."
    return (
        *norm(f"{ours}attention_residual.norm", LAYER + "input_layernorm"),
        *linear(attention + "query_down", theirs + "q_a_proj"),
        *norm(attention + "query_norm", theirs + "q_a_layernorm"),
        *_query(attention, theirs),
        *linear(attention + "latent", theirs + "kv_a_proj_with_mqa"),
        *norm(attention + "latent_norm", theirs + "kv_a_layernorm"),
        *headwise((attention + "key", attention + "value"), theirs + "kv_b_proj"),
        *linear(attention + "out", theirs + "o_proj", inputs=2),
        *norm(f"{ours}feedforward_residual.norm", LAYER + "post_attention_layernorm"),
    )


def _query(ours: str, theirs: str) -> Table:
    """Return the rows of queries: those of a latent of their own have another name."""
    apart = tuple(replace(row, given=ours + "query_down.kernel") for row in linear(ours + "query", theirs + "q_b_proj"))
    whole = tuple(replace(row, unless=ours + "query_down.kernel") for row in linear(ours + "query", theirs + "q_proj"))
    return (*apart, *whole)


def _gated(ours: str, theirs: str) -> Table:
    return tuple(row for part in ("gate", "up", "down") for row in linear(f"{ours}.{part}", f"{theirs}.{part}_proj"))


DENSE, SPARSE, MLP = "trunk.dense_blocks.", "trunk.blocks.", LAYER + "mlp"
EXPERTS = SPARSE + "feedforward."
TABLE = (
    *embedding("embedding.token", "embed_tokens"),
    *_stack(DENSE),
    *_gated(DENSE + "feedforward", MLP),
    *stacked_above(
        (
            *_stack(SPARSE),
            *linear(EXPERTS + "router", MLP + ".gate"),
            *parameter(EXPERTS + "correction", MLP + ".gate.e_score_correction_bias"),
            *_gated(EXPERTS + "experts", MLP + ".experts.{}"),
            *_gated(EXPERTS + "shared", MLP + ".shared_experts"),
        ),
        DENSE + "attention.out.kernel",
    ),
    *norm("trunk.norm", "norm"),
)  # fmt: skip
PREDICTION = r"^model\.layers\.61\."
"""V3's layer of multi-token prediction, which `transformers` does not read either."""
family = partial(decoder_family, span_prefix="model.", table=TABLE)
FAMILIES = {
    "deepseek_v3": family(
        "deepseek_v3", "DeepseekV3", config=CONFIGS["deepseek_v3"],
        classes=("ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification"),
    ),
    "deepseek_v2": family(
        "deepseek_v2", "DeepseekV2", config=CONFIGS["deepseek_v2"],
        classes=("ForCausalLM", "Model", "ForSequenceClassification"),
    ),
}  # fmt: skip
FAMILIES["deepseek_v3"] = replace(FAMILIES["deepseek_v3"], ignored=(*FAMILIES["deepseek_v3"].ignored, PREDICTION))
