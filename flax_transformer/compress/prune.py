"""One-shot pruning by magnitude: the smallest values of kernels become zero (Han et al. 2015,
https://arxiv.org/abs/1506.02626).
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from flax_transformer.compress.kernel import kernels_of, linear_kernels, map_kernels
from flax_transformer.compress.quantize import takes
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed
from flax_transformer.train.finetune import check_pattern
from flax_transformer.train.parameter_axis import Axes
from flax_transformer.train.sparsity import check_share, largest


@frozen
class Pruning:
    """Which values of kernels become zero; `optimizer.sparsity` does the same in training."""

    share: float = 0.0
    """Of the values."""
    scope: Literal["layer", "model"] = "layer"
    """The share is of each layer's kernel, or of all of them together."""
    block: tuple[int, int] | None = None
    """N and M of a pattern N:M in place of a share, such as 2:4: M consecutive inputs keep the N largest."""
    pattern: str = ""
    """Which kernels, by path (searched); all but those of heads, routers and patches by default."""

    def __post_init__(self) -> None:
        check_share(self.share, self.block)
        check_pattern("pattern", self.pattern)

    @property
    def changes(self) -> bool:
        """Whether anything becomes zero."""
        return bool(self.share or self.block)

    def takes(self, path: str) -> bool:
        """Return whether it is of the kernel of a path."""
        return takes(self.pattern, path)


def prune_model(model: Any, rule: Pruning) -> Any:
    """Return a model whose kernels have zeros.

    Raises:
      ValueError: a rule that takes no kernel, M that does not divide inputs, or kernels that are quantized; says which.
    """
    axes = {path: each for path, each in linear_kernels(model).items() if rule.takes(path)}
    if not axes:
        raise ValueError(f"a rule must take a kernel of a linear layer, there are {listed(linear_kernels(model))}")
    kernels = {path: kernel for path, kernel in kernels_of(model).items() if path in axes}
    for path, kernel in kernels.items():
        if not isinstance(kernel, jax.Array):
            raise ValueError(f"kernels are pruned before they are quantized, {path} is a {type(kernel).__name__}")
    least = None
    if rule.scope == "model" and rule.share:
        sizes = np.concatenate([np.abs(np.asarray(each, np.float32)).reshape(-1) for each in kernels.values()])
        least = np.partition(sizes, int(rule.share * sizes.size))[int(rule.share * sizes.size)]

    def change(path: str, kernel: Any) -> Any:
        if path not in axes:
            return kernel
        if least is not None:
            return jnp.where(jnp.abs(kernel) >= least, kernel, 0)
        try:
            each = Axes(axes[path].layers, axes[path].inputs, kernel.ndim - axes[path].layers - axes[path].inputs)
            return jnp.where(largest(kernel, each, rule.share, rule.block), kernel, 0)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    return map_kernels(change, model)


def zero_share(model: Any) -> float:
    """Return the share of zeros in the kernels of a model's linear layers."""
    kernels = kernels_of(model)
    found = [kernels[path] for path in linear_kernels(model) if isinstance(kernels[path], jax.Array)]
    zeros = sum(int((np.asarray(kernel) == 0).sum()) for kernel in found)
    return zeros / max(sum(kernel.size for kernel in found), 1)
