"""What is kept for a backward pass and what that computes again, and the names by which others know it."""

from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

ATTENDED = "attended"
"""What attention gives and, where it computes its weights again, their normaliser: with these kept (`nn.REMAT`), no
attention is computed twice."""

DRAWN = "drawn"
"""Which elements dropout leaves: drawing costs more than what is drawn takes."""

AGAIN = "rematted_computation"
"""The scope in which JAX computes again what `jax.checkpoint` has not kept, and backward passes here do so too: by it
those who count FLOPs tell them apart."""


def attended(made: Any) -> Any:
    """Mark what attention gives."""
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, ATTENDED), made)


def recomputed(function: Callable) -> Callable:
    """Return a function of which a backward pass has the arguments, and computes again what is made of them.

    For elementwise functions and the matrix product after them, which is not computed twice: its gradients need its
    arguments alone. What dropout draws is kept.

    >>> jax.grad(recomputed(lambda x: jax.numpy.sin(x) ** 2))(0.0)
    Array(0., dtype=float32, weak_type=True)
    """
    return jax.checkpoint(function, policy=jax.checkpoint_policies.save_only_these_names(DRAWN), prevent_cse=False)
