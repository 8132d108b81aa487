"""Drawing tokens from logits. Axes: *B batch, V vocabulary."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, UInt32

from flax_transformer.ops.logit_cutoff import Cutoff, keep_epsilon, keep_eta, keep_top_h
from flax_transformer.ops.logit_filter import (
    Count,
    Number,
    filter_logits,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical,
    scale_temperature,
)
from flax_transformer.ops.top_k import largest

__all__ = [
    "Cutoff",
    "each_row",
    "filter_logits",
    "keep_epsilon",
    "keep_eta",
    "keep_min_p",
    "keep_top_h",
    "keep_top_k",
    "keep_top_p",
    "keep_typical",
    "largest",
    "row_keys",
    "sample_logits",
    "scale_temperature",
]


Keys = Key[Array, "..."] | UInt32[Array, "... words"]
"""One key, or one for each row."""


def row_keys(key: Keys, rows: Int[Array | np.ndarray, "*B"]) -> Keys:
    """Derive a key for each row of a batch from its number: `fold_in`, so that neither place nor neighbours matter."""
    rows = jnp.asarray(rows)
    return jax.vmap(jax.random.fold_in, (None, 0))(_typed(key), rows.reshape(-1)).reshape(rows.shape)


def each_row(key: Keys, batch: tuple[int, ...]) -> Keys:
    """Return a key for each row of a batch: those given, or one derived from its position.

    They are threefry's, whose bits, unlike those of `rbg`, do not depend on what is drawn beside.
    """
    key = _typed(key)
    keys = key if key.shape else row_keys(key, np.arange(math.prod(batch)))
    return jax.random.wrap_key_data(jax.random.key_data(keys)[..., :2], impl="threefry2x32").reshape(batch)


def _typed(key: Keys) -> Keys:
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)


def sample_logits(
    key: Keys, logits: Float[Array, "*B V"], **filters: Number | Count | Cutoff | None
) -> Int[Array, "*B"]:
    """Draw one token per row from the filtered distribution.

    Args:
      key: one, of which row i draws by `row_keys(key, i)`; or a key for each row.
      filters: those of `filter_logits`.

    >>> sample_logits(jax.random.key(0), jnp.array([[0.0, 9.0, 1.0], [3.0, 0.0, 1.0]]), top_k=1).tolist()
    [1, 0]
    """
    # In float32: noise of fewer bits would draw some tokens too often, and others never.
    logits = filter_logits(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)), **filters)
    keys = each_row(key, logits.shape[:-1]).reshape(-1)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[-1:], jnp.float32))(keys)
    # The Gumbel trick of jax.random.categorical, with the faster arg max.
    return largest(logits + noise.reshape(logits.shape), 1)[1][..., 0]
