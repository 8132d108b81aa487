"""What stands on top of a model to classify: sequences, tokens, the two ends of an answer, the best of several choices.

Axes: B batch, T positions, D width, E outputs.
"""

import math
from dataclasses import replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.models.padded import POOLED, Padded, padded, split_padded, with_padding
from flax_transformer.models.preset import abstract, module_of
from flax_transformer.models.protocol import Described
from flax_transformer.models.token_pool import TOKEN_POOLS, last_shown, pool_tokens
from flax_transformer.nn import NormConfig, Precision
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import make_norm_of
from flax_transformer.ops import Mask, activation, dropout, widen
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.ops.routing import over_tokens
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class HeadConfig:
    """A linear layer on the hidden states of every position or of one, perhaps with a dense layer before it."""

    embed: int
    """D, the width of hidden states."""
    outputs: int
    """Classes, or 2 for the ends of an answer, 1 for choices, 0 for what comes before alone (BERT's pooler)."""
    pool: Literal[
        "every", "first", "last", "mean", "first and mean", "weighted", "max", "sum over root length",
        "mean by position",
    ] = "every"  # fmt: skip
    """Of which position: every one, the first, the last that the caller names, the mean, the first and the mean side by
    side, a mean weighted by the softmax of a learned score of each position (Hassani et al. 2021), or what
    `TOKEN_POOLS` has."""
    skip: int = 0
    """How many positions a mean leaves out, or every one, from the first on."""
    norm: float | None = None
    """Epsilon of a LayerNorm after that; None: there is none."""
    dense: str | None = None
    """Activation of a dense layer before; None: no such layer."""
    dense_width: int | None = None
    """What the dense layer gives; None: D."""
    dense_bias: bool = True
    """Whether the dense layer adds one."""
    dense_norm: float | NormConfig | None = None
    """Epsilon of a LayerNorm after the activation of the dense layer, or a norm of another kind; None: no norm."""
    dropout: float = 0.0
    """Before the output layer."""
    dropout_first: bool = False
    """Whether it is before the dense layer too."""
    bias: bool = True
    """Whether the output layer adds one."""
    init_std: float = 0.02
    """Standard deviation kernels start with."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "dense_width")
        check_at_least(self, 0, "init_std", "norm", "skip")
        if self.outputs < 0 or (self.outputs == 0 and self.pool == "every" and self.dense is None):
            raise ValueError(
                f"a head needs outputs, a dense layer or a position, got outputs={self.outputs}, dense={self.dense}, "
                f"pool={self.pool!r}"
            )
        if not isinstance(self.dense_norm, NormConfig):
            check_at_least(self, 0, "dense_norm")
        if self.dense is None and self.dense_norm is not None:
            raise ValueError(f"a norm after a dense layer needs one, got dense=None, dense_norm={self.dense_norm}")
        if not (self.dense is None and self.norm is None) and self.pool == "first and mean":
            raise ValueError(f"a dense layer or norm is of one position, got one for pool={self.pool!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.dense is not None:
            activation(self.dense)

    @property
    def width(self) -> int:
        """How wide what it gives is."""
        return self.outputs or self.embed * (2 if self.pool == "first and mean" else 1)

    def build(self, rngs: nnx.Rngs) -> "Head":
        """Make the head."""
        return Head(self, rngs=rngs)


class Head(Module):
    """Scores from hidden states."""

    def __init__(self, cfg: HeadConfig, *, rngs: nnx.Rngs):
        # Scores of few classes nearly cancel in the gradients of a batch, and cost next to nothing in float32.
        kinds = {"dtype": at_least_float32(cfg.precision.compute), "param_dtype": jnp.dtype(cfg.precision.params)}
        kinds["kernel_init"] = nnx.initializers.normal(cfg.init_std)
        self.cfg = cfg
        wide = replace(cfg.precision, compute=str(kinds["dtype"]))
        if cfg.norm is not None:
            self.norm = make_norm_of(cfg.norm, cfg.embed, precision=wide, rngs=rngs)
        if cfg.dense is not None:
            self.dense = Linear(cfg.embed, cfg.dense_width or cfg.embed, use_bias=cfg.dense_bias, rngs=rngs, **kinds)
        if cfg.dense_norm is not None:
            self.dense_norm = make_norm_of(cfg.dense_norm, cfg.dense_width or cfg.embed, precision=wide, rngs=rngs)
        if cfg.pool == "weighted":
            self.score = Linear(cfg.embed, 1, use_bias=False, rngs=rngs, **kinds)  # a bias would change nothing
        if cfg.outputs:
            width = 2 * cfg.embed if cfg.pool == "first and mean" else cfg.embed
            width = width if cfg.dense is None else cfg.dense_width or width
            self.output = Linear(width, cfg.outputs, use_bias=cfg.bias, rngs=rngs, **kinds)

    def pool(
        self, hidden: Float[Array, "*B T D"] | Padded, last: Int[Array, "*B"] | None = None
    ) -> Float[Array, "..."]:
        """Choose the position, or average those that are not padding, and apply the norm and the dense layer."""
        cfg, (hidden, real) = self.cfg, split_padded(hidden)
        if cfg.pool == "last":
            real = jnp.ones(hidden.shape[:-1], bool) if real is None else real
            last = last_shown(real) if last is None else last
            hidden = jnp.take_along_axis(hidden, last[..., None, None], axis=-2)[..., 0, :]
        elif cfg.pool == "first":
            hidden = hidden[..., 0, :]
        elif cfg.pool == "weighted":
            hidden = hidden[..., cfg.skip :, :]
            scores = self.score(hidden)
            if real is not None:
                scores = jnp.where(real[..., cfg.skip :, None], scores, -jnp.inf)
                scores = jnp.where(real[..., cfg.skip :, None].any(-2, keepdims=True), scores, 0)
            hidden = jnp.sum(jax.nn.softmax(scores, axis=-2) * widen(hidden), axis=-2)
        elif cfg.pool.endswith("mean"):
            own = None if real is None else real[..., cfg.skip :]
            mean = over_tokens(widen(hidden[..., cfg.skip :, :]), own).astype(hidden.dtype)
            hidden = mean if cfg.pool == "mean" else jnp.concatenate([hidden[..., 0, :], mean], axis=-1)
        elif cfg.pool in TOKEN_POOLS:
            own = None if real is None else real[..., cfg.skip :]
            hidden = pool_tokens(cfg.pool, hidden[..., cfg.skip :, :], own).astype(hidden.dtype)
        else:
            hidden = hidden[..., cfg.skip :, :]
        hidden = hidden if cfg.norm is None else self.norm(hidden)
        hidden = hidden if cfg.dense is None else activation(cfg.dense)(self.dense(hidden))
        return hidden if cfg.dense_norm is None else self.dense_norm(hidden)

    def __call__(
        self,
        hidden: Float[Array, "*B T D"] | Padded,
        last: Int[Array, "*B"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "..."]:
        """Score, in float32 or more: [*B, T, E] of every position, or [*B, E] of one.

        Args:
          last: the position that `pool="last"` looks at; by default the very last that is not padding.
          key: for dropout; None means none.
        """
        states, real = split_padded(hidden)
        check_hidden(states, self.cfg.embed, "hidden")
        keys = split_keys(key)
        states = dropout(states, self.cfg.dropout, keys[0]) if self.cfg.dropout_first else states
        pooled = self.pool(states if real is None else Padded(states, real), last)
        return self.output(dropout(pooled, self.cfg.dropout, keys[1])) if self.cfg.outputs else pooled


@frozen
class ClassifierConfig:
    """A model without an output layer of its own, and a head."""

    backbone: Any
    """The config of an `Encoder`, a `Causal` or a `Seq2Seq`."""
    head: Any
    """A `HeadConfig`, or one that makes something else of hidden states, by `build(rngs)`."""

    def build(self, rngs: nnx.Rngs) -> "Classifier":
        """Make the model."""
        return Classifier(self, rngs=rngs)


def with_head(backbone: Any, **head: Any) -> ClassifierConfig:
    """Put a head on a backbone, with its width, start and precision; `head` is what else a `HeadConfig` has.

    BERT's pooler is `with_head(encoder, outputs=0, pool="first", dense="tanh")`.
    """
    return ClassifierConfig(backbone=backbone, head=head_of(backbone, **head))


def head_of(backbone: Any, **head: Any) -> HeadConfig:
    """Return a head's config that fits a backbone; options as `with_head`'s.

    The backbone's blocks have a feed-forward layer, or it says `embed`, `init_std` and `precision` itself.
    """
    like = backbone if hasattr(backbone, "embed") else backbone.block.feedforward
    start = {} if like.init_std is None else {"init_std": like.init_std}
    return HeadConfig(embed=like.embed, precision=like.precision, **start, **head)


class Classifier(Module):
    """A backbone with a head: `model.head(model.backbone(tokens, …))`."""

    layer_order = (Part("backbone"), "head")

    use = "classification"

    @classmethod
    def example_batch(cls, config: ClassifierConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as the backbone's, with classes as labels: one of each row, or of every position."""
        batch = module_of(config.backbone).example_batch(config.backbone, rows, length)
        shape = (rows,)
        if config.head.pool == "every":

            def score(model, inputs):
                return model.output(model.hidden_states(**inputs))

            shape = jax.eval_shape(score, abstract(config), batch["inputs"]).shape[:-1]
        labels = np.arange(math.prod(shape), dtype=np.int32).reshape(shape) % max(config.head.outputs, 1)
        return {**batch, "labels": labels, "weights": np.ones(shape, np.float32)}

    @classmethod
    def describe_batch(cls, config: ClassifierConfig, batch: dict[str, Any]) -> Described:
        """Count what the backbone is fed."""
        return module_of(config.backbone).describe_batch(config.backbone, batch)

    def __init__(self, cfg: ClassifierConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.backbone = cfg.backbone.build(rngs)
        self.head = cfg.head.build(rngs)

    def __call__(
        self, source: Shaped[Array, "..."], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "..."]:
        """Encode a source and let the head score it, in the type of hidden states, as the encoder of a `Seq2Seq` does.

        Args:
          mask: what of the source is padding.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        hidden = self.backbone(source, mask=mask, key=keys[0])
        states = with_padding(self.backbone, hidden, mask) if self._pools else hidden
        return self.head(states, key=keys[1]).astype(hidden.dtype)

    @property
    def _pools(self) -> bool:
        """Whether the head would look at padding if it were not told."""
        return getattr(self.cfg.head, "pool", None) in POOLED

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return what of the output is padding: as the backbone does."""
        return self.backbone.memory_mask(mask)

    def hidden_states(self, *inputs: Any, **named: Any) -> Float[Array, "*B T D"] | Padded:
        """Compute the backbone's hidden states from the inputs of a batch; arguments as its own `hidden_states`'s.

        For a head that looks at all positions, of rows that have `lengths`, they are `Padded`.
        """
        return self._marked(self.backbone.hidden_states(*inputs, **named), inputs, named)

    def _marked(self, hidden: Array, inputs: tuple, named: dict[str, Any]) -> Any:
        return padded(self.backbone, hidden, inputs, named) if self._pools else hidden

    def observe(self, *inputs: Any, **named: Any) -> tuple[Float[Array, "*B T D"] | Padded, dict[str, Any]]:
        """Compute hidden states by the statistics of the batch, of a backbone that can; new ones are beside."""
        hidden, statistics = self.backbone.observe(*inputs, **named)
        return self._marked(hidden, inputs, named), {"backbone": statistics}

    def output(
        self, hidden: Float[Array, "*B T D"] | Padded, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "..."]:
        """Score the classes, from the backbone's hidden states: [*B, T, E] of every position, or [*B, E] of one."""
        return self.head(hidden, key=key)
