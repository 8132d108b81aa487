"""Qwen3-MoE (Qwen Team 2025, https://arxiv.org/abs/2505.09388): Qwen3 with 128 experts in the place of each
feed-forward layer, eight of which a token is sent to.
"""

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.llama import qwen3_0_6b
from flax_transformer.nn import Precision, with_experts, with_fields

FLOAT32 = Precision()


def qwen3_30b_a3b(vocab: int = 151_936, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Qwen3 30B-A3B: 48 layers, D=2048, 30.5 B parameters, of which a token uses 3.3 B."""
    sizes = {"embed": 2048, "inner": 768, "heads": 32, "kv_heads": 4, "depth": 48, "tied_output": False}
    return with_experts(with_fields(qwen3_0_6b(vocab, precision=precision), **sizes), experts=128, active=8)


def qwen3_235b_a22b(vocab: int = 151_936, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Qwen3 235B-A22B: 94 layers, D=4096, 235.1 B parameters, of which a token uses 22.2 B."""
    sizes = {"embed": 4096, "inner": 1536, "heads": 64, "depth": 94}
    return with_fields(qwen3_30b_a3b(vocab, precision=precision), **sizes)
