"""Any encoder of pictures and a decoder of words that looks at what it sees: TrOCR, ViT with GPT-2 and their like
(Li et al. 2021, https://arxiv.org/abs/2109.10282).
"""

from dataclasses import replace
from typing import Any

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import with_head
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import TrunkConfig


def captioner(encoder: Any, words: CausalConfig) -> Seq2SeqConfig:
    """Let a language model look at pictures, by cross-attention as its self-attention is.

    Args:
      encoder: config of an encoder of pictures; one of another width than the words gets a linear layer behind it.
    """
    width = words.block.embed
    if width_of(encoder) != width:
        encoder = with_head(encoder, outputs=width)
    return Seq2SeqConfig(
        embedding=words.embedding, encoder=encoder, tied_output=words.tied_output,
        decoder=TrunkConfig(
            block=replace(words.block, cross=words.block.attention), depth=words.depth, unroll=words.unroll,
            remat=words.remat,
        ),
    )  # fmt: skip


def words_of(config: Seq2SeqConfig) -> CausalConfig:
    """Give the language model alone that looks at nothing."""
    decoder = config.decoder
    return CausalConfig(
        embedding=config.embedding, block=replace(decoder.block, cross=None), depth=decoder.depth,
        tied_output=config.tied_output, unroll=decoder.unroll, remat=decoder.remat,
    )  # fmt: skip


def width_of(encoder: Any) -> int:
    """Give D of an encoder's config."""
    return encoder.embed if hasattr(encoder, "embed") else encoder.block.embed
