"""Pure functions on arrays: attention, masks, positions, dropout, activations, losses, attention variants."""

from flax_transformer.ops.activation import activation
from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.capped import CappedAttention, soft_cap
from flax_transformer.ops.attention.dispatch import BACKENDS, attention, explain_attention, watch_attention
from flax_transformer.ops.attention.entmax import EntmaxAttention, SparsemaxAttention, entmax, sparsemax
from flax_transformer.ops.attention.equal_heads import equal_heads
from flax_transformer.ops.attention.fixed_sparse import FixedAttention
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.linear import LinearAttention, LinearState, linear_step
from flax_transformer.ops.attention.local import LocalAttention
from flax_transformer.ops.attention.nystrom import NystromAttention
from flax_transformer.ops.attention.performer import PerformerAttention
from flax_transformer.ops.attention.strided_sparse import StridedAttention
from flax_transformer.ops.attention.uniform_on_empty import attention_uniform_on_empty
from flax_transformer.ops.attention.variants import VARIANTS
from flax_transformer.ops.attention.xla import attention_weights
from flax_transformer.ops.capture import capture, capture_all
from flax_transformer.ops.chunked_loss import chunked_cross_entropy, chunked_scores
from flax_transformer.ops.drop_path import drop_path
from flax_transformer.ops.dropout import Dropout, dropout, keep_mask
from flax_transformer.ops.embedding_table import lookup, multiply_rows, spread, take_rows
from flax_transformer.ops.float32 import scaled, widen
from flax_transformer.ops.grid_position import sinusoidal_grid
from flax_transformer.ops.loss import cross_entropy, soft_cross_entropy
from flax_transformer.ops.mask import Mask
from flax_transformer.ops.norm import layer_norm
from flax_transformer.ops.position import (
    alibi,
    causal_relative_buckets,
    relative_buckets,
    rotary,
    rotary_sections,
    sinusoidal,
    sinusoidal_halves,
    sinusoidal_spanning,
)
from flax_transformer.ops.resample import (
    adaptive_mean,
    bicubic,
    bilinear,
    nearest,
    resample,
    resample_positions,
    resample_relative_bias,
)
from flax_transformer.ops.rotary_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    YarnScaling,
    axial_frequencies,
    rotary_frequencies,
)
from flax_transformer.ops.routing import balance_loss, router_z_loss
from flax_transformer.ops.spectrum import rank_error, spectrum, spectrum_rank
from flax_transformer.ops.token_choice import route

__all__ = [
    "BACKENDS",
    "VARIANTS",
    "AttentionFunction",
    "Call",
    "CappedAttention",
    "Dropout",
    "DynamicScaling",
    "EntmaxAttention",
    "FixedAttention",
    "LinearAttention",
    "LinearScaling",
    "LinearState",
    "Llama3Scaling",
    "LocalAttention",
    "LongScaling",
    "Mask",
    "NystromAttention",
    "PerformerAttention",
    "SparsemaxAttention",
    "StridedAttention",
    "YarnScaling",
    "activation",
    "adaptive_mean",
    "alibi",
    "attention",
    "attention_uniform_on_empty",
    "attention_weights",
    "axial_frequencies",
    "balance_loss",
    "bicubic",
    "bilinear",
    "capture",
    "capture_all",
    "causal_relative_buckets",
    "chunked_cross_entropy",
    "chunked_scores",
    "cross_entropy",
    "drop_path",
    "dropout",
    "entmax",
    "equal_heads",
    "explain_attention",
    "keep_mask",
    "layer_norm",
    "linear_step",
    "lookup",
    "multiply_rows",
    "nearest",
    "rank_error",
    "relative_buckets",
    "resample",
    "resample_positions",
    "resample_relative_bias",
    "rotary",
    "rotary_frequencies",
    "rotary_sections",
    "route",
    "router_z_loss",
    "scaled",
    "sinusoidal",
    "sinusoidal_grid",
    "sinusoidal_halves",
    "sinusoidal_spanning",
    "soft_cap",
    "soft_cross_entropy",
    "sparsemax",
    "spectrum",
    "spectrum_rank",
    "spread",
    "take_rows",
    "watch_attention",
    "widen",
]
