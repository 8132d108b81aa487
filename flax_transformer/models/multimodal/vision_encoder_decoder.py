"""Images to text: any encoder of images, and a decoder of words that looks at what it sees.

TrOCR, ViT with GPT-2 and their like (Li et al. 2021, https://arxiv.org/abs/2109.10282).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.given_states import GivenStatesConfig
from flax_transformer.models.head import with_head
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.gpt2 import gpt2
from flax_transformer.models.vision.vit import vit_encoder
from flax_transformer.nn import EmbeddingConfig, Precision, TrunkConfig, transformer_block
from flax_transformer.nn.attention import AttentionConfig, CrossAttentionConfig

FLOAT32 = Precision()


def captioner(encoder: Any, words: CausalConfig, **output: Any) -> Seq2SeqConfig:
    """Give a language model cross-attention to images, as its self-attention is.

    Args:
      encoder: config of an encoder of images or texts; one of another width than the words gets a linear layer behind
        it. None: the states that it looks at are given, as wide as the words.
      output: `output_bias` and `output_dense` of a `Seq2SeqConfig`.
    """
    width = words.block.embed
    if encoder is None:
        encoder = GivenStatesConfig(embed=width)
    if width_of(encoder) != width:
        encoder = with_head(encoder, outputs=width)
    return _looking(encoder, words, words.block.attention, output)


def text_reader(encoder: Any, words: CausalConfig) -> Seq2SeqConfig:
    """Give a language model cross-attention as `captioner` does, to states as wide as the encoder's (TrOCR)."""
    cross = CrossAttentionConfig.like(words.block.attention, memory=width_of(encoder))
    return _looking(encoder, words, cross, {})


def _looking(encoder: Any, words: CausalConfig, cross: AttentionConfig, output: Mapping[str, Any]) -> Seq2SeqConfig:
    decoder = TrunkConfig(
        block=replace(words.block, cross=cross), depth=words.depth, unroll=words.unroll, remat=words.remat
    )
    return Seq2SeqConfig(
        embedding=words.embedding, encoder=encoder, decoder=decoder, tied_output=words.tied_output, **output
    )


def words_of(config: Seq2SeqConfig) -> CausalConfig:
    """Return the language model alone that looks at nothing."""
    decoder = config.decoder
    return CausalConfig(
        embedding=config.embedding, block=replace(decoder.block, cross=None), depth=decoder.depth,
        tied_output=config.tied_output, unroll=decoder.unroll, remat=decoder.remat,
    )  # fmt: skip


def width_of(encoder: Any) -> int:
    """Return D of an encoder's config."""
    return encoder.embed if hasattr(encoder, "embed") else encoder.block.embed


def vit_gpt2(
    vocab: int = 50_257, *, image: int = 224, dropout: float = 0.1, precision: Precision = FLOAT32
) -> Seq2SeqConfig:
    """Return ViT-B/16 and the smallest GPT-2: 12+12 layers, D=768, 238.6 M parameters."""
    return captioner(
        vit_encoder("base", 16, image=image, dropout=dropout, precision=precision),
        gpt2(vocab, dropout=dropout, precision=precision),
    )


def trocr_words(
    vocab: int,
    *,
    embed: int = 1024,
    heads: int = 16,
    depth: int = 12,
    inner: int = 4096,
    dropout: float = 0.1,
    precision: Precision = FLOAT32,
) -> CausalConfig:
    """Return TrOCR's decoder without what it looks at: BART's blocks, learned positions from the third row on."""
    return CausalConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=512, offset=2, norm=1e-5, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=inner, activation="gelu", dropout=dropout, init_std=0.02,
            precision=precision,
        ),
        depth=depth,
    )  # fmt: skip


def trocr_base(vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return TrOCR-base: ViT-B/16 for 384 × 384, 12 layers of D=1024: 333.3 M parameters."""
    encoder = vit_encoder("base", 16, image=384, precision=precision)
    attention = replace(encoder.block.attention, bias=False, out_bias=True)
    encoder = replace(encoder, block=replace(encoder.block, attention=attention))
    return text_reader(encoder, trocr_words(vocab, dropout=dropout, precision=precision))
