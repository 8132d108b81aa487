"""How far layers of a student are from those of a teacher: terms that a `LayerLoss` adds up.

Axes: L layers, B rows, T S positions, D width, N heads, H head width.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.config import check_at_least
from flax_transformer.objective.distil import Asked
from flax_transformer.ops import widen
from flax_transformer.ops.attention.xla import attention_logits
from flax_transformer.train.mean import Mean

HIDDEN = -1e30
"""In place of the product with a position that is not seen: its exponential is 0, and differences are finite."""


@dataclass(frozen=True)
class BothLayers:
    """What a student has in each of its layers, and a teacher in those that were asked for."""

    student: Mapping[str, Any]
    """By name, [L, B, …]."""
    teacher: Mapping[str, Mapping[str, Any]]
    """By name and by number of the layer, [B, …]."""
    real: Bool[Array, "B T"]
    """Which positions are there, and are no padding."""
    project: Callable[[Array], Array]
    """Of the student's hidden states, to be compared with the teacher's."""

    def pairs(self, name: str, layers: tuple[tuple[int, int], ...]) -> Iterator[tuple[Array, Array]]:
        """Return the student's value and the teacher's for each pair of layers."""
        for own, theirs in layers:
            yield take_layer(self.student[name], own, name), self.teacher[name][str(theirs)]


def take_layer(values: Float[Array, "L ..."], number: int, name: str) -> Float[Array, "..."]:
    """Take what one layer has.

    Raises:
      ValueError: a layer that there is not.
    """
    if not -len(values) <= number < len(values):
        raise ValueError(f"{name} must be of the layers -{len(values)} … {len(values) - 1}, got {number}")
    return values[number]


@frozen
class LayerTerm:
    """What layers of a student differ from layers of a teacher, as a mean; a subclass says of what and how."""

    weight: float = 1.0
    """Factor."""
    layers: tuple[tuple[int, int], ...] = ((-1, -1),)
    """Which are compared, the student's and the teacher's, and added up. Layers are numbered as `transformers` numbers
    them: from 0 on, −1 is the last; of hidden states 0 is what the first layer is given."""

    name: ClassVar[str]
    """What it is reported as."""

    def __post_init__(self):
        check_at_least(self, 0, "weight")
        if not self.layers:
            raise ValueError("layers must be at least one pair, of the student's and the teacher's, got none")

    @property
    def values(self) -> tuple[str, ...]:
        """What of the layers is compared: `hidden_states`, `query`, `key`, `value`."""
        return ("hidden_states",)

    @property
    def asked(self) -> Asked:
        """What is asked of the teacher."""
        return tuple((name, theirs) for name in self.values for _, theirs in self.layers)

    def __call__(self, both: BothLayers) -> Mean:
        """Sum up, in float32 or more; the count is that of what is averaged over."""
        raise NotImplementedError


@frozen
class CosineEmbedding(LayerTerm):
    """One minus the cosine of the angle between hidden states, mean over positions (Sanh et al. 2019,
    https://arxiv.org/abs/1910.01108); by default of the last ones.
    """

    name: ClassVar[str] = "cosine_loss"

    def __call__(self, both: BothLayers) -> Mean:
        """Sum up over positions."""
        total = jnp.float32(0)
        for own, theirs in _states(both, self.layers):
            norms = jnp.sqrt((jnp.sum(own**2, -1) + 1e-12) * (jnp.sum(theirs**2, -1) + 1e-12))
            total += _sum_real(1 - jnp.sum(own * theirs, -1) / norms, both.real)
        return Mean(total, jnp.sum(both.real, dtype=jnp.float32))


@frozen
class HiddenStateError(LayerTerm):
    """Squared error of hidden states, mean over positions and width (Jiao et al. 2020,
    https://arxiv.org/abs/1909.10351).
    """

    name: ClassVar[str] = "hidden_loss"

    def __call__(self, both: BothLayers) -> Mean:
        """Sum up over positions."""
        total = jnp.float32(0)
        for own, theirs in _states(both, self.layers):
            total += _sum_real(jnp.mean((own - theirs) ** 2, -1), both.real)
        return Mean(total, jnp.sum(both.real, dtype=jnp.float32))


@frozen
class AttentionScoreError(LayerTerm):
    """Squared error of q kᵀ / √H before the softmax, mean over heads and pairs of positions (Jiao et al. 2020,
    https://arxiv.org/abs/1909.10351).
    """

    name: ClassVar[str] = "attention_loss"

    @property
    def values(self) -> tuple[str, ...]:
        """Queries and keys."""
        return ("query", "key")

    def __call__(self, both: BothLayers) -> Mean:
        """Sum up over pairs of positions."""
        pairs, total = both.real[:, :, None] & both.real[:, None, :], jnp.float32(0)
        for own, theirs in _products(both, "query", "key", self.layers):
            total += _sum_real(jnp.mean((own - theirs) ** 2, axis=1), pairs)
        return Mean(total, jnp.sum(pairs, dtype=jnp.float32))


Relation = Literal["query-key", "query-query", "key-key", "value-value"]


@frozen
class AttentionRelations(LayerTerm):
    """Kullback-Leibler divergence from the teacher's softmax(a bᵀ / √H), mean over heads and positions.

    `query-key` are the attention probabilities, with `value-value` MiniLM's loss of the last layer (Wang et al. 2020,
    https://arxiv.org/abs/2002.10957); `query-query`, `key-key` and `value-value` are MiniLMv2's (Wang et al. 2021,
    https://arxiv.org/abs/2012.15828). Relations are added up; padding is in none.
    """

    relations: tuple[Relation, ...] = ("query-key", "value-value")
    """a and b."""
    heads: int | None = None
    """How many heads queries, keys and values are cut into anew, all of them side by side, so that models may have
    other numbers of heads; None: those that both have."""

    name: ClassVar[str] = "relation_loss"

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "heads")
        if not self.relations:
            raise ValueError("relations must be at least one, got none")

    @property
    def values(self) -> tuple[str, ...]:
        """Those of query, key and value that there is a relation of."""
        return tuple(dict.fromkeys(part for each in self.relations for part in each.split("-")))

    def __call__(self, both: BothLayers) -> Mean:
        """Sum up over positions."""
        seen, total = both.real[:, None, None, :], jnp.float32(0)
        for relation in self.relations:
            for own, theirs in _products(both, *relation.split("-"), self.layers, self.heads):
                logs = [jax.nn.log_softmax(jnp.where(seen, each, HIDDEN)) for each in (own, theirs)]
                divergence = jnp.sum(jnp.exp(logs[1]) * (logs[1] - logs[0]), axis=-1)
                total += _sum_real(jnp.mean(divergence, axis=1), both.real)
        return Mean(total, jnp.sum(both.real, dtype=jnp.float32))


def _sum_real(values: Float[Array, "*B"], real: Bool[Array, "*B"]) -> Float[Array, ""]:
    return jnp.sum(jnp.where(real, values, 0))


def _states(both: BothLayers, layers: tuple[tuple[int, int], ...]) -> Iterator[tuple[Array, Array]]:
    for own, theirs in both.pairs("hidden_states", layers):
        own = both.project(own)
        if own.shape != theirs.shape:
            raise ValueError(f"hidden states must have the teacher's shape, {theirs.shape}, got {own.shape}")
        yield widen(own), widen(theirs)


def _products(
    both: BothLayers, left: str, right: str, layers: tuple[tuple[int, int], ...], heads: int | None = None
) -> Iterator[tuple[Float[Array, "B N T S"], Float[Array, "B N T S"]]]:
    """Return the products of two of query, key and value, over the square root of a head's width."""
    for one, other in zip(both.pairs(left, layers), both.pairs(right, layers), strict=True):
        own, theirs = (
            attention_logits(*(widen(_cut(each, heads)) for each in pair)) for pair in zip(one, other, strict=True)
        )
        if own.shape != theirs.shape:
            raise ValueError(
                f"student and teacher must have as many heads, got {own.shape[1]} and {theirs.shape[1]}; relations may "
                "be of others (heads)"
            )
        yield own, theirs


def _cut(x: Float[Array, "B T N H"], heads: int | None) -> Float[Array, "B T _ _"]:
    width = math.prod(x.shape[-2:])
    if heads is not None and width % heads:
        raise ValueError(f"heads must divide the width of queries, keys and values, got {heads} of {width}")
    return x if heads is None else x.reshape(*x.shape[:-2], heads, width // heads)
