"""MPNet (Song et al. 2020, https://arxiv.org/abs/2004.09297): an encoder with learned and with relative positions.

The positions are RoBERTa's; the relative ones, T5's buckets, are a bias that all layers share. A preset is the model
that is pre-trained on masked tokens; published sizes are those of
`with_head(preset.encoder, outputs=0, pool="first", dense="tanh")`, the encoder with a pooler.
"""

from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.nn import EmbeddingConfig, Precision, RelativeConfig, transformer_block

FLOAT32 = Precision()


def mpnet_base(vocab: int = 30_527, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> MaskedLMConfig:
    """Return MPNet base: 12 layers, D=768, 109 M parameters with a pooler; its padding token is 1."""
    encoder = EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=768, position="learned", max_length=512, offset=2, norm=1e-5, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=768, heads=12, inner=3072, activation="gelu", dropout=dropout, attention_dropout=dropout,
            init_std=0.02, precision=precision,
        ),
        depth=12,
        relative=RelativeConfig(),
    )  # fmt: skip
    return MaskedLMConfig(encoder=encoder, activation="gelu")
