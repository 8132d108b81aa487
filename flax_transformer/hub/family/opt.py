"""OPT checkpoints (Zhang et al. 2022)."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import Inputs, ModelOutput
from flax_transformer.hub.config import ConfigTable, choice
from flax_transformer.hub.family.llama import architectures
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import embedding, linear, norm
from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.opt import opt_125m


def _reads(fields: Fields) -> dict[str, Any]:
    width, tables = fields.integer("hidden_size"), fields.integer("word_embed_proj_dim", None)
    if tables not in (None, width):
        raise ValueError(
            f"config.json has word_embed_proj_dim={tables}, of which only hidden_size={width} is supported"
        )
    return {}


def _writes(config: CausalConfig) -> dict[str, Any]:
    return {"word_embed_proj_dim": config.block.embed}


CONFIG = ConfigTable(
    opt_125m(),
    {
        "vocab_size": "vocab",
        "max_position_embeddings": "max_length",
        "hidden_size": "embed",
        "ffn_dim": "inner",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "activation_function": "activation",
        "init_std": "init_std",
        "dropout": "residual.dropout",
        "attention_dropout": "attention_dropout",
        "layerdrop": "layer_drop",
        "enable_bias": ("attention.bias", "attention.out_bias", "feedforward.bias"),
        "do_layer_norm_before": choice("norm_position", {True: "pre", False: "post"}),
        "tie_word_embeddings": "tied_output",
    },
    {"_remove_final_layer_norm": False, "layer_norm_elementwise_affine": True},
    reads=_reads,
    writes=_writes,
)
LAYER = "decoder.layers.{}."
TABLE = (
    *embedding("embedding.token", "decoder.embed_tokens"),
    *embedding("embedding.position", "decoder.embed_positions"),
    *norm("trunk.blocks.attention_residual.norm", LAYER + "self_attn_layer_norm"),
    *linear("trunk.blocks.attention.query", LAYER + "self_attn.q_proj"),
    *linear("trunk.blocks.attention.key", LAYER + "self_attn.k_proj"),
    *linear("trunk.blocks.attention.value", LAYER + "self_attn.v_proj"),
    *linear("trunk.blocks.attention.out", LAYER + "self_attn.out_proj", inputs=2),
    *norm("trunk.blocks.feedforward_residual.norm", LAYER + "final_layer_norm"),
    *linear("trunk.blocks.feedforward.up", LAYER + "fc1"),
    *linear("trunk.blocks.feedforward.down", LAYER + "fc2"),
    *norm("trunk.norm", "decoder.final_layer_norm"),
)


def _counted(
    call: Callable[..., ModelOutput], model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields
) -> ModelOutput:
    """Call a model with positions that count the tokens of a row alone, as OPT has them where it is given none."""
    mask = inputs.attention_mask
    if inputs.position_ids is None and mask is not None:
        real = jnp.asarray(mask, jnp.int32)
        inputs = replace(inputs, position_ids=jnp.cumsum(real, axis=-1, dtype=jnp.int32) * real - 1)
    return call(model, inputs, key, fields)


def _architecture(kind: str) -> Architecture:
    found = architectures(CONFIG, "model.")[kind]
    return replace(found, call=partial(_counted, found.call))


FAMILIES = {
    "opt": Family(
        model_type="opt",
        architectures={
            f"OPT{kind}": _architecture(kind)
            for kind in ("ForCausalLM", "Model", "ForSequenceClassification", "ForQuestionAnswering")
        },
        table=TABLE,
        write=CONFIG.write,
        prefix="model.",
        copies={"lm_head.weight": "model.decoder.embed_tokens.weight"},
    )
}
