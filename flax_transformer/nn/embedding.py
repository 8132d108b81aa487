"""Token embeddings with positions, and the output layer that shares their table."""

import math
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_embeddings, check_ids, check_length
from flax_transformer.nn.config import Precision, check_at_least, check_fields, check_rates
from flax_transformer.nn.linear import Linear, flat_dot_general
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import NormConfig, make_norm_of
from flax_transformer.nn.quantized import Quantized
from flax_transformer.ops import (
    dropout,
    lookup,
    multiply_rows,
    sinusoidal,
    sinusoidal_halves,
    sinusoidal_spanning,
    spread,
    take_rows,
    widen,
)
from flax_transformer.ops.embedding_table import exchanged, sharing
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.ops.mask_field import check_broadcast
from flax_transformer.parallel import constrain

SINUSOIDS = {
    "sinusoidal": sinusoidal, "sinusoidal_halves": sinusoidal_halves, "sinusoidal_spanning": sinusoidal_spanning,
}  # fmt: skip


LARGE = 2**30
"""Bytes of a table in float32 from which it is large: a step of GPT-2, whose table has 0.15 GiB, keeps less without."""


@frozen
class EmbeddingConfig:
    """Token embeddings: vocabulary V, width D, and how positions are told."""

    vocab: int
    """V, the number of tokens."""
    embed: int
    """D, the width of the tables."""
    multiple: int = 1
    """The token table is rounded up to a multiple of so many rows, which split over devices; there are no logits of
    rows after the vocabulary's."""
    position: Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_spanning", "learned", "none"] = "sinusoidal"
    """How positions are encoded: fixed sinusoids (sines and cosines interleaved, in halves, or spanning `max_length`),
    a learned table, or not at all."""
    max_length: int = 1024
    """Positions of a learned table; sinusoids have no limit."""
    offset: int = 0
    """Rows of a learned table before that of position 0, or what the first position of sinusoids is. Of those that span
    `max_length`, which are fairseq's, the token of the number before it is padding, and has no position."""
    types: int | Literal["token"] = 0
    """Kinds of tokens, each with an embedding that is added (BERT's first and second sentence); "token": types are
    tokens themselves, looked up in their table (GPT-2)."""
    own_table: bool = True
    """Without one, tokens are looked up in the table of another embedding, which each call is given."""
    norm: float | NormConfig | None = None
    """Epsilon of a LayerNorm after the sum, before dropout, or a norm of another kind; None: no norm."""
    project: int | None = None
    """Width of a linear layer at the end, where the model is of another than the tables (ELECTRA); None: no layer."""
    scaled: bool = True
    """Multiply token embeddings by sqrt(D) (Vaswani et al. 2017, §3.4)."""
    dropout: float = 0.0
    """On the sum."""
    init_std: float | None = None
    """Standard deviation tables start with; None: 1 / sqrt(D)."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    @property
    def width(self) -> int:
        """Of what comes out."""
        return self.embed if self.project is None else self.project

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 0, *(() if isinstance(self.norm, NormConfig) else ("norm",)), "init_std")
        if self.offset < 0 or (self.types != "token" and self.types < 0):
            raise ValueError(f"offset and types must not be negative, got {self.offset} and {self.types}")
        for name in ("vocab", "embed", "multiple", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        check_rates(self, "dropout")
        if self.position.startswith("sinusoidal") and self.embed % 2:
            raise ValueError(f"sinusoidal positions need an even width, got D={self.embed}")


class Embedding(Module):
    """Token and position embeddings, added, with dropout; `attend` is the tied output layer."""

    def __init__(self, cfg: EmbeddingConfig, *, rngs: nnx.Rngs):
        kinds = cfg.precision.dtypes
        paper = nnx.initializers.variance_scaling(1.0, "fan_out", "normal")  # standard deviation 1/sqrt(D)
        init = paper if cfg.init_std is None else nnx.initializers.normal(cfg.init_std)

        def table(rows: int) -> nnx.Embed:
            return nnx.Embed(rows, cfg.embed, embedding_init=init, rngs=rngs, **kinds)

        self.cfg = cfg
        if cfg.own_table:
            self.token = table(-(-cfg.vocab // cfg.multiple) * cfg.multiple)
        if cfg.position == "learned":
            self.position = table(cfg.max_length + cfg.offset)
        if cfg.types and cfg.types != "token":
            self.type = table(cfg.types)
        if cfg.norm is not None:
            self.norm = make_norm_of(cfg.norm, cfg.embed, precision=cfg.precision, rngs=rngs)
        if cfg.project is not None:
            self.project = Linear(cfg.embed, cfg.project, kernel_init=init, rngs=rngs, **kinds)

    def __call__(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T D"],
        *,
        positions: Int[Array, "*#B T"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        table: "Embedding | None" = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T W"]:
        """Embed token ids; W is D, or what it is projected to.

        An id that a table has no row for, be it of a token, a position or a type, gives NaN.

        Args:
          tokens: ids, or embeddings in their place, as `embed` gives them; positions, types and the norm are added.
          positions: of the tokens; 0, 1, … by default.
          types: of the tokens, where there are types; 0 by default, and none where they are tokens themselves.
          table: whose token table to look up in; its own by default.
          key: for dropout; None means none.

        Raises:
          ValueError: when there are more tokens than a learned table has positions, types where there are none,
            embeddings of another width, or shapes that do not fit.
        """
        cfg, embedded = self.cfg, jnp.issubdtype(getattr(tokens, "dtype", bool), jnp.floating)
        tokens, positions, types = self._checked(tokens, positions, types, table)
        length = tokens.shape[-2 if embedded else -1]
        if cfg.position == "learned":
            check_length(length, cfg.max_length)
        if positions is None:
            positions = jnp.arange(length)
        # Added up in float32, rounded once; so their gradients are too, also where one row serves the whole batch.
        if embedded:
            x = widen(constrain(tokens, "batch", "length", None))
        else:
            tokens = constrain(tokens, "batch", "length")
            x = self.embed(tokens, table=table)
        if cfg.position == "learned":
            places = self.position.embedding.get_value()
            take = places.take if isinstance(places, Quantized) else partial(lookup, places)
            x = x + take(positions + cfg.offset)
        elif cfg.position in SINUSOIDS:
            places = SINUSOIDS[cfg.position](positions + cfg.offset, cfg.embed)
            if cfg.position == "sinusoidal_spanning" and cfg.offset and not embedded:
                places = jnp.where((tokens == cfg.offset - 1)[..., None], 0, places)
            x = x + places
        if cfg.types == "token":
            x = x if types is None else x + take_rows(self.rows, types)
        elif cfg.types:
            rows = self.type.embedding[...]
            x = x + (rows[0] if types is None else lookup(rows, types))
        x = x if cfg.norm is None else self.norm(x)
        x = dropout(x.astype(cfg.precision.residual), cfg.dropout, key)
        return x if cfg.project is None else self.project(x)

    def embed(self, tokens: Int[Array, "*B T"], *, table: "Embedding | None" = None) -> Float[Array, "*B T D"]:
        """Embed tokens alone, scaled where the model scales them: what may stand in their place in a call.

        In float32, which a call rounds once at its end.

        Args:
          table: whose token table to look up in; its own by default.
        """
        x = widen(constrain((self if table is None else table).take(tokens), "batch", "length", None))
        x = checkpoint_name(x, "token_embedding")
        return x * math.sqrt(self.cfg.embed) if self.cfg.scaled else x

    def _checked(self, tokens: Array, positions: Array | None, types: Array | None, table: Any) -> list[Array | None]:
        """Raise ValueError for what does not fit; send ids before a table, which count from its end, beyond it."""
        if types is not None and not self.cfg.types:
            raise ValueError("an embedding without types must not be given any, got types of tokens")
        if table is None and not self.cfg.own_table:
            raise ValueError("an embedding with own_table=False needs the `table` of another at each call, got none")
        if jnp.issubdtype(getattr(tokens, "dtype", bool), jnp.floating):
            check_embeddings(tokens, self.cfg.embed)
            return [tokens, *self._checked(jnp.zeros(tokens.shape[:-1], jnp.int32), positions, types, self)[1:]]
        checked, first = [], {"tokens": 0, "types": 0}
        if self.cfg.position == "learned":
            first["positions"] = -self.cfg.offset
        for what, ids in (("tokens", tokens), ("positions", positions), ("types", types)):
            if ids is not None:
                check_ids(what, ids)
                check_broadcast(what, ids.shape, tokens.shape)
                ids = ids.astype(jnp.promote_types(ids.dtype, jnp.int32))
                ids = jnp.where(ids < first[what], 2**30, ids) if what in first else ids
            checked.append(ids)
        return checked

    @property
    def rows(self) -> Float[Array, "*n V D"]:
        """The token table in the dtype of computing; [n, V, D] after `own_tables`, one for each device."""
        return self.spread[...] if hasattr(self, "spread") else self.stored()

    def stored(self) -> Float[Array, "V D"]:
        """Return the token table in the dtype of computing as it lies on the devices, after `own_tables` too."""
        # Without a word its gradient would be whole on devices that split the vocabulary.
        table = self.token.embedding.get_value()
        table = table.dequantize() if isinstance(table, Quantized) else table
        return constrain(table.astype(self.token.dtype), "vocab", "embed")

    def take(self, tokens: Int[Array, "*B"]) -> Float[Array, "*B D"]:
        """Look up tokens in the table alone."""
        table = self.token.embedding.get_value()
        if isinstance(table, Quantized):
            return table.take(tokens).astype(self.token.dtype)
        return take_rows(self.stored() if self.finds_apart(tokens.shape) else self.rows, tokens)

    def finds_apart(self, shape: tuple[int, ...]) -> bool:
        """Return whether tokens of a shape are looked up where the columns of the table lie, as `ops.take_rows` does.

        No device has a gradient as large as the table then, which all uses of `rows` have between them. Of a table that
        logits are products with, that pays where it is large.
        """
        rows, width = self.token.embedding.shape
        apart = getattr(self, "alone", False) or 4 * rows * width >= LARGE
        return apart and bool(exchanged((rows, width), shape))

    def attend(self, x: Float[Array, "*B T D"]) -> Float[Array, "*B T V"]:
        """Compute logits, float32 or more, as products with the token embeddings (Press & Wolf 2017)."""
        x, table = x.astype(self.token.dtype), self.token.embedding.get_value()
        if isinstance(table, Quantized):
            return table.attend(x)[..., : self.cfg.vocab]
        if not hasattr(self, "columns"):
            return multiply_rows(self.rows, x)[..., : self.cfg.vocab]
        columns = self.columns[...].astype(x.dtype)
        return flat_dot_general(
            x, columns, (((x.ndim - 1,), (0,)), ((), ())), preferred_element_type=at_least_float32(x.dtype)
        )

    def for_decoding(self) -> "Embedding":
        """Copy with the table transposed beside it, as decoding on a CPU wants to multiply with it."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        if isinstance(self.token.embedding.get_value(), Quantized):
            return copy
        copy.columns = nnx.Param(self.token.embedding[: self.cfg.vocab].T)
        return copy


class OutputTable(Embedding):
    """A table of a model's own for its logits: nothing is looked up in it, and a loss uses it once."""


def own_tables(model: Any) -> Any:
    """Copy a model so that each device of the mesh in context has the token tables whole, for all their uses.

    A table that is looked up in twice and multiplied with is gathered once, and its gradients are summed over devices
    once, for each call of an objective, which does this first. In return a device has the whole table, and the sum of
    its gradients, until the backward pass ends. Few tokens do without: see `finds_apart`. Without a mesh nothing
    changes.

    Args:
      model: a pytree with `Embedding`s in it.
    """
    if not sharing():
        return model
    parts = jax.tree.leaves(model, is_leaf=lambda part: isinstance(part, Embedding))
    alone = any(isinstance(part, OutputTable) for part in parts)

    def own(part: Any) -> Any:
        if not isinstance(part, Embedding) or isinstance(part, OutputTable) or not part.cfg.own_table:
            return part
        copy = jax.tree.map(lambda leaf: leaf, part)
        copy.spread, copy.alone = nnx.Param(spread(part.rows)), alone  # looked up in, not multiplied with
        return copy

    return jax.tree.map(own, model, is_leaf=lambda part: isinstance(part, Embedding))
