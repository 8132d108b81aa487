"""The output layer of every language model: products with a table, perhaps scaled, perhaps with a bias."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float, Int, Shaped

from flax_transformer.nn import EmbeddingConfig, OutputTable, make_norm
from flax_transformer.nn.linear import Linear, initializer
from flax_transformer.ops import activation, chunked_scores, soft_cap, widen
from flax_transformer.ops.embedding_table import lookup, settled, take_rows
from flax_transformer.ops.float32 import product


def output_table(cfg: EmbeddingConfig, outputs: int | None = None) -> EmbeddingConfig:
    """Return the config of an output table of its own: as many tokens if not said otherwise, no positions or types."""
    vocab = cfg.vocab if outputs is None else outputs
    return replace(cfg, vocab=vocab, position="none", types=0, norm=None, project=None, own_table=True)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Output:
    """Hidden states and what they are multiplied with: all that logits, or a loss without logits, need."""

    hidden: Any
    """[*B, T, D]."""
    embedding: Any
    """The `Embedding` whose table it is."""
    bias: Any = None
    """[V], or None."""
    cap: float | None = field(default=None, metadata={"static": True})
    """What logits are kept within, by a tanh: see `ops.soft_cap`."""

    def logits(self) -> Float[Array, "*B T V"]:
        """Multiply; logits are float32 or more, whatever the model computes in."""
        logits = self.embedding.attend(self.hidden)
        return soft_cap(logits if self.bias is None else logits + self.bias.astype(logits.dtype), self.cap)

    def logits_of(self, tokens: Int[Array, "*B N"]) -> Float[Array, "*B T N"]:
        """Compute the logits of some tokens alone, those of a row at every position of it."""
        found = product("...td,...nd->...tn", self.hidden, take_rows(self.embedding.rows, tokens))
        found = found if self.bias is None else found + widen(lookup(self.bias, tokens))[..., None, :]
        return soft_cap(found, self.cap)

    def scores(
        self, labels: Int[Array, "*B T"], weights: Shaped[Array, "*B T"] | None = None, **options: Any
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Sum the cross-entropy of labels, their weights and the weights of right guesses, without holding all logits.

        Args:
          options: `chunk`, `label_smoothing` and `z_loss` of `ops.chunked_cross_entropy`.
        """
        table, hidden, vocab = self.embedding.rows, self.hidden, self.embedding.cfg.vocab
        if isinstance(self.embedding, OutputTable) or self.embedding.finds_apart(labels.shape):
            table, hidden = settled(self.embedding.stored(), hidden)
        options |= {} if self.cap is None else {"cap": self.cap}
        return chunked_scores(hidden, table, labels, weights, bias=self.bias, vocab=vocab, **options)


class OutputDense:
    """A dense layer and a norm before the output layer, as BERT has them: what a model is besides."""

    def init_dense(self, block: Any, width: int, *, bias: bool = True, rngs: nnx.Rngs) -> None:
        """Make both, of the kind of the layers of a block, `width` wide as the output table is."""
        like, residual = block.feedforward, block.residual
        kinds = {"kernel_init": initializer(like), **like.precision.dtypes}
        self.dense = Linear(like.embed, width, use_bias=bias, rngs=rngs, **kinds)
        self.norm = make_norm(residual.norm, width, eps=residual.norm_eps, precision=residual.precision, rngs=rngs)

    def through_dense(self, hidden: Float[Array, "*B T D"], name: str | Callable) -> Float[Array, "*B T D"]:
        """Return what the output layer is given, by an activation of that name."""
        return self.norm(activation(name)(self.dense(hidden)))
