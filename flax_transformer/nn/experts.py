"""A mixture of experts in the place of a feed-forward layer: each token goes to a few of many (Shazeer et al. 2017,
https://arxiv.org/abs/1701.06538).

Axes: B rows, T positions, D width, F feed-forward width, E experts, A experts that a token is sent to, Q places of an
expert.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_hidden, check_single
from flax_transformer.nn.chosen_experts import by_choice
from flax_transformer.nn.config import check_at_least, shared_fields
from flax_transformer.nn.feedforward import FeedForward, FeedForwardConfig
from flax_transformer.nn.linear import Linear, Product, initializer
from flax_transformer.nn.module import Module
from flax_transformer.ops import balance_loss, route, router_z_loss, widen
from flax_transformer.ops.routing import over_tokens, seats_of, send, visitors
from flax_transformer.ops.row_random import drawn, rows_of
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import axis_rules, constrain
from flax_transformer.parallel.axis import axis_to_mesh


@frozen
class ExpertsConfig(FeedForwardConfig):
    """E feed-forward layers of the fields they share, and a router that sends each token to A of them.

    Mixtral's form is the default; Switch's is `active=1, normalized=False, capacity=1.25`.
    """

    experts: int
    """E, how many there are."""
    active: int = 2
    """A, how many a token is sent to."""
    capacity: float | None = None
    """How many tokens of a row an expert takes, as a multiple of its even share; what comes later is dropped, and goes
    on by the residual alone. None: nothing is dropped, and each expert computes the tokens that chose it."""
    normalized: bool = True
    """Whether the weights of a token's experts add up to 1, or are the router's probabilities themselves."""
    jitter: float = 0.0
    """How far from 1 the random factors are that what the router sees is multiplied by, while training."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "experts", "active")
        check_at_least(self, 0, "jitter")
        if self.active > self.experts:
            raise ValueError(f"a token is sent to at most E={self.experts} experts, got active={self.active}")
        if self.capacity is not None and not self.capacity > 0:
            raise ValueError(f"the capacity of an expert must be above 0, got {self.capacity}")

    @property
    def expert(self) -> FeedForwardConfig:
        """What each of the experts is."""
        return FeedForwardConfig(**shared_fields(FeedForwardConfig, self))

    def build(self, rngs: nnx.Rngs) -> "Experts":
        """Make the layer."""
        return Experts(self, rngs=rngs)


class Experts(Module):
    """E experts, which are one `FeedForward` whose leaves have a leading E, and the router before them.

    On a mesh that splits `experts` each device has its own of them. Without a capacity their devices gather the tokens
    (`by_choice`); with one every row is routed by itself, and tokens go to the experts and come back, all to all.
    """

    def __init__(self, cfg: ExpertsConfig, *, rngs: nnx.Rngs):
        expert, kinds = cfg.expert, cfg.precision.dtypes
        self.cfg = cfg
        self.router = Linear(
            cfg.embed, cfg.experts, use_bias=False, kernel_init=initializer(cfg), dot_general=Product(),
            rngs=rngs, **kinds | {"dtype": jnp.promote_types(kinds["dtype"], jnp.float32)},
        )  # fmt: skip
        keys = jax.random.split(rngs.params(), cfg.experts)
        self.experts = jax.vmap(lambda key: FeedForward(expert, rngs=nnx.Rngs(key)))(keys)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        real: Bool[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Apply each token's experts and add up what they make of it, weighted; arguments as `observe`'s."""
        return self.observe(x, real=real, key=key)[0]

    def observe(
        self,
        x: Float[Array, "*B T D"],
        *,
        real: Bool[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B T D"], dict[str, Float[Array, "*B"]]]:
        """Apply the layer; give beside, of each row, what says how it was routed.

        That is `balance` and `router_z`, to be minimised along with the objective (see `ops.balance_loss` and
        `ops.router_z_loss`), and `dropped`, the share of its tokens' visits to experts that found no place.

        Args:
          real: which tokens are no padding, which takes no places and counts nowhere; None: all.
          key: for dropout and jitter; None means none.
        """
        check_hidden(x, self.cfg.embed)
        check_single(self.router.kernel, 2)
        keys = split_keys(key)
        logits = self.router(self._seen(x, keys[0]))
        chosen, weights, log_scores = self._route(logits)
        real = None if real is None else jnp.broadcast_to(real, x.shape[:-1])
        aux = {"balance": balance_loss(log_scores, chosen, real), "router_z": router_z_loss(logits, real)}
        if self.cfg.capacity is None:
            random = keys[1] if self.cfg.activation_dropout else None
            y, late = by_choice(_tokens, self.experts, x, chosen, weights, random), jnp.zeros_like(aux["balance"])
        else:
            y, late = self._by_places(x, chosen, weights, real, keys[1])
        return constrain(y.astype(x.dtype), "batch", "length", None), {**aux, "dropped": late}

    def _route(self, logits: Float[Array, "*B T E"]) -> tuple[Int[Array, "*B T A"], Array, Float[Array, "*B T E"]]:
        """Return each token's experts, their weights, and logarithms of what is to be even, up to a constant."""
        return *route(logits, self.cfg.active, normalized=self.cfg.normalized), logits

    def _seen(self, x: Array, key: PRNGKeyArray | None) -> Array:
        """Return what the router sees."""
        if key is None or not self.cfg.jitter:
            return widen(x)
        least, most = 1 - self.cfg.jitter, 1 + self.cfg.jitter
        return widen(x) * drawn(lambda shape: jax.random.uniform(key, shape, minval=least, maxval=most), x.shape)

    def _by_places(
        self, x: Array, chosen: Int[Array, "*B T A"], weights: Array, real: Array | None, key: PRNGKeyArray | None
    ) -> tuple[Array, Float[Array, "*B"]]:
        """Send tokens to the places of their experts, and back; give the share of visits that found none, too."""
        E, (*lead, T, D) = self.cfg.experts, x.shape
        seats, Q = seats_of(chosen, E, self.cfg.active, self.cfg.capacity, real)
        visits = seats.reshape(*lead, -1)
        of = visitors(visits, E * Q)
        sent = jnp.moveaxis(send(x, of, visits).reshape(*lead, E, Q, D), -3, 0)
        # Two words each way: what each device makes of its own rows, and then where it goes.
        made = _at_rows(_at_experts(self._run(_at_experts(_at_rows(sent)), key)))
        back = send(jnp.moveaxis(made, 0, -3).reshape(*lead, E * Q, D), visits, of).reshape(*lead, T, -1, D)
        late = over_tokens((seats == E * Q).astype(weights.dtype), real).mean(-1)
        return jnp.einsum("...ta,...tad->...td", weights.astype(made.dtype), back), late

    def _run(self, x: Float[Array, "E *B Q D"], key: PRNGKeyArray | None) -> Float[Array, "E *B Q D"]:
        """Run each expert on rows of its own; what splits experts splits nothing else inside."""
        keys = None if key is None else jax.random.split(key, self.cfg.experts)
        table = axis_to_mesh()
        with axis_rules({name: _without(axes, table["experts"]) for name, axes in table.items()}):
            return jax.vmap(_expert, in_axes=(0, 0, None if keys is None else 0))(self.experts, x, keys)


def _at_rows(x: Float[Array, "E *B Q D"]) -> Float[Array, "E *B Q D"]:
    """Split by rows, as tokens are."""
    return constrain(x, *(None, "batch")[: x.ndim - 2], None, None)


def _at_experts(x: Float[Array, "E *B Q D"]) -> Float[Array, "E *B Q D"]:
    """Split by experts, and rows by what is left of the mesh."""
    return constrain(x, *("experts", "batch")[: x.ndim - 2], None, None)


def _without(axes: tuple[str, ...], taken: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(place for place in axes if place not in taken)


def _expert(expert: FeedForward, x: Array, key: PRNGKeyArray | None) -> Array:
    return expert(x, key=key)


def _tokens(expert: FeedForward, x: Float[Array, "S D"], keys: Key[Array, "S"] | None) -> Float[Array, "S D"]:
    """Apply an expert to tokens, each with a key of its own."""
    if keys is None:
        return expert(x[None])[0]
    with rows_of(jnp.zeros(1, int), 1):  # none of these is a row of the batch
        return jax.vmap(lambda token, key: expert(token[None], key=key)[0])(x, keys)


def observed(
    sublayer: Any,
    x: Array,
    *,
    real: Callable[[], Array | None],
    key: PRNGKeyArray | None = None,
    **arguments: Any,
) -> tuple[Array, dict[str, Array]]:
    """Apply a sublayer; return its auxiliary outputs beside, none where it has no `observe`.

    Args:
      real: gives which positions are no padding, for a sublayer that has.
      arguments: what else the sublayer is given.
    """
    observe = getattr(sublayer, "observe", None)
    if observe is None:
        return sublayer(x, key=key, **arguments), {}
    return observe(x, real=real(), key=key, **arguments)


def with_experts(config: Any, experts: int, **options: Any) -> Any:
    """Put experts in the place of the feed-forward layers of a model, each of which is as these were.

    Args:
      config: of a model with one kind of blocks, `config.block`.
      options: other fields of `ExpertsConfig`: `active`, `capacity`, …
    """
    one = config.block.feedforward
    many = ExpertsConfig(**shared_fields(FeedForwardConfig, one), experts=experts, **options)
    return replace(config, block=replace(config.block, feedforward=many))
