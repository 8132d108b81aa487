"""Mixtral (Jiang et al. 2024, https://arxiv.org/abs/2401.04088): Mistral with eight experts in the place of each
feed-forward layer, two of which a token is sent to.
"""

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.text.llama import mistral_7b
from flax_transformer.nn import Precision, with_experts, with_fields

FLOAT32 = Precision()


def mixtral_8x7b(vocab: int = 32_000, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Mixtral 8x7B: 32 layers, D=4096, 46.7 B parameters, of which a token uses 12.9 B."""
    sizes = with_fields(mistral_7b(vocab, precision=precision), window=None, base=1_000_000.0)
    return with_experts(sizes, experts=8)


def mixtral_8x22b(vocab: int = 32_000, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Mixtral 8x22B: 56 layers, D=6144, 140.6 B parameters, of which a token uses 39.2 B."""
    sizes = {"depth": 56, "embed": 6144, "heads": 48, "inner": 16_384, "max_length": 65_536}
    return with_fields(mixtral_8x7b(vocab, precision=precision), **sizes)
