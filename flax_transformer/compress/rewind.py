"""Lottery tickets: the zeros of a trained and pruned model in the weights of an early step of its training (Frankle &
Carbin 2019, https://arxiv.org/abs/1803.03635; Frankle et al. 2020, https://arxiv.org/abs/1912.05671).
"""

from typing import Any

import jax
import jax.numpy as jnp

from flax_transformer.compress.kernel import kernels_of, linear_kernels, map_kernels


def rewind(early: Any, pruned: Any) -> Any:
    """Return an early model whose kernels have the zeros of a pruned one; trained again, zeros are kept by
    `optimizer.sparsity.keep`.

    Raises:
      ValueError: models of other kernels, kernels that are quantized, or a pruned model without zeros.
    """
    kernels = {path: kernel for path, kernel in kernels_of(pruned).items() if path in linear_kernels(pruned)}
    own = {path: kernel for path, kernel in kernels_of(early).items() if path in linear_kernels(early)}
    if (one := _shapes(own)) != (other := _shapes(kernels)):
        odd = next(path for path in (*one, *other) if one.get(path) != other.get(path))
        raise ValueError(f"both must have the same kernels, those of {odd} are {one.get(odd)} and {other.get(odd)}")
    for path in own:
        for each in (own[path], kernels[path]):
            if not isinstance(each, jax.Array):
                raise ValueError(f"zeros are of kernels that are whole, {path} is a {type(each).__name__}")
    if all(bool((kernel != 0).all()) for kernel in kernels.values()):
        raise ValueError("zeros are taken from a model that was pruned, this one has none")
    return map_kernels(lambda path, k: jnp.where(kernels[path] == 0, 0, k) if path in kernels else k, early)


def _shapes(kernels: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {path: tuple(kernel.shape) for path, kernel in kernels.items()}
