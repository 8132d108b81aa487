"""Qwen2-VL: images of any size among the tokens of a text (Wang et al. 2024, https://arxiv.org/abs/2409.12191)."""

from dataclasses import replace

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.multimodal.interleaved import InterleavedConfig
from flax_transformer.models.text.llama import qwen2_5_0_5b
from flax_transformer.models.vision.packed_vit import packed_vit
from flax_transformer.nn import Precision, Rotary, with_fields

FLOAT32 = Precision()
SECTIONS = (16, 24, 24)
"""Pairs of channels that turn by time, row and column."""


def qwen2_vl_text(
    vocab: int, *, embed: int, inner: int, heads: int, kv_heads: int, depth: int, tied: bool = False,
    precision: Precision = FLOAT32,
) -> CausalConfig:  # fmt: skip
    """Return the decoder: Qwen2's, whose heads of 128 turn by three ids of a position."""
    base = qwen2_5_0_5b(vocab, precision=precision)
    return replace(
        with_fields(
            base, embed=embed, inner=inner, heads=heads, kv_heads=kv_heads, head_width=None, depth=depth,
            rotary=Rotary(base=1_000_000.0, sections=SECTIONS),
        ),
        tied_output=tied,
    )  # fmt: skip


def qwen2_vl_2b(vocab: int = 151_936, *, precision: Precision = FLOAT32) -> InterleavedConfig:
    """Return Qwen2-VL 2B: 28 layers, D=1536, 2 kv heads, tied output; 2,209.0 M parameters, 665.3 M of them images'."""
    text = qwen2_vl_text(vocab, embed=1536, inner=8960, heads=12, kv_heads=2, depth=28, tied=True, precision=precision)
    return InterleavedConfig(vision=packed_vit(1536, precision=precision), text=text)


def qwen2_vl_7b(vocab: int = 152_064, *, precision: Precision = FLOAT32) -> InterleavedConfig:
    """Return Qwen2-VL 7B: 28 layers, D=3584, 4 kv heads; 8,291.4 M parameters, 675.8 M of them images'."""
    text = qwen2_vl_text(vocab, embed=3584, inner=18_944, heads=28, kv_heads=4, depth=28, precision=precision)
    return InterleavedConfig(vision=packed_vit(3584, precision=precision), text=text)
