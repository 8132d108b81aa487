"""Decision Transformer checkpoints (Chen et al. 2021)."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from flax_transformer.hub.call import ModelOutput
from flax_transformer.hub.config import ConfigTable
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.inputs import Inputs, Signature
from flax_transformer.hub.registration import Architecture, Family
from flax_transformer.hub.table import embedding, linear, matrix, norm
from flax_transformer.models.multimodal.decision_transformer import DecisionConfig, decision_transformer
from flax_transformer.ops import Mask

GIVEN = Signature(("states", "actions", "returns_to_go", "timesteps"), ("rewards", "attention_mask"))


def _reads(fields: Fields) -> dict[str, Any]:
    return {
        "inner": fields.integer("n_inner", None) or 4 * fields.integer("hidden_size"),
        "attention.scale": None if fields.flag("scale_attn_weights", True) else 1.0,
    }


def _writes(config: DecisionConfig) -> dict[str, Any]:
    return {"n_inner": config.block.feedforward.inner, "scale_attn_weights": config.block.attention.scale != 1.0}


CONFIG = ConfigTable(
    decision_transformer(actions=4),
    {
        "state_dim": ".states",
        "act_dim": ".actions",
        "hidden_size": "embed",
        "max_ep_len": ".times",
        "action_tanh": ".tanh",
        "n_positions": ".positions",
        "n_layer": "depth",
        "n_head": "heads",
        "activation_function": "activation",
        "resid_pdrop": "block.dropout",
        "embd_pdrop": ".dropout",
        "attn_pdrop": "attention_dropout",
        "layer_norm_epsilon": "block.norm_eps",
        "initializer_range": "init_std",
    },
    only={"add_cross_attention": False, "scale_attn_by_inverse_layer_idx": False},
    reads=_reads,
    writes=_writes,
)
"""Scores are float32 here, whatever `reorder_and_upcast_attn` says."""


def call(model: Any, inputs: Inputs, key: PRNGKeyArray | None, fields: Fields) -> ModelOutput:
    """Return the predicted action, next state and return of each step, as DecisionTransformerModel does."""
    mask = None
    if inputs.attention_mask is not None:
        mask = Mask(dense=jnp.repeat(inputs.attention_mask != 0, 3, axis=-1)[..., None, None, :])
    hidden = model.hidden_states(
        states=inputs.states, actions=inputs.actions, returns=inputs.returns_to_go, times=inputs.timesteps, mask=mask,
        key=key,
    )  # fmt: skip
    said = model.output(hidden)
    return ModelOutput(
        state_preds=said.states, action_preds=said.actions, return_preds=said.returns, last_hidden_state=hidden
    )


def check(inputs: Inputs, fields: Fields) -> None:
    """Refuse what does not fit together, or steps after the longest episode's.

    Raises:
      ValueError: says which.
    """
    steps = inputs.timesteps.shape
    widths = {"states": fields.integer("state_dim", 17), "actions": fields.integer("act_dim", 4), "returns_to_go": 1}
    for name, width in widths.items():
        if (shape := getattr(inputs, name).shape) != (*steps, width):
            raise ValueError(f"{name} must be [B, T, {width}] of steps {list(steps)}, got {list(shape)}")
    times = fields.integer("max_ep_len", 4096)
    try:
        last = int(np.max(np.asarray(inputs.timesteps), initial=0))
    except (TypeError, RuntimeError):  # not known yet, in a transform
        return
    if last >= times:
        raise ValueError(f"timesteps must be in [0, {times}), got {last}")


LAYER = "encoder.h.{}"
TABLE = (
    *linear("returns", "embed_return"),
    *linear("states", "embed_state"),
    *linear("actions", "embed_action"),
    *embedding("time", "embed_timestep"),
    *embedding("position", "encoder.wpe"),
    *norm("norm", "embed_ln"),
    *norm("trunk.blocks.attention_residual.norm", f"{LAYER}.ln_1"),
    *matrix(tuple(f"trunk.blocks.attention.{part}" for part in ("query", "key", "value")), f"{LAYER}.attn.c_attn"),
    *matrix("trunk.blocks.attention.out", f"{LAYER}.attn.c_proj", inputs=2),
    *norm("trunk.blocks.feedforward_residual.norm", f"{LAYER}.ln_2"),
    *matrix("trunk.blocks.feedforward.up", f"{LAYER}.mlp.c_fc"),
    *matrix("trunk.blocks.feedforward.down", f"{LAYER}.mlp.c_proj"),
    *norm("trunk.norm", "encoder.ln_f"),
    *linear("action", "predict_action.0"),
    *linear("state", "predict_state"),
    *linear("left", "predict_return"),
)

FAMILIES = {
    "decision_transformer": Family(
        model_type="decision_transformer",
        architectures={
            "DecisionTransformerModel": Architecture(
                CONFIG.read, call, base=True, uses=("reinforcement-learning",), inputs=GIVEN, check=check
            )
        },
        table=TABLE,
        write=CONFIG.write,
        ignored=(r"\.attn\.(bias|masked_bias)$", r"^encoder\.wte\.weight$"),
        looked_up={},
    )
}
