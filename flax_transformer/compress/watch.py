"""What passes through the kernels of a model on calibration data, summed up over layers, uses and batches."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.compress.kernel import WrappedKernel, map_kernels
from flax_transformer.nn.linear import flat_dot_general, last_axes


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WatchedKernel(WrappedKernel):
    """A kernel that passes its inputs on, and says something of them as the gradient of zeros.

    So it comes out of `scan`, `vmap` and `jit` as gradients do, stacked by layers, and adds up over uses.
    """

    zeros: Any
    slopes: Callable[[Array, Array, Any, int], Any] = field(metadata={"static": True})
    """`slopes(x, gradient, zeros, inputs)` is what comes out in the place of zeros; of x, its gradient, and how many of
    its last axes are inputs."""

    def multiply(self, x: Float[Array, "..."], inputs: int) -> Float[Array, "..."]:
        """Multiply as the kernel does."""
        x = _watched(self.slopes, inputs, x, self.zeros)
        return flat_dot_general(x, self.kernel.astype(x.dtype), last_axes(x, inputs))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _watched(slopes: Callable, inputs: int, x: Array, zeros: Any) -> Array:
    return x


def _remember(slopes: Callable, inputs: int, x: Array, zeros: Any) -> tuple[Array, tuple[Array, Any]]:
    return x, (x, zeros)


def _say(slopes: Callable, inputs: int, kept: tuple[Array, Any], pull: Array) -> tuple[Array, Any]:
    x, zeros = kept
    return pull, slopes(x, pull, zeros, inputs)


_watched.defvjp(_remember, _say)


def watch(
    model: Any, zeros: Mapping[str, Any], slopes: Callable, loss: Callable[[Any, Any], Array], batches: Iterable[Any],
    join: Callable[[Any, Any], Any] = partial(jax.tree.map, jnp.add),
) -> dict[str, Any]:  # fmt: skip
    """Differentiate a loss on calibration data, and sum up what watched kernels say.

    Args:
      zeros: of each kernel that is watched, by path, what its sums begin with.
      slopes: what is said, as `WatchedKernel` has it.
      loss: `loss(model, batch)`.
      join: what becomes of the sums of two batches, of one kernel.

    Raises:
      ValueError: no batch.
    """

    @jax.jit
    def gradient(model: Any, zeros: Mapping[str, Any], batch: Any) -> dict[str, Any]:
        def watched(zeros: Mapping[str, Any]) -> Array:
            def change(path: str, kernel: Any) -> Any:
                return WatchedKernel(kernel, zeros[path], slopes) if path in zeros else kernel

            return loss(map_kernels(change, model), batch)

        return jax.grad(watched)(zeros)

    sums = None
    for batch in batches:
        found = gradient(model, zeros, batch)
        sums = found if sums is None else {path: join(each, found[path]) for path, each in sums.items()}
    if sums is None:
        raise ValueError("calibration needs at least one batch, got none")
    return sums
