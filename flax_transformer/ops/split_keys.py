"""One random key for each of several uses."""

from collections.abc import Sequence

import jax
from jaxtyping import PRNGKeyArray


def split_keys(key: PRNGKeyArray | None, count: int = 2) -> Sequence[PRNGKeyArray | None]:
    """Split a key as `jax.random.split` does; return as many None where there is no key, as nothing is random then.

    >>> split_keys(None, 3)
    (None, None, None)
    """
    return (None,) * count if key is None else jax.random.split(key, count)
