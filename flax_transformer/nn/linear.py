"""How linear layers start, and how they multiply: as one product of two matrices, whatever the number of axes."""

import math
from typing import Any

import jax
from flax import nnx
from jax.typing import DTypeLike

from flax_transformer.nn.config import BlockConfig

_xavier = nnx.initializers.xavier_uniform()


def initializer(cfg: BlockConfig, default: nnx.Initializer = _xavier, *, residual: bool = False) -> nnx.Initializer:
    """Give what a block's kernels start from: its own standard deviation, or the default of the 2017 model.

    Args:
      residual: whether the layer writes to the residual stream.
    """
    std = cfg.residual_init_std if residual and cfg.residual_init_std is not None else cfg.init_std
    return default if std is None else nnx.initializers.normal(std)


def flat_dot_general(
    x: jax.Array,
    kernel: jax.Array,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: DTypeLike | None = None,
    **options: Any,
) -> jax.Array:
    """Do what `jax.lax.dot_general` does for a linear layer, on flattened axes.

    Forward it is the same, but a gradient that sums over several axes at once is not turned into one matrix product
    by XLA on CPU; on flattened axes it is. With the sequence split over devices nothing is flattened, since that
    would mix a split axis with another.
    """
    (over, under), batch = dimension_numbers
    rest = x.ndim - len(over)
    leads = tuple(over) == tuple(range(rest, x.ndim)) and tuple(under) == tuple(range(len(under)))
    if batch[0] or not leads or jax.sharding.get_abstract_mesh().shape.get("sequence", 1) > 1:
        return jax.lax.dot_general(
            x, kernel, dimension_numbers, precision=precision, preferred_element_type=preferred_element_type, **options
        )
    inner = math.prod(kernel.shape[: len(under)])
    outputs = kernel.shape[len(under) :]
    y = jax.lax.dot_general(
        x.reshape(-1, inner), kernel.reshape(inner, -1), (((1,), (0,)), ((), ())), precision=precision,
        preferred_element_type=preferred_element_type, **options,
    )  # fmt: skip
    return y.reshape(*x.shape[:rest], *outputs)
