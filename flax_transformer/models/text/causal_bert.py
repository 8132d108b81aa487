"""BERT and its kin as decoders (Rothe et al. 2020, https://arxiv.org/abs/1907.12461): each token sees the past alone.

The output layer has BERT's dense layer and norm before it.

Axes: B batch, T positions, D width.
"""

from collections.abc import Callable
from dataclasses import replace

from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.models.causal import Causal, CausalConfig
from flax_transformer.models.encoder import EncoderConfig
from flax_transformer.models.output import Output, OutputDense
from flax_transformer.nn import AttentionConfig
from flax_transformer.ops import activation


@frozen
class CausalBertConfig(CausalConfig):
    """A trunk that sees the past, and an output layer behind a dense one."""

    output_dense: str | Callable = "gelu"
    """Activation of the dense layer before the output layer, after which there is a norm."""

    def __post_init__(self):
        super().__post_init__()
        activation(self.output_dense)

    def build(self, rngs: nnx.Rngs) -> "CausalBert":
        """Make the model."""
        return CausalBert(self, rngs=rngs)


class CausalBert(OutputDense, Causal):
    """A language model that goes on as `Causal` does."""

    layer_order = (*Causal.layer_order, "dense", "norm")

    def __init__(self, cfg: CausalBertConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.init_dense(cfg.block, cfg.embedding.embed, rngs=rngs)

    def output(self, hidden: Float[Array, "*B T D"]) -> Output:
        """Return what logits are made of."""
        return super().output(self.through_dense(hidden, self.cfg.output_dense))


def as_decoder(encoder: EncoderConfig, dense: str | Callable | None = None) -> CausalBertConfig:
    """Return an encoder as a decoder; attention in blocks, which has no past, becomes attention to all of it.

    Args:
      dense: activation of the dense layer before the output layer; the blocks' own by default.
    """
    attention = encoder.block.attention
    plain = attention if type(attention) is AttentionConfig else AttentionConfig.like(attention)
    return CausalBertConfig(
        embedding=encoder.embedding, block=replace(encoder.block, attention=plain), depth=encoder.depth,
        output_bias=True, output_dense=encoder.block.feedforward.activation if dense is None else dense,
    )  # fmt: skip
