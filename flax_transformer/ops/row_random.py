"""What part of a batch draws: what the whole batch would draw for its rows, as in the microbatches of a pipeline."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key


@dataclass(eq=False)
class _Rows:
    rows: Int[Array, "b"] | None
    total: int


# Part of JAX's cache keys, so that no function traced outside of `rows_of` is taken for one inside, or the reverse.
_rows = jax.make_user_context(None)


@contextmanager
def rows_of(rows: Int[Array, "b"], total: int) -> Iterator[None]:
    """Draw, while tracing inside, for some rows of a batch what the whole batch would draw for them.

    Every `dropout`, `drop_path` and `keep_mask` of an array with b rows, attention's too, then gives what that of the
    array with `total` rows gives at `rows`. Of two contexts the inner counts.

    Args:
        rows: which rows they are; may be traced.
        total: rows of the whole batch.

    Raises:
        ValueError: inside, a draw of an array that does not have those rows in front, such as one that has them and its
            windows in one axis: every part of the batch would draw the same.

    >>> from flax_transformer.ops import keep_mask
    >>> key, rows = jax.random.key(0), jnp.array([2, 0])
    >>> with rows_of(rows, 3):
    ...     part = keep_mask(key, (2, 50), 0.5)
    >>> bool((part == keep_mask(key, (3, 50), 0.5)[rows]).all())
    True
    """
    scope = _Rows(rows, total)
    with _rows(scope):
        try:
            yield
        finally:
            scope.rows = None  # JAX's caches keep the scope; what was traced must not live on in them.


def drawn_from(shape: tuple[int, ...]) -> tuple[tuple[int, ...], dict[int, Int[Array, "_"]]]:
    """Return which part of which array a draw of this shape is, as `keep_part` takes it: all of it but in `rows_of`."""
    scope = _rows.value
    if scope is None:
        return shape, {}
    if shape[:1] != scope.rows.shape:
        rows = scope.rows.shape[0]
        raise ValueError(f"what part of a batch draws must have its rows in front, an axis of {rows}, got {shape}")
    return (scope.total, *shape[1:]), {0: scope.rows}


def drawn(draw: Callable[[tuple[int, ...]], Array], shape: tuple[int, ...]) -> Array:
    """Return `draw(shape)`; in `rows_of`, that of the whole array at those rows.

    >>> with rows_of(jnp.array([2, 0]), 3):
    ...     drawn(lambda shape: jnp.arange(3.0)[:, None], (2, 1)).ravel()
    Array([2., 0.], dtype=float32)
    """
    whole, at = drawn_from(shape)
    found = draw(whole)
    for axis, rows in at.items():
        found = jnp.take(found, rows, axis)
    return found


def keys_of_rows(x: Float[Array, "B *d"]) -> Key[Array, "B"]:
    """Return a key for each row that depends on its numbers alone: the same in any batch, and on any mesh.

    >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    >>> bool((keys_of_rows(x)[1:] == keys_of_rows(x[1:])).all())
    True
    """
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(x).astype(jnp.float32), jnp.uint32)
    bits = bits.reshape(len(x), -1)
    mixed = bits * (2 * jnp.arange(bits.shape[1], dtype=jnp.uint32) + 1)  # whole numbers add up alike in any order
    return jax.vmap(partial(jax.random.fold_in, jax.random.key(0)))(mixed.sum(axis=1, dtype=jnp.uint32))
