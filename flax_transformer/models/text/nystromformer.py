"""Nyströmformer (Xiong et al. 2021, https://arxiv.org/abs/2102.03902): a BERT that attends through landmarks, with a
convolution of the values beside.

A preset is the model that is pre-trained on masked tokens; `preset.encoder` is the encoder alone.
"""

from dataclasses import replace

from flax_transformer.models.encoder import EncoderConfig, MaskedLMConfig
from flax_transformer.nn import EmbeddingConfig, Precision, transformer_block
from flax_transformer.nn.nystrom import NystromConfig
from flax_transformer.ops import attention
from flax_transformer.ops.attention.nystrom import NystromAttention

FLOAT32 = Precision()


def nystromformer_512(
    vocab: int = 30_000, *, landmarks: int | None = None, dropout: float = 0.1, precision: Precision = FLOAT32
) -> MaskedLMConfig:
    """Return the published model of 510 positions: 12 layers, D=768, 109 M parameters.

    Args:
      landmarks: M, a divisor of the length of texts; None: exact attention, as the checkpoint of this size has it.
    """
    attend = attention if landmarks is None else NystromAttention(landmarks=landmarks, start="batch")
    plain = transformer_block(
        embed=768, heads=12, inner=3072, activation="gelu_tanh", dropout=dropout, init_std=0.02, precision=precision
    )
    encoder = EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=768, position="learned", max_length=510, offset=2, types=2, norm=1e-5, scaled=False,
            dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=replace(plain, attention=NystromConfig.like(plain.attention, attend=attend, window=65)),
        depth=12,
    )  # fmt: skip
    return MaskedLMConfig(encoder=encoder)
