"""LayerDrop: whole layers that rows now and then do without, so that a stack bears the removal of some (Fan et al.
2020, https://arxiv.org/abs/1909.11556).
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from flax_transformer.ops.row_random import drawn
from flax_transformer.ops.split_keys import split_keys


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerDrop:
    """A block, or a stack of them, that each row of a batch does without at a rate, all its sublayers together.

    What is left is not scaled, as nothing is missing where all layers run. Without a key nothing is dropped.
    """

    block: Any
    rate: float = field(metadata={"static": True})

    def __call__(self, x: Array, memory: Any = None, *, key: PRNGKeyArray | None = None, **given: Any) -> Array:
        """Apply the block; arguments as its own."""
        inner, outer = split_keys(key)
        return self._some(x, self.block(x, *([] if memory is None else [memory]), key=inner, **given), outer)

    def observe(
        self, x: Array, memory: Any = None, *, key: PRNGKeyArray | None = None, **given: Any
    ) -> tuple[Array, Any]:
        """Apply the block's `observe`; what it tells beside is of all rows."""
        inner, outer = split_keys(key)
        y, aux = self.block.observe(x, *([] if memory is None else [memory]), key=inner, **given)
        return self._some(x, y, outer), aux

    def _some(self, x: Array, y: Array, key: PRNGKeyArray | None) -> Array:
        if key is None:
            return y
        rows = x.shape[:1] if x.ndim > 2 else ()
        kept = drawn(partial(jax.random.uniform, key), rows) >= self.rate
        return jnp.where(kept.reshape(*rows, *(1,) * (x.ndim - len(rows))), y, x)
