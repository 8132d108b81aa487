"""Several functions of logits as one, for the `process` of any loop. Axes: R rows, V vocabulary, M `max_length`."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
from jax.tree_util import Partial
from jaxtyping import Array, Float, Int

from flax_transformer.decode.chain import Process
from flax_transformer.decode.process import process_rows


def compose(*processes: Process | None) -> Process | None:
    """Apply processes one after another; None are left out, and of none is None.

    The result is a pytree, if what is not a function by itself is one: it passes through `jax.jit`, which knows plain
    functions again by their identity.

    >>> import jax.numpy as jnp
    >>> both = compose(lambda logits, tokens, t: logits + t, None, lambda logits, tokens, t: 2 * logits)
    >>> both(jnp.zeros((1, 2)), jnp.zeros((1, 3), int), jnp.array(3)).tolist()
    [[6.0, 6.0]]
    """
    given = tuple(traceable(process) for process in processes if process is not None)
    return given[0] if len(given) == 1 else _Composed(given) if given else None


def traceable(function: Callable | None) -> Callable | None:
    """Make a plain function a pytree, which `jit` knows again by the function's identity."""
    return Partial(function) if jax.tree_util.all_leaves([function]) else function


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Composed:
    processes: tuple[Process, ...]

    def __call__(
        self, logits: Float[Array, "R V"], tokens: Int[Array, "R M"], t: Int[Array, ""]
    ) -> Float[Array, "R V"]:
        for process in self.processes:
            logits = process(logits, tokens, t)
        return logits

    def each(self, logits: Float[Array, "R V"], tokens: Int[Array, "R M"], t: Int[Array, "R"]) -> Float[Array, "R V"]:
        """Process rows of which each has generated another number of tokens: see `process_rows`."""
        for process in self.processes:
            logits = process_rows(process, logits, tokens, t)
        return logits
