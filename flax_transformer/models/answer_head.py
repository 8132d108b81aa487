"""A head that answers questions: scores of answers from the pooled states of a text and its image, or images.

ViLT's (Kim et al. 2021, https://arxiv.org/abs/2102.03334) and LXMERT's (Tan & Bansal 2019,
https://arxiv.org/abs/1908.07490) are choices of its config.

Axes: B batch, I images of a text, S positions, D width, E answers.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.head import ClassifierConfig, Head, HeadConfig
from flax_transformer.nn import Precision, make_norm
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_at_least, check_fields, check_rates
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import dropout
from flax_transformer.ops.activation import gelu
from flax_transformer.ops.float32 import at_least_float32


@frozen
class AnswerHeadConfig:
    """BERT's pooler, a layer that is normalised and has GELU, and an output layer."""

    embed: int
    """D, the width of hidden states."""
    classes: int
    """E, answers."""
    inner: int
    """Width of the layer between."""
    images: int | None = None
    """I, images of a text, each with hidden states of its own, whose pooled ones are put side by side; None: one
    image, without an axis of its own."""
    norm_last: bool = False
    """Whether the norm is after GELU (LXMERT) and not before (ViLT)."""
    eps: float = 1e-5
    """Of the norm."""
    dropout: float = 0.0
    """Before the output layer."""
    init_std: float = 0.02
    """Standard deviation kernels start with."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    pool = "first"

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "classes", "inner", "images")
        check_at_least(self, 0, "eps", "init_std")
        check_rates(self, "dropout")

    @property
    def outputs(self) -> int:
        """E, as other heads call it."""
        return self.classes

    @property
    def pooler(self) -> HeadConfig:
        """What pools."""
        return HeadConfig(
            embed=self.embed, outputs=0, pool="first", dense="tanh", init_std=self.init_std, precision=self.precision
        )

    def build(self, rngs: nnx.Rngs) -> "AnswerHead":
        """Make the head."""
        return AnswerHead(self, rngs=rngs)


class AnswerScores(Module):
    """Scores of answers from pooled states."""

    def __init__(self, cfg: AnswerHeadConfig, *, rngs: nnx.Rngs):
        kinds = {"dtype": at_least_float32(cfg.precision.compute), "param_dtype": jnp.dtype(cfg.precision.params)}
        kinds["kernel_init"] = nnx.initializers.normal(cfg.init_std)
        self.cfg = cfg
        self.dense = Linear(cfg.embed * (cfg.images or 1), cfg.inner, rngs=rngs, **kinds)
        whole = replace(cfg.precision, compute=str(kinds["dtype"]))
        self.norm = make_norm("layer", cfg.inner, eps=cfg.eps, precision=whole, rngs=rngs)
        self.output = Linear(cfg.inner, cfg.classes, rngs=rngs, **kinds)

    def __call__(self, pooled: Float[Array, "*B D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B E"]:
        """Score the answers; `key` is for dropout."""
        x = self.dense(pooled)
        x = self.norm(gelu(x)) if self.cfg.norm_last else gelu(self.norm(x))
        return self.output(dropout(x, self.cfg.dropout, key))


class AnswerHead(Module):
    """Scores of answers from hidden states."""

    def __init__(self, cfg: AnswerHeadConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.pooler, self.scores = Head(cfg.pooler, rngs=rngs), AnswerScores(cfg, rngs=rngs)

    def __call__(self, hidden: Float[Array, "*I S D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B E"]:
        """Score, in float32 or more; `key` is for dropout.

        Raises:
          ValueError: hidden states of another number of images.
        """
        check_hidden(hidden, self.cfg.embed, "hidden")
        pooled, images = self.pooler(hidden), self.cfg.images
        if images is not None:
            if hidden.ndim < 3 or hidden.shape[-3] != images:
                raise ValueError(f"hidden states must be of {images} images a text, got shape {hidden.shape}")
            pooled = pooled.reshape(*pooled.shape[:-2], -1)
        return self.scores(pooled, key=key)


def answering(backbone: Any, answers: int, *, images: int | None = None, **options: Any) -> ClassifierConfig:
    """Put a head that answers on a backbone, with its width, start and precision.

    Args:
      options: other fields of `AnswerHeadConfig`.
    """
    like = backbone.block.feedforward
    start = {} if like.init_std is None else {"init_std": like.init_std}
    given = {"inner": 2 * like.embed if images is None else images * like.embed, **start, **options}
    head = AnswerHeadConfig(embed=like.embed, classes=answers, images=images, precision=like.precision, **given)
    return ClassifierConfig(backbone=backbone, head=head)
