"""Attention functions: softmax attention by several kernels, and other mechanisms, with one signature."""

from flax_transformer.ops.attention.call import Call
from flax_transformer.ops.attention.dispatch import BACKENDS, attention, explain_attention, watch_attention
from flax_transformer.ops.attention.function import AttentionFunction
from flax_transformer.ops.attention.variants import VARIANTS

__all__ = ["BACKENDS", "VARIANTS", "AttentionFunction", "Call", "attention", "explain_attention", "watch_attention"]
