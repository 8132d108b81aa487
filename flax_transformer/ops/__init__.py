"""Pure functions on arrays: attention, masks, positions, dropout, activations, losses."""

from flax_transformer.ops.activation import activation
from flax_transformer.ops.attention import attention, explain_attention
from flax_transformer.ops.capture import capture
from flax_transformer.ops.chunked_loss import chunked_cross_entropy, chunked_scores
from flax_transformer.ops.drop_path import drop_path
from flax_transformer.ops.dropout import Dropout, dropout, keep_mask
from flax_transformer.ops.even import even_attention
from flax_transformer.ops.grid import sinusoidal_grid
from flax_transformer.ops.loss import cross_entropy, soft_cross_entropy
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.norm import layer_norm
from flax_transformer.ops.position import (
    LinearScaling,
    Llama3Scaling,
    alibi,
    causal_relative_buckets,
    relative_buckets,
    rotary,
    rotary_frequencies,
    sinusoidal,
    sinusoidal_halves,
    sinusoidal_spanning,
)
from flax_transformer.ops.resample import bicubic, bilinear, resample, resample_positions, resample_relative_bias
from flax_transformer.ops.resample_clip import resample_clip_positions
from flax_transformer.ops.table import lookup, multiply_rows, spread, take_rows
from flax_transformer.ops.wide import scaled, widen
from flax_transformer.ops.xla import attention_weights

__all__ = [
    "Dropout",
    "LinearScaling",
    "Llama3Scaling",
    "Mask",
    "activation",
    "alibi",
    "attention",
    "attention_weights",
    "bicubic",
    "bilinear",
    "capture",
    "causal_relative_buckets",
    "chunked_cross_entropy",
    "chunked_scores",
    "cross_entropy",
    "drop_path",
    "dropout",
    "even_attention",
    "explain_attention",
    "keep_mask",
    "layer_norm",
    "lookup",
    "multiply_rows",
    "relative_buckets",
    "resample",
    "resample_clip_positions",
    "resample_positions",
    "resample_relative_bias",
    "rotary",
    "rotary_frequencies",
    "scaled",
    "sinusoidal",
    "sinusoidal_grid",
    "sinusoidal_halves",
    "sinusoidal_spanning",
    "soft_cross_entropy",
    "spread",
    "take_rows",
    "widen",
]
