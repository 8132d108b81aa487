"""Smaller models: kernels of few bits or with zeros, and what is needed to choose them well."""

from flax_transformer.compress.layers import keep_layers
from flax_transformer.compress.narrow import narrow_model
from flax_transformer.compress.prune import Pruning, prune_model
from flax_transformer.compress.quantize import Quantization, quantize_model
from flax_transformer.compress.statistics import Statistics, observe
from flax_transformer.nn.quantized import Quantized

__all__ = [
    "Pruning",
    "Quantization",
    "Quantized",
    "Statistics",
    "keep_layers",
    "narrow_model",
    "observe",
    "prune_model",
    "quantize_model",
]
