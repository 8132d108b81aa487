"""Phi-3 (Abdin et al. 2024, https://arxiv.org/abs/2404.14219) and Phi-4 (https://arxiv.org/abs/2412.08905): Llamas of
other sizes, whose checkpoints keep query, key and value in one tensor.
"""

from dataclasses import replace

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.llama import llama2_7b
from flax_transformer.nn import Precision, with_fields

FLOAT32 = Precision()


def phi3_mini_4k(vocab: int = 32_064, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Phi-3 mini of 4,096 positions: 32 layers, D=3072, a window of 2,047, 3.8 B parameters."""
    sizes = {"embed": 3072, "inner": 8192, "head_width": 96, "max_length": 4096}
    return replace(with_fields(llama2_7b(vocab, precision=precision), **sizes), window=2047)


def phi4(vocab: int = 100_352, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Phi-4: 40 layers, D=5120, 10 kv heads, 14.7 B parameters."""
    sizes = {
        "embed": 5120, "inner": 17_920, "heads": 40, "kv_heads": 10, "head_width": 128, "depth": 40,
        "max_length": 16_384, "base": 250_000.0,
    }  # fmt: skip
    return with_fields(llama2_7b(vocab, precision=precision), **sizes)
