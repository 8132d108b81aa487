"""LED (Beltagy et al. 2020, https://arxiv.org/abs/2004.05150): a BART that reads long texts, in windows.

Longformer's encoder-decoder: tokens of the source see those near them and a few global tokens, as the first one, that
see and are seen by all; the decoder attends to the whole source.
"""

from dataclasses import replace

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.text.bart import bart_base, bart_large
from flax_transformer.models.text.global_attention import GlobalAttentionConfig, GlobalTrunkConfig
from flax_transformer.nn import Precision

FLOAT32 = Precision()


def _led(short: Seq2SeqConfig, window: int) -> Seq2SeqConfig:
    """Turn a BART into a reader of 16,384 tokens."""
    block = short.encoder.block
    block = replace(block, attention=GlobalAttentionConfig.like(block.attention))
    embedding = replace(short.embedding, offset=0)
    return replace(
        short,
        embedding=embedding,
        source_embedding=replace(embedding, own_table=False, max_length=16_384),
        encoder=GlobalTrunkConfig(block=block, depth=short.encoder.depth, windows=(window,)),
    )


def led_base_16384(vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return LED base: 6+6 layers, D=768, windows of 1024, 16,384 source positions, 162 M parameters."""
    return _led(bart_base(vocab, dropout=dropout, precision=precision), window=1024)


def led_large_16384(vocab: int = 50_265, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return LED large: 12+12 layers, D=1024, windows of 1024, 16,384 source positions, 460 M parameters."""
    return _led(bart_large(vocab, dropout=dropout, precision=precision), window=1024)
