"""Smaller models: kernels of few bits, and what is needed to choose them well."""

from flax_transformer.compress.quantize import Quantization, quantize_model
from flax_transformer.compress.statistics import Statistics, observe
from flax_transformer.nn.quantized import Quantized

__all__ = ["Quantization", "Quantized", "Statistics", "observe", "quantize_model"]
