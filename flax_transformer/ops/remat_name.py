"""Names by which others know what attention leaves for its backward pass, and what that computes again."""

from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

ATTENDED = "attended"
"""What attention gives and, where it computes its weights again, their normaliser: with these kept (`nn.REMAT`), no
attention is computed twice."""

AGAIN = "rematted_computation"
"""The scope in which JAX computes again what `jax.checkpoint` has not kept, and backward passes here do so too: by it
those who count FLOPs tell them apart."""


def attended(made: Any) -> Any:
    """Mark what attention gives."""
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, ATTENDED), made)
