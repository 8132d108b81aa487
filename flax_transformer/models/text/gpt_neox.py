"""GPT-NeoX (Black et al. 2022, https://arxiv.org/abs/2204.06745) and Pythia (Biderman et al. 2023,
https://arxiv.org/abs/2304.01373): decoders with attention and feed-forward layer side by side, and rotary positions on
a quarter of each head.
"""

from dataclasses import replace

from flax_transformer.models.causal import CausalConfig
from flax_transformer.nn import EmbeddingConfig, Precision, Rotary, transformer_block

FLOAT32 = Precision()


def _gpt_neox(vocab: int, *, embed: int, heads: int, depth: int, precision: Precision) -> CausalConfig:
    made = transformer_block(
        embed=embed, heads=heads, inner=4 * embed, norm_position="pre", norm_eps=1e-5, activation="gelu",
        head_width=embed // heads, rotary=Rotary(width=embed // heads // 4), out_bias=True, init_std=0.02,
        precision=precision,
    )  # fmt: skip
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="none", max_length=2048, scaled=False, init_std=0.02,
            precision=precision,
        ),
        block=replace(made, parallel=True),
        depth=depth,
        tied_output=False,
    )  # fmt: skip


def pythia_70m(vocab: int = 50_304, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Pythia 70M: 6 layers, D=512."""
    return _gpt_neox(vocab, embed=512, heads=8, depth=6, precision=precision)


def pythia_160m(vocab: int = 50_304, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Pythia 160M: 12 layers, D=768."""
    return _gpt_neox(vocab, embed=768, heads=12, depth=12, precision=precision)


def pythia_1_4b(vocab: int = 50_304, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return Pythia 1.4B: 24 layers, D=2048."""
    return _gpt_neox(vocab, embed=2048, heads=16, depth=24, precision=precision)


def gpt_neox_20b(vocab: int = 50_432, *, precision: Precision = FLOAT32) -> CausalConfig:
    """Return GPT-NeoX 20B: 44 layers, D=6144, 20.6 B parameters."""
    return _gpt_neox(vocab, embed=6144, heads=64, depth=44, precision=precision)
