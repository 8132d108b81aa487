"""Marian's translation models (Junczys-Dowmunt et al. 2018, https://aclanthology.org/P18-4020): the paper of 2017.

They differ from `transformer_base` in the order of sines and cosines, the activation, and a bias of the output layer.
The OPUS-MT models (Tiedemann & Thottingal 2020, https://aclanthology.org/2020.eamt-1.61) are of this shape.
"""

from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig, Precision, TrunkConfig, transformer_block

FLOAT32 = Precision()


def marian(vocab: int = 58_101, *, dropout: float = 0.1, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return the model of opus-mt-en-de: 6+6 layers, D=512, 74 M parameters."""
    block = {
        "embed": 512, "heads": 8, "inner": 2048, "activation": "swish", "dropout": dropout, "init_std": 0.02,
        "precision": precision,
    }  # fmt: skip
    return Seq2SeqConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=512, position="sinusoidal_halves", max_length=512, dropout=dropout, init_std=0.02,
            precision=precision,
        ),
        encoder=TrunkConfig(block=transformer_block(**block), depth=6),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=6),
        output_bias=True,
    )  # fmt: skip
