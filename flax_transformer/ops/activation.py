"""The activations that Transformer papers use, by name."""

import difflib
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.nn import identity, relu, silu, tanh
from jaxtyping import Array, Float


def gelu(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Compute `x Φ(x)` by the error function (Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415).

    >>> f"{gelu(jnp.array(1.0)):.3f}"
    '0.841'
    """
    return jax.nn.gelu(x, approximate=False)


def gelu_tanh(x: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Approximate `gelu` by a tanh, as GPT-2 and T5 1.1 do.

    >>> float(abs(gelu_tanh(jnp.array(1.0)) - gelu(jnp.array(1.0)))) < 1e-3
    True
    """
    return jax.nn.gelu(x, approximate=True)


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
