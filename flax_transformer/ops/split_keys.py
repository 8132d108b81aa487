"""One random key for each of several uses."""

import jax
from jaxtyping import Array, Key, PRNGKeyArray, UInt32


def split_keys(
    key: PRNGKeyArray | None, count: int = 2
) -> Key[Array, "count"] | UInt32[Array, "count words"] | tuple[None, ...]:
    """Split a key as `jax.random.split` does; return as many None where there is no key, as nothing is random then.

    >>> split_keys(None, 3)
    (None, None, None)
    """
    return (None,) * count if key is None else jax.random.split(key, count)
