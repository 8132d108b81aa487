"""Convolutions over images and over time, channels last, and the largest value of windows.

Axes: B batch, H W height and width, T time, U V those of a window, C channels, D features; I J height and width of what
comes.
"""

from functools import reduce
from itertools import product

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flax_transformer.ops.float32 import widen
from flax_transformer.ops.platform import platform

SHIFTED = "each-channel"
"""The scope of products that are a convolution, written out: by it those who count FLOPs tell them from others."""


def convolution(
    x: Float[Array, "..."],
    kernel: Float[Array, "..."],
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
) -> Float[Array, "..."]:
    """Multiply every window with a kernel [U, V, G, D] of images [*B, H, W, C], or [U, G, D] of sequences [*B, T, C].

    With G = C every feature sees all channels; with fewer they are in C / G groups that see their own.

    Args:
      stride: from window to window, in every direction.
      padding: lines of zeros at every side.
      dilation: from place to place within a window.

    Raises:
      ValueError: for an image or a sequence that is smaller than a window.

    >>> convolution(jnp.ones((2, 5, 5, 3)), jnp.ones((3, 3, 3, 4)), stride=2, padding=1)[0, 0, 0, 0]
    Array(12., dtype=float32)
    """
    axes = kernel.ndim - 2
    check_window(x.shape, kernel.shape[:-2], padding=padding, dilation=dilation)
    groups = x.shape[-1] // kernel.shape[-2]
    each = kernel.shape[-2] == 1 and groups == kernel.shape[-1]
    if each and stride == dilation == 1 and platform() == "cpu":
        return _each_channel(x, kernel, padding)
    if groups > 1 and not each:
        # One after another: on a mesh that splits rows the compiler counts gradients of kernels with groups twice.
        parts = zip(jnp.split(x, groups, axis=-1), jnp.split(kernel, groups, axis=-1), strict=True)
        found = [convolution(a, b, stride=stride, padding=padding, dilation=dilation) for a, b in parts]
        return jnp.concatenate(found, axis=-1)
    rows = x.reshape(-1, *x.shape[-axes - 1 :])
    if set(kernel.shape[:-2]) == {1} and padding == 0 and groups == 1:
        # One product of matrices: of such a convolution XLA on CPU takes 2 to 8 times as long for the gradients.
        y = jnp.tensordot(rows[:, *[slice(None, None, stride)] * axes], kernel.reshape(kernel.shape[-2:]), 1)
    else:
        space = "HW"[:axes]
        y = jax.lax.conv_general_dilated(
            rows, kernel, (stride,) * axes, [(padding, padding)] * axes, rhs_dilation=(dilation,) * axes,
            dimension_numbers=(f"N{space}C", f"{space}IO", f"N{space}C"), feature_group_count=groups,
        )  # fmt: skip
    return y.reshape(*x.shape[: -axes - 1], *y.shape[1:])


def _each_channel(x: Array, kernel: Array, padding: int) -> Array:
    """Convolve each channel with its own kernel as a sum of shifted inputs: XLA on CPU is a hundred times slower."""
    window = kernel.shape[:-2]
    axes = range(x.ndim - 1 - len(window), x.ndim - 1)
    x = jnp.pad(x, [(padding, padding) if axis in axes else (0, 0) for axis in range(x.ndim)])
    made = [x.shape[axis] - size + 1 for axis, size in zip(axes, window, strict=True)]

    def shifted(place: tuple[int, ...]) -> Array:
        return x[..., *(slice(i, i + size) for i, size in zip(place, made, strict=True)), :]

    with jax.named_scope(SHIFTED):
        return sum(widen(shifted(place)) * widen(kernel[*place, 0]) for place in product(*map(range, window))).astype(
            x.dtype
        )


def max_pool(x: Float[Array, "*B H W C"], window: int, *, stride: int, padding: int = 0) -> Float[Array, "*B I J C"]:
    """Take the largest value of every window, channel by channel; what is padded is never the largest.

    >>> max_pool(-jnp.ones((4, 4, 1)), 3, stride=2, padding=1).shape
    (2, 2, 1)
    """
    check_window(x.shape, (window, window), padding=padding)
    if platform() == "cpu" and x.dtype.itemsize >= 4:
        return _largest_of_shifted(x, window, stride, padding)
    lead = (1,) * (x.ndim - 3)
    return jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (*lead, window, window, 1), (*lead, stride, stride, 1),
        [(0, 0)] * len(lead) + [(padding, padding)] * 2 + [(0, 0)],
    )  # fmt: skip


def _largest_of_shifted(x: Array, window: int, stride: int, padding: int) -> Array:
    """Compare shifted images, down and then across: on CPU the gradient of XLA's windows takes ten times as long."""
    return _largest_along(_largest_along(x, -3, window, stride, padding), -2, window, stride, padding)


def _largest_along(x: Array, axis: int, window: int, stride: int, padding: int) -> Array:
    """Take the largest of each window along one axis, whose places are split by what is left after dividing by the
    stride: then all shifts are of whole places, and the gradient joins its parts in place of adding them up.
    """
    axis += x.ndim
    count = (x.shape[axis] + 2 * padding - window) // stride + 1
    groups = -(-((count - 1) * stride + window) // stride)
    sides = [(0, 0, 0)] * x.ndim
    sides[axis] = (padding, groups * stride - x.shape[axis] - padding, 0)
    x = jax.lax.pad(x, jnp.array(-jnp.inf, x.dtype), sides)
    x = x.reshape(*x.shape[:axis], groups, stride, *x.shape[axis + 1 :])
    parts = [part.squeeze(axis + 1) for part in jax.lax.split(x, [1] * stride, axis + 1)]
    shifted = (
        jax.lax.slice_in_dim(parts[i % stride], i // stride, i // stride + count, axis=axis) for i in range(window)
    )
    return reduce(jnp.maximum, shifted)


def check_window(shape: tuple[int, ...], window: tuple[int, ...], *, padding: int = 0, dilation: int = 1) -> None:
    """Raise ValueError where not even one window fits."""
    spans = [dilation * (size - 1) + 1 for size in window]
    sizes = shape[-len(window) - 1 : -1]
    if any(size + 2 * padding < span for size, span in zip(sizes, spans, strict=True)):
        what = "images" if len(window) == 2 else "sequences"
        raise ValueError(
            f"{what} must be as large as a window of {'×'.join(map(str, spans))} after padding {padding}, got "
            f"{'×'.join(map(str, sizes))}"
        )
