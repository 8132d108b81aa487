"""Recurrent layers: LSTM (Hochreiter & Schmidhuber 1997; Gers et al. 2000) and GRU (Cho et al. 2014,
https://arxiv.org/abs/1406.1078), with the gates and biases of `torch.nn.LSTM` and `torch.nn.GRU`.

A layer multiplies all its inputs at once; what recurs, a product with the state and the gates, is a `lax.scan`.

Axes: *B batch, T positions, E width of inputs, H width of states, W of what a stack gives, G of all gates: 4 H of an
LSTM, 3 H of a GRU.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import dropout
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.order import Layer, Order

State = tuple[Float[Array, "*B H"], ...]
"""What recurs: an LSTM's hidden state and its cell, a GRU's hidden state; the hidden state is first."""
GATES = {"lstm": 4, "gru": 3}


@frozen
class RecurrentConfig:
    """A stack of recurrent layers."""

    embed: int
    """E of what the first layer reads."""
    hidden: int
    """H, of each direction."""
    cell: Literal["lstm", "gru"] = "lstm"
    """"lstm" (Hochreiter & Schmidhuber 1997) or "gru" (Cho et al. 2014)."""
    depth: int = 1
    """Layers, one on the other."""
    bidirectional: bool = False
    """Whether each layer reads from both ends, and gives what both found side by side."""
    dropout: float = 0.0
    """Between layers; what is dropped of a row is dropped at all its positions (Gal & Ghahramani 2016)."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "hidden", "depth")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    @property
    def width(self) -> int:
        """How wide what a layer gives is."""
        return self.hidden * (1 + self.bidirectional)


class Cell(Module):
    """One layer in one direction: `project` all inputs at once, then call it with one after the other."""

    def __init__(self, cfg: RecurrentConfig, inputs: int, *, rngs: nnx.Rngs):
        self.cfg = cfg
        gates, kinds = GATES[cfg.cell], cfg.precision.dtypes
        bound = cfg.hidden**-0.5
        kinds |= {"kernel_init": _uniform(bound), "bias_init": _uniform(bound)}
        self.input = Linear(inputs, gates * cfg.hidden, rngs=rngs, **kinds)
        self.recurrent = Linear(cfg.hidden, gates * cfg.hidden, rngs=rngs, **kinds)

    def project(self, x: Float[Array, "*B T E"]) -> Float[Array, "*B T G"]:
        """Compute what inputs add to the gates."""
        return self.input(x)

    def init_state(self, *batch: int) -> State:
        """Begin with zeros, in float32 or more."""
        zero = jnp.zeros((*batch, self.cfg.hidden), at_least_float32(self.cfg.precision.compute))
        return (zero, zero) if self.cfg.cell == "lstm" else (zero,)

    def __call__(self, state: State, projected: Float[Array, "*B G"]) -> State:
        """Take a step."""
        hidden = state[0]
        given = jnp.split(projected.astype(hidden.dtype), GATES[self.cfg.cell], axis=-1)
        again = jnp.split(self.recurrent(hidden).astype(hidden.dtype), GATES[self.cfg.cell], axis=-1)
        if self.cfg.cell == "gru":
            reset, update = (jax.nn.sigmoid(x + h) for x, h in zip(given[:2], again[:2], strict=True))
            new = jnp.tanh(given[2] + reset * again[2])
            return ((1 - update) * new + update * hidden,)
        enter, forget, new, leave = (x + h for x, h in zip(given, again, strict=True))
        cell = jax.nn.sigmoid(forget) * state[1] + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return jax.nn.sigmoid(leave) * jnp.tanh(cell), cell

    def run(
        self,
        x: Float[Array, "*B T E"],
        state: State | None = None,
        lengths: Int[Array, "*B"] | None = None,
        *,
        reverse: bool = False,
    ) -> tuple[Float[Array, "*B T H"], State]:
        """Read all positions: what each gives, zero from a row's length on, and the state after the last one read.

        Args:
          state: to begin with; zeros by default.
          lengths: of the rows; all positions by default.
          reverse: read from a row's end to its beginning.
        """
        *batch, T, _ = x.shape
        seen = jnp.broadcast_to(jnp.arange(T) < (T if lengths is None else lengths[..., None]), (*batch, T))

        def step(state: State, given: tuple[Array, Array]) -> tuple[State, Array]:
            projected, here = given[0], given[1][..., None]
            new = self(state, projected)
            return tuple(jnp.where(here, n, s) for n, s in zip(new, state, strict=True)), jnp.where(here, new[0], 0)

        state = self.init_state(*batch) if state is None else state
        given = jnp.moveaxis(self.project(x), -2, 0), jnp.moveaxis(seen, -1, 0)
        state, found = jax.lax.scan(step, state, given, reverse=reverse)
        return jnp.moveaxis(found, 0, -2).astype(x.dtype), state


class Recurrent(Module):
    """A stack of layers, each in one direction or in both."""

    @property
    def layer_order(self) -> Order:
        """Its layers, each in all its directions."""
        return tuple(Layer(f"forward.{i}", f"backward.{i}") for i in range(self.cfg.depth))

    def __init__(self, cfg: RecurrentConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        widths = [cfg.embed, *[cfg.width] * (cfg.depth - 1)]
        self.forward = nnx.List([Cell(cfg, width, rngs=rngs) for width in widths])
        if cfg.bidirectional:
            self.backward = nnx.List([Cell(cfg, width, rngs=rngs) for width in widths])

    def __call__(
        self,
        x: Float[Array, "*B T E"],
        lengths: Int[Array, "*B"] | None = None,
        states: tuple[State, ...] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B T W"], tuple[State, ...]]:
        """Read, and give what the last layer gives of each position and every layer's last states.

        Both directions stand side by side, [*B, 2H], the forward one first.

        Args:
          lengths: of the rows; all positions by default.
          states: of every layer to begin with; zeros by default.
          key: for dropout; None means none.

        Raises:
          ValueError: inputs of another width.
        """
        check_hidden(x, self.cfg.embed, "x")
        kept, last = self.kept(x.shape[:-2], key), []
        for number, cells in enumerate(self.layers):
            x = _some(x, kept[number], (..., None, slice(None)))
            begin = [None] * len(cells) if states is None else _parted(states[number], len(cells))
            found = [cell.run(x, begin[way], lengths, reverse=bool(way)) for way, cell in enumerate(cells)]
            x = jnp.concatenate([each for each, _ in found], axis=-1)
            last.append(tuple(jnp.concatenate(part, axis=-1) for part in zip(*(end for _, end in found), strict=True)))
        return x, tuple(last)

    def step(
        self, states: tuple[State, ...], projected: Float[Array, "*B G"], kept: list[Array | None] | None = None
    ) -> tuple[State, ...]:
        """Take one position through all layers, in the one direction there is.

        Args:
          projected: what the first layer's gates are given, by its `project`.
          kept: by `kept`; None: nothing is dropped.
        """
        new = [self.forward[0](states[0], projected)]
        for number, (cell, state) in enumerate(zip(self.forward[1:], states[1:], strict=True), 1):
            below = new[-1][0] if kept is None else _some(new[-1][0], kept[number])
            new.append(cell(state, cell.project(below)))
        return tuple(new)

    def kept(self, batch: tuple[int, ...], key: PRNGKeyArray | None) -> list[Array | None]:
        """Draw what each layer's inputs are multiplied by, [*B, W] for all positions of a row; None: they stay.

        Args:
          key: for dropout; None means none.
        """
        if self.cfg.dropout == 0 or key is None:
            return [None] * self.cfg.depth
        ones = jnp.ones((*batch, self.cfg.width))
        draws = range(1, self.cfg.depth)
        return [None, *(dropout(ones, self.cfg.dropout, jax.random.fold_in(key, number)) for number in draws)]

    @property
    def layers(self) -> list[tuple[Cell, ...]]:
        """The cells of each layer, one for each direction."""
        return list(zip(self.forward, *([self.backward] if self.cfg.bidirectional else []), strict=True))


def _some(x: Array, kept: Array | None, at: Any = ...) -> Array:
    return x if kept is None else (x * kept[at]).astype(x.dtype)


def _parted(state: State, ways: int) -> list[State]:
    return list(zip(*(jnp.split(part, ways, axis=-1) for part in state), strict=True))


def _uniform(bound: float) -> nnx.Initializer:
    return lambda key, shape, dtype=jnp.float32, **_: jax.random.uniform(key, shape, dtype, -bound, bound)
