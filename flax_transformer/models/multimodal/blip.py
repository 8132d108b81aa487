"""BLIP: a ViT, and BERTs that attend to what it makes of an image: to write what is there, to answer questions, to
tell whether a text belongs to it (Li et al. 2022, https://arxiv.org/abs/2201.12086).

Axes: B texts, T positions, D width.
"""

import math
from typing import Any

from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.head import ClassifierConfig, Head, HeadConfig, head_of, with_head
from flax_transformer.models.multimodal.grounded import GroundedConfig
from flax_transformer.models.multimodal.retrieval import RetrievalConfig
from flax_transformer.models.multimodal.towers import TwoTowersConfig
from flax_transformer.models.seq2seq import Seq2SeqConfig
from flax_transformer.models.vision.vit import ViTConfig
from flax_transformer.nn import EmbeddingConfig, PatchConfig, Precision, TrunkConfig, transformer_block

FLOAT32 = Precision()
EPS = 1e-5
SCALE = math.exp(2.6592)
"""What two towers multiply cosines by, to begin with."""


@frozen
class TwiceNormedConfig(HeadConfig):
    """A head that normalises what it is given before it takes one position, and normalises that again."""

    def build(self, rngs: Any) -> "TwiceNormed":
        """Make the head."""
        return TwiceNormed(self, rngs=rngs)


class TwiceNormed(Head):
    """Scores from hidden states, by one norm that is applied twice."""

    def pool(self, hidden: Float[Array, "*B T D"], last: Int[Array, "*B"] | None = None) -> Float[Array, "..."]:
        """Choose the position and apply norm and dense layer, without dropout."""
        return super().pool(self.norm(hidden), last)


def blip_vision(
    *, image: int = 384, patch: int = 16, embed: int = 768, heads: int = 12, depth: int = 12, **options: Any
) -> ViTConfig:
    """Return the encoder of images, a ViT.

    Args:
      options: `precision`, and other fields of `ViTConfig`.
    """
    precision = options.pop("precision", FLOAT32)
    return ViTConfig(
        patches=PatchConfig(
            embed=embed, image=(image, image), patch=(patch, patch), init_std=0.02, precision=precision
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=4 * embed, norm_eps=EPS, norm_position="pre", activation="gelu",
            init_std=0.02, precision=precision,
        ),
        depth=depth,
        **options,
    )  # fmt: skip


def blip_text(
    memory: int, *, vocab: int = 30_524, embed: int = 768, heads: int = 12, depth: int = 12, **options: Any
) -> EncoderConfig:
    """Return the encoder of texts: BERT's, whose blocks attend to an image too where there is one.

    Args:
      memory: width of an image's states.
      options: `precision`, `dropout`, and `length`, the positions there are.
    """
    precision, dropout = options.get("precision", FLOAT32), options.get("dropout", 0.0)
    return EncoderConfig(
        embedding=EmbeddingConfig(
            vocab=vocab, embed=embed, position="learned", max_length=options.get("length", 512), norm=1e-12,
            scaled=False, dropout=dropout, init_std=0.02, precision=precision,
        ),
        block=transformer_block(
            embed=embed, heads=heads, inner=4 * embed, norm_eps=1e-12, activation="gelu", dropout=dropout,
            attention_dropout=dropout, init_std=0.02, precision=precision,
            cross={"memory": memory, "optional": True},
        ),
        depth=depth,
    )  # fmt: skip


def blip_writer(encoder: ViTConfig | GroundedConfig, text: EncoderConfig) -> Seq2SeqConfig:
    """Return the causal decoder of an encoder's outputs: a text's blocks without sight of later tokens, BERT's head."""
    return Seq2SeqConfig(
        embedding=text.embedding,
        encoder=encoder,
        decoder=TrunkConfig(block=text.block, depth=text.depth),
        output_bias=True,
        output_dense=text.block.feedforward.activation,
    )


def blip_towers(vision: ViTConfig, text: EncoderConfig, width: int) -> TwoTowersConfig:
    """Return two towers of an image's encoder without a norm at its end and a text's, in a space of that width."""
    head = head_of(vision, outputs=width, pool="first", norm=vision.block.residual.norm_eps, bias=False)
    return TwoTowersConfig(
        text=with_head(text, outputs=width, pool="first", dense="tanh", bias=False),
        vision=ClassifierConfig(backbone=vision, head=TwiceNormedConfig(**vars(head))),
        scale=SCALE,
    )


LARGE = {"embed": 1024, "heads": 16, "depth": 24}


def blip_caption_base(vocab: int = 30_524, *, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return BLIP with a ViT-B/16 to write what is on an image of 384 × 384: 224.0 M parameters."""
    return blip_writer(blip_vision(precision=precision), blip_text(768, vocab=vocab, precision=precision))


def blip_caption_large(vocab: int = 30_524, *, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return BLIP with a ViT-L/16 to write what is on an image of 384 × 384: 446.3 M parameters."""
    return blip_writer(blip_vision(precision=precision, **LARGE), blip_text(1024, vocab=vocab, precision=precision))


def blip_answer_base(vocab: int = 30_524, *, precision: Precision = FLOAT32) -> Seq2SeqConfig:
    """Return BLIP with a ViT-B/16 to answer questions about an image of 384 × 384: 361.2 M parameters."""
    text = blip_text(768, vocab=vocab, precision=precision)
    return blip_writer(GroundedConfig(vision=blip_vision(precision=precision), text=text), text)


def blip_retrieval_base(vocab: int = 30_524, *, precision: Precision = FLOAT32) -> RetrievalConfig:
    """Return BLIP with a ViT-B/16 to match texts and images of 384 × 384: 223.7 M parameters."""
    text = blip_text(768, vocab=vocab, precision=precision)
    return RetrievalConfig(encoder=GroundedConfig(vision=blip_vision(precision=precision), text=text))


def blip_retrieval_large(vocab: int = 30_524, *, precision: Precision = FLOAT32) -> RetrievalConfig:
    """Return BLIP with a ViT-L/16 to match texts and images of 384 × 384: 446.1 M parameters."""
    text = blip_text(1024, vocab=vocab, precision=precision)
    return RetrievalConfig(encoder=GroundedConfig(vision=blip_vision(precision=precision, **LARGE), text=text))
