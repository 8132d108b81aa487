"""Sentence encoders: an encoder or decoder of tokens, whose hidden states are pooled into one vector for each text
(Reimers & Gurevych 2019, https://arxiv.org/abs/1908.10084).

Axes: B texts, T positions, D width of hidden states, E width of vectors.
"""

from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import Classifier
from flax_transformer.models.padded import Padded, split_padded
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.models.token_pool import pool_tokens
from flax_transformer.nn import Precision
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import activation
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.ops.norm import unit

Pool = Literal["first", "max", "mean", "sum over root length", "mean by position", "last"]


@frozen
class DenseConfig:
    """A linear layer on a vector, and its activation."""

    width: int
    """What it gives."""
    activation: str = "tanh"
    """After it; identity: none."""
    bias: bool = True
    """Whether it adds one."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "width")
        activation(self.activation)


@frozen
class SentenceHeadConfig:
    """How hidden states become one vector: pooled in one way or several side by side, dense layers, length 1."""

    embed: int
    """D, the width of hidden states."""
    pools: tuple[Pool, ...] = ("mean",)
    """Names in `TOKEN_POOLS`."""
    include_prompt: bool = True
    """Whether the tokens of a prompt before the text are pooled too."""
    dense: tuple[DenseConfig, ...] = ()
    """Layers after that."""
    normalise: bool = False
    """Whether vectors are divided by their length in the end."""
    init_std: float = 0.02
    """Standard deviation kernels start with."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed")
        check_at_least(self, 0, "init_std")
        if not self.pools:
            raise ValueError("a sentence's head needs at least one way to pool, got none")

    pool = "sentence"
    outputs = 0

    @property
    def widths(self) -> tuple[int, ...]:
        """How wide what is pooled is, and what each dense layer gives."""
        return (self.embed * len(self.pools), *(each.width for each in self.dense))

    @property
    def width(self) -> int:
        """E."""
        return self.widths[-1]

    def build(self, rngs: nnx.Rngs) -> "SentenceHead":
        """Make the head."""
        return SentenceHead(self, rngs=rngs)


class SentenceHead(Module):
    """Hidden states in, one vector out."""

    def __init__(self, cfg: SentenceHeadConfig, *, rngs: nnx.Rngs):
        kinds = {"dtype": at_least_float32(cfg.precision.compute), "param_dtype": jnp.dtype(cfg.precision.params)}
        kinds["kernel_init"] = nnx.initializers.normal(cfg.init_std)
        self.cfg = cfg
        for i, layer in enumerate(cfg.dense):
            made = Linear(cfg.widths[i], layer.width, use_bias=layer.bias, rngs=rngs, **kinds)
            setattr(self, f"dense_{i}", made)

    def __call__(
        self, hidden: Float[Array, "*B T D"] | Padded, *, prompt: Any = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B E"]:
        """Embed texts, in float32 or more.

        Args:
          prompt: how many tokens before each text are a prompt, for a head that does not pool them.
          key: changes nothing; other heads have a use for it.
        """
        cfg, (hidden, real) = self.cfg, split_padded(hidden)
        check_hidden(hidden, cfg.embed, "hidden")
        leave_out = None if cfg.include_prompt else prompt
        x = jnp.concatenate([pool_tokens(pool, hidden, real, leave_out=leave_out) for pool in cfg.pools], axis=-1)
        for i, layer in enumerate(cfg.dense):
            x = activation(layer.activation)(getattr(self, f"dense_{i}")(x))
        return unit(x) if cfg.normalise else x


@frozen
class SentenceEncoderConfig:
    """A model of tokens, and how its hidden states become one vector."""

    backbone: Any
    """The config of an `Encoder`, a `Causal`, or of a `Classifier` with a pooler that is not asked."""
    head: SentenceHeadConfig
    """How a vector is made of hidden states."""

    def __post_init__(self):
        check_fields(self)

    def build(self, rngs: nnx.Rngs) -> "SentenceEncoder":
        """Make the model."""
        return SentenceEncoder(self, rngs=rngs)


def sentence_encoder(backbone: Any, **head: Any) -> SentenceEncoderConfig:
    """Put the head of a sentence encoder on a backbone, with its width, start and precision.

    Args:
      head: what else a `SentenceHeadConfig` has.
    """
    inner = getattr(backbone, "backbone", backbone)
    like = inner if hasattr(inner, "embed") else inner.block.feedforward
    start = {} if like.init_std is None else {"init_std": like.init_std}
    return SentenceEncoderConfig(
        backbone=backbone, head=SentenceHeadConfig(embed=like.embed, precision=like.precision, **{**start, **head})
    )


class SentenceEncoder(Classifier):
    """`model.output(model.hidden_states(tokens, lengths=…))` are vectors of texts.

    Objectives of sentences take several texts a row, [B, C, T]: a text, one that belongs to it, others that do not.
    """

    use = "sentence-similarity"

    @classmethod
    def example_batch(cls, config: SentenceEncoderConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B pairs of texts."""
        one = module_of(config.backbone).example_batch(config.backbone, 2 * rows, length)["inputs"]
        inputs = {name: value.reshape(rows, 2, *value.shape[1:]) for name, value in one.items()}
        return {"inputs": inputs, "labels": np.linspace(0, 1, rows, dtype=np.float32), "weights": np.ones(rows, "f4")}

    @classmethod
    def describe_batch(cls, config: SentenceEncoderConfig, batch: dict[str, Any]) -> Described:
        """Count the tokens of all texts."""
        tokens = batch["inputs"]["tokens"]
        flat = {**batch, "inputs": {"tokens": tokens.reshape(-1, tokens.shape[-1])}}
        return module_of(config.backbone).describe_batch(config.backbone, flat)

    def __init__(self, cfg: SentenceEncoderConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.backbone = cfg.backbone.build(rngs)
        self.head = cfg.head.build(rngs)

    @property
    def _pools(self) -> bool:
        return True

    def output(
        self, hidden: Float[Array, "*B T D"] | Padded, *, prompt: Any = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B E"]:
        """Embed texts, from the backbone's hidden states; arguments as the head's."""
        return self.head(hidden, prompt=prompt, key=key)
