"""Pictures to text: any encoder of pictures, and a decoder of words that looks at what it sees.

TrOCR, ViT with GPT-2 and their like (Li et al. 2021, https://arxiv.org/abs/2109.10282).
"""

from dataclasses import replace
from typing import Any

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.head import with_head
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.gpt2 import gpt2
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import Precision, TrunkConfig

FLOAT32 = Precision()


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


def vit_gpt2(
    vocab: int = 50_257, *, image: int = 224, dropout: float = 0.1, precision: Precision = FLOAT32
) -> Seq2SeqConfig:
    """Give ViT-B/16 and the smallest GPT-2: 12+12 layers, D=768, 238.6 M parameters."""
    return captioner(
        vit_encoder("base", 16, image=image, dropout=dropout, precision=precision),
        gpt2(vocab, dropout=dropout, precision=precision),
    )
