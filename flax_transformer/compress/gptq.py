"""GPTQ: rounding a kernel input by input, each time making up for the error by those that come after (Frantar et al.
2022, https://arxiv.org/abs/2210.17323).

The results are those of `qwix.contrib`, whose loops are unrolled: 26 s of compiling for a kernel of 128 × 384 where
these take 0.6 s. Axes: O outputs, I inputs, G groups.
"""

from functools import partial

import jax
import jax.numpy as jnp
import qwix
from jaxtyping import Array, Float

from flax_transformer.nn.quantized import SCALE, round_values

BLOCK = 128
"""Inputs whose errors are spread over those after them at once."""


@partial(jax.jit, static_argnames=("kind", "group", "block", "scale_dtype"))
@jax.default_matmul_precision("highest")
def gptq(
    kernel: Float[Array, "O I"], products: Float[Array, "I I"], *, kind: str, group: int | None = None,
    damp: float = 0.01, block: int = BLOCK, scale_dtype: str = SCALE,
) -> tuple[Array, Float[Array, "O G"]]:  # fmt: skip
    """Round a kernel so that its products with inputs change little.

    Args:
      products: of every two inputs, summed over calibration data: `Statistics.products`.
      kind: int8 or int4.
      group: inputs that share a scale; None: all.
      damp: the share of the mean of the diagonal that is added to it.
      block: inputs that are rounded before later ones are changed.
      scale_dtype: of the scales, by which values are rounded.

    Returns:
      Values [O, I] and scales [O, G].
    """
    outputs, inputs = kernel.shape
    block, group = _block(inputs, group, block), group or inputs
    kernel = kernel.astype(jnp.float32)
    diagonal = jnp.diag(products)
    dead = diagonal == 0
    products = products + jnp.diag(dead.astype(products.dtype) + damp * diagonal.mean())
    inverse = jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(products), True), jnp.eye(inputs))
    upper = jnp.linalg.cholesky(inverse, upper=True)
    kernel = jnp.where(dead, 0.0, kernel)
    width = min(group, block)

    def one_block(step: Array, state: tuple) -> tuple:
        kernel, values, scales, scale = state
        start = step * block
        # Scales are of what is left of the kernel as the block begins; a group of several blocks has that of its first.
        left = jax.lax.dynamic_slice_in_dim(kernel, start // group * group, max(group, block), 1)
        how = {"channelwise_axes": (0,), "tiled_axes": {1: group}, "scale_dtype": scale_dtype}
        new = qwix.quantize(left, jnp.dtype(kind), **how).scale.astype(jnp.float32)
        scale = new if group <= block else jnp.where(start % group == 0, new, scale)
        part = jax.lax.dynamic_slice_in_dim(kernel, start, block, 1)
        upper_part = jax.lax.dynamic_slice_in_dim(upper, start, block, 0)
        inside = jax.lax.dynamic_slice_in_dim(upper_part, start, block, 1)

        def one_input(i: Array, carry: tuple) -> tuple:
            part, rounded, errors = carry
            by = scale[:, i // width] if group <= block else scale[:, 0]
            value = round_values(part[:, i] / by, kind).astype(jnp.float32)
            error = (part[:, i] - value * by) / inside[i, i]
            later = jnp.where(jnp.arange(block) >= i, inside[i], 0.0)
            return part - jnp.outer(error, later), rounded.at[:, i].set(value), errors.at[:, i].set(error)

        empty = jnp.zeros_like(part)
        part, rounded, errors = jax.lax.fori_loop(0, block, one_input, (part, empty, empty))
        after = jnp.where(jnp.arange(inputs) >= start + block, upper_part, 0.0)
        kernel = kernel - errors @ after
        values = jax.lax.dynamic_update_slice_in_dim(values, rounded, start, 1)
        scales = jax.lax.dynamic_update_slice_in_dim(scales, scale, start // group, 1)
        return kernel, values, scales, scale

    per_block = max(block // group, 1)
    start = kernel, jnp.zeros_like(kernel), jnp.zeros((outputs, inputs // group)), jnp.zeros((outputs, per_block))
    _, values, scales, _ = jax.lax.fori_loop(0, inputs // block, one_block, start)
    return values.astype(kind), scales.astype(scale_dtype)


def _block(inputs: int, group: int | None, most: int) -> int:
    """Return how many inputs a block has: groups whole, or a part of one, and a divisor of all."""

    def fits(size: int) -> bool:
        return inputs % size == 0 and (group is None or size % group == 0 or group % size == 0)

    return next(size for size in range(min(most, inputs), 0, -1) if fits(size))
