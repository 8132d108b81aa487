"""An encoder: BERT, RoBERTa, DistilBERT and their kin are choices of its config; and its head for masked tokens.

Axes: B batch, T positions, D width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.models.head import ClassifierConfig, Head, HeadConfig
from flax_transformer.models.output import Output, output_table
from flax_transformer.nn import (
    Block,
    BlockConfig,
    Embedding,
    EmbeddingConfig,
    RelativeBias,
    RelativeConfig,
    apply_stack,
    init_stack,
    make_norm,
)
from flax_transformer.nn.check import check_positions
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.linear import Linear, initializer
from flax_transformer.ops import Mask, activation


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """An embedding and a stack of blocks that see everything."""

    embedding: EmbeddingConfig
    block: BlockConfig
    depth: int = 12
    relative: RelativeConfig | None = None
    """Relative positions, as biases that all layers share (T5)."""
    unroll: int | bool = 1
    remat: str = "none"

    def __post_init__(self):
        check_fields(self)
        if self.embedding.width != self.block.embed:
            raise ValueError(
                f"all parts must have one model width, got embedding={self.embedding.width}, block={self.block.embed}"
            )
        if self.block.cross:
            raise ValueError("an encoder attends to no memory, got block.cross=True")
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, got {self.depth}")


class Encoder(nnx.Module):
    """Hidden states of tokens that all see each other."""

    def __init__(self, cfg: EncoderConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embedding = Embedding(cfg.embedding, rngs=rngs)
        self.blocks = init_stack(lambda r: Block(cfg.block, rngs=r), cfg.depth, key=rngs.params())
        if cfg.block.norm_position == "pre":
            self.norm = make_norm(cfg.block, rngs=rngs)
        if cfg.relative is not None:
            self.relative = RelativeBias(
                cfg.relative, cfg.block.heads, causal=False, precision=cfg.block.precision, rngs=rngs
            )

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        mask: Mask | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Encode tokens.

        Args:
          mask: what is hidden, padding above all.
          types: of the tokens: 0 in the first sentence, 1 in the second.
          positions: of the tokens; 0, 1, … by default.
          key: for dropout; None means none.

        Raises:
          ValueError: positions for a model that has no use for them.
        """
        check_positions(positions, self.cfg)
        keys = (None, None) if key is None else jax.random.split(key)
        x = self.embedding(tokens, positions=positions, types=types, key=keys[0])
        bias = None if self.cfg.relative is None else self.relative(*2 * x.shape[-2:-1])
        x = apply_stack(
            self.blocks, x, mask=mask, bias=bias, positions=positions, key=keys[1], unroll=self.cfg.unroll,
            remat=self.cfg.remat,
        )  # fmt: skip
        return self.norm(x) if self.cfg.block.norm_position == "pre" else x

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        segments: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch.

        Args:
          lengths: of the rows; what comes after is padding, which nobody sees.
          segments: numbers of the documents packed in a row; tokens see those of their own alone.
          positions: of the tokens; 0, 1, … by default.
          types: of the tokens, as a call takes them.
          key: for dropout; None means none.
        """
        mask = None if lengths is None else Mask(lengths=lengths)
        if segments is not None:
            mask = Mask(segments=(segments, segments)) & mask
        return self(tokens, mask=mask, types=types, positions=positions, key=key)


def with_head(encoder: EncoderConfig, **head: Any) -> ClassifierConfig:
    """Put a head on an encoder, with its width, start and precision; `head` is what else a `HeadConfig` has.

    BERT's pooler is `with_head(encoder, outputs=0, pool="first", dense="tanh")`.
    """
    return ClassifierConfig(backbone=encoder, head=_head(encoder, **head))


def _head(encoder: EncoderConfig, **head: Any) -> HeadConfig:
    block = encoder.block
    start = {} if block.init_std is None else {"init_std": block.init_std}
    return HeadConfig(embed=block.embed, precision=block.precision, **start, **head)


@dataclass(frozen=True, kw_only=True)
class MaskedLMConfig:
    """An encoder that guesses hidden tokens (Devlin et al. 2019, https://arxiv.org/abs/1810.04805)."""

    encoder: EncoderConfig
    activation: str | None = None
    """After the dense layer; None: that of the encoder's blocks."""
    tied_output: bool = True
    """Whether the output layer is the embedding table."""
    next_sentence: bool = False
    """Whether it also guesses, from the first token, if one sentence follows the other."""

    def __post_init__(self):
        check_fields(self)
        activation(self.resolved_activation)

    @property
    def resolved_activation(self) -> str | Callable:
        """The activation after the dense layer, resolved."""
        return self.encoder.block.activation if self.activation is None else self.activation


class MaskedLM(nnx.Module):
    """A dense layer, its activation and norm, and an output layer, by default the embedding table; all with biases."""

    def __init__(self, cfg: MaskedLMConfig, *, rngs: nnx.Rngs):
        block, embedding = cfg.encoder.block, cfg.encoder.embedding
        self.cfg = cfg
        self.encoder = Encoder(cfg.encoder, rngs=rngs)
        width = embedding.embed  # of the output table, too
        self.dense = Linear(block.embed, width, kernel_init=initializer(block), rngs=rngs, **block.dtypes)
        self.norm = make_norm(block, width, rngs=rngs)
        bias = nnx.Param(jnp.zeros(embedding.vocab, block.dtypes["param_dtype"]))
        if cfg.tied_output:
            self.output_bias = bias
        else:
            self.head = Embedding(output_table(embedding), rngs=rngs)
            self.head.output_bias = bias
        if cfg.next_sentence:
            self.sentence = Head(_head(cfg.encoder, outputs=2, pool="first", dense="tanh"), rngs=rngs)

    def hidden_states(self, tokens: Int[Array, "*B T"], **inputs: Any) -> Float[Array, "*B T D"]:
        """Compute the encoder's hidden states from the inputs of a batch; arguments as `Encoder.hidden_states`'s."""
        return self.encoder.hidden_states(tokens, **inputs)

    def output(self, hidden: Float[Array, "*B T D"]) -> Output:
        """Give what logits of the tokens at those positions are made of."""
        x = self.norm(activation(self.cfg.resolved_activation)(self.dense(hidden)))
        if self.cfg.tied_output:
            return Output(x, self.encoder.embedding, self.output_bias[...])
        return Output(x, self.head, self.head.output_bias[...])

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        mask: Mask | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T V"]:
        """Compute the logits of the token at each position; arguments as `Encoder`'s."""
        return self.output(self.encoder(tokens, mask=mask, types=types, positions=positions, key=key)).logits()
