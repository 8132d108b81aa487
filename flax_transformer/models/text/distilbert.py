"""DistilBERT (Sanh et al. 2019, https://arxiv.org/abs/1910.01108): every second layer of BERT, no types, no pooler.

A preset is the model that is pre-trained on masked tokens; published sizes are those of `preset.encoder`.
"""

from dataclasses import replace

from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block

FLOAT32 = Precision()


def distilbert_base_uncased(
    vocab: int = 30_522, *, dropout: float = 0.1, precision: Precision = FLOAT32
) -> MaskedLMConfig:
    """Return DistilBERT base, lower-cased: 6 layers, D=768, 66 M parameters without the layers that guess tokens."""
    encoder = EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=768, position="learned", max_length=512, norm=1e-12, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=768, heads=12, inner=3072, norm_eps=1e-12, activation="gelu", dropout=dropout,
            attention_dropout=dropout, init_std=0.02, precision=precision,
        ),
        depth=6,
    )  # fmt: skip
    block = encoder.block  # attention's output is not dropped
    block = replace(block, residual=replace(block.residual, dropout=0.0), feedforward_residual=block.residual)
    return MaskedLMConfig(encoder=replace(encoder, block=block))
