"""What a model would say after each layer: the logit lens, and the tuned lens.

Axes: L layers and the end, B batch, T positions, D width.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from flax_transformer.inside.edit import starting_at
from flax_transformer.ops.capture import capture_all, places

STATES, END = "hidden_states", "trunk_output"
"""Marks of what layers are given, and of what the last one gives."""

Translators = Mapping[str, Float[Array, "..."]]
"""Of a tuned lens: `kernel` [L, D, D] and `bias` [L, D], the last layer's the identity."""


def logit_lens(f: Callable) -> Callable:
    """Make g with `g(*args)`: what f returns of the hidden states before each layer, and after the last (nostalgebraist
    2020), on a leading axis [L, …].

    The states take the place of what the trunk gives, so that they go through the norm and the head that f has after
    it; no other knowledge of the model is needed.

    Raises:
      ValueError: by g, when f marks no end of a trunk, or no states before it.
    """
    return _lens(f, lambda states, given: states)


def tuned_lens(f: Callable) -> Callable:
    """Make g with `g(translators, *args)`: as `logit_lens`, after an affine map for each layer (Belrose et al. 2023,
    https://arxiv.org/abs/2303.08112)."""

    def g(translators: Translators, *args):
        return _lens(f, lambda states, given: translate(given, states))(*args, given=translators)

    return g


def translate(translators: Translators, states: Float[Array, "L *B T D"]) -> Float[Array, "L *B T D"]:
    """Apply the affine map of each layer; they begin as the identity."""
    moved = jnp.einsum("l...d,lde->l...e", states, translators["kernel"])
    bias = translators["bias"].reshape(len(states), *[1] * (states.ndim - 2), -1)
    return states + moved + bias


def new_translators(f: Callable, *args: Any) -> Translators:
    """Make the maps of a tuned lens, as the identity."""
    _, states = jax.eval_shape(lambda *args: stream(f, *args), *args)
    L, D = states.shape[0], states.shape[-1]
    return {"kernel": jnp.zeros((L, D, D), states.dtype), "bias": jnp.zeros((L, D), states.dtype)}


def fit_tuned_lens(
    f: Callable, batches: Iterable[tuple[Any, ...]], *fixed: Any, learning_rate: float = 1e-2
) -> tuple[Translators, list[float]]:
    """Fit a tuned lens: minimise the Kullback-Leibler divergence of each layer's prediction from the last one's.

    Args:
      f: `f(*fixed, *batch)` returns logits.
      batches: arguments of f after the fixed ones, such as the model; one step of Adam each.

    Returns:
      The maps, and the divergence at each step, in nats, averaged over layers and positions.
    """
    optimizer, losses = optax.adam(learning_rate), []
    translators: Translators | None = None

    def loss(translators, args):
        logits = tuned_lens(f)(translators, *args)
        end = jax.lax.stop_gradient(jax.nn.log_softmax(logits[-1]))
        own = jax.nn.log_softmax(logits[:-1])
        return jnp.mean(jnp.sum(jnp.exp(end) * (end - own), -1))

    @jax.jit
    def improve(translators, state, args):
        value, slope = jax.value_and_grad(loss)(translators, args)
        updates, state = optimizer.update(slope, state)
        return optax.apply_updates(translators, updates), state, value

    for batch in batches:
        args = (*fixed, *batch)
        if translators is None:
            translators = new_translators(f, *args)
            state = optimizer.init(translators)
        translators, state, value = improve(translators, state, args)
        losses.append(float(value))
    if translators is None:
        raise ValueError("a tuned lens needs a batch to be fitted to, got none")
    return translators, losses


def stream(f: Callable, *args: Any) -> tuple[Any, Float[Array, "L *B T D"]]:
    """Return what f returns, and the residual stream before each layer of the last trunk and after its last layer.

    Raises:
      ValueError: as `logit_lens`.
    """
    before, end = stack_of(f, *args)
    output, found = capture_all(f, {STATES, END}.__contains__)(*args)
    last = found[END][end]
    states = [found[STATES][place].reshape(-1, *last.shape) for place in before]
    return output, jnp.concatenate([*states, last[None]])


def _lens(f: Callable, move: Callable) -> Callable:
    def g(*args, given: Any = None):
        end = stack_of(f, *args)[1]
        states = move(stream(f, *args)[1], given)
        return jax.vmap(lambda state: starting_at(f, END, end)(state, *args))(states)

    return g


def stack_of(f: Callable, *args: Any) -> tuple[list[int], int]:
    """Return which states are of the last trunk, and which end is its."""
    counts, before, found = {STATES: 0, END: 0}, [], None
    for place in places(f, *args):
        if place.name == STATES:
            before.append((counts[STATES], place.shape))
        elif place.name == END:
            own = [number for number, shape in before if shape == place.shape]
            found, before = (own, counts[END]) if own else found, []
        if place.name in counts:
            counts[place.name] += 1
    if found is None:
        raise ValueError("a lens needs a model whose layers are of a trunk, which marks hidden_states and trunk_output")
    return found
