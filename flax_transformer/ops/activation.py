"""The activations that Transformer papers use, by name."""

import difflib
from collections.abc import Callable
from functools import wraps

import jax
import jax.numpy as jnp
from jax.nn import identity, relu, tanh
from jaxtyping import Array, Float


def keeping_slope(function: Callable) -> Callable:
    """Return an elementwise function that keeps its slope for the backward pass, in place of what it is computed of.

    JAX keeps an array for each product of two that a function is made of, of `gelu` three; one is enough.

    >>> f"{jax.grad(keeping_slope(jnp.sin))(0.0):.1f}"
    '1.0'
    """

    @jax.custom_jvp
    @wraps(function)
    def kept(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
        return function(x)

    @kept.defjvp
    def derive(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        y, slope = jax.jvp(function, primals, (jnp.ones_like(primals[0]),))
        return y, slope * tangents[0]

    return kept


@keeping_slope
def gelu(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Compute `x Φ(x)` by the error function (Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415).

    >>> f"{gelu(jnp.array(1.0)):.3f}"
    '0.841'
    """
    return jax.nn.gelu(x, approximate=False)


@keeping_slope
def gelu_tanh(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Approximate `gelu` by a tanh, as GPT-2 and T5 1.1 do.

    >>> float(abs(gelu_tanh(jnp.array(1.0)) - gelu(jnp.array(1.0)))) < 1e-3
    True
    """
    return jax.nn.gelu(x, approximate=True)


@keeping_slope
def quick_gelu(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Approximate `gelu` by `x σ(1.702 x)`, as CLIP does.

    >>> f"{quick_gelu(jnp.array(1.0)):.3f}"
    '0.846'
    """
    return x * jax.nn.sigmoid(1.702 * x)


def squared_relu(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Square the positive part (So et al. 2021, https://arxiv.org/abs/2109.08668).

    >>> squared_relu(jnp.array([-2.0, 3.0]))
    Array([0., 9.], dtype=float32)
    """
    return jnp.square(jax.nn.relu(x))


silu = keeping_slope(jax.nn.silu)

ACTIVATIONS: dict[str, Callable] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
    "swish": silu,
    "squared_relu": squared_relu,
    "tanh": tanh,
    "identity": identity,
}


def activation(name: str | Callable) -> Callable:
    """Find an activation by name; a function is its own.

    Raises:
        ValueError: no such activation; the message names the nearest ones.

    >>> activation("swish")(jnp.array(0.0))
    Array(0., dtype=float32, weak_type=True)
    """
    if callable(name):
        return name
    if name not in ACTIVATIONS:
        near = difflib.get_close_matches(name, ACTIVATIONS, n=3, cutoff=0.4) or list(ACTIVATIONS)
        raise ValueError(f"unknown activation {name!r}; nearest: {', '.join(near)}")
    return ACTIVATIONS[name]
