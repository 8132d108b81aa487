"""What the fields of a mask may be: shapes, kinds of numbers, windows."""

from numbers import Integral
from typing import Any

import jax.numpy as jnp


def check_broadcast(what: str, shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Raise ValueError unless `shape` broadcasts to `target` without enlarging it."""
    fits = len(shape) <= len(target) and all(a in (1, b) for a, b in zip(shape[::-1], target[::-1], strict=False))
    if not fits:
        raise ValueError(f"{what} must broadcast to {target}, got {shape}")


def check_shape(name: str, value: Any, own: int, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a field has all axes of a shape, some of size 1, or the `own` last ones alone."""
    if value is None:
        return
    given = getattr(value, "shape", ())
    check_broadcast(f"mask {name}", given, shape)
    if len(given) not in (own, len(shape)):
        axes = f"all {len(shape)} axes of {shape}, 1 where all are alike, or {own or 'none'}"
        raise ValueError(f"mask {name} must have {axes}, got {given}")


def window_sides(window: Any) -> tuple[int, int] | None:
    """Return a window's sides; ValueError for what is none."""
    if window is None:
        return None
    sides = (window, window) if isinstance(window, Integral) else window
    if not (isinstance(sides, tuple | list) and len(sides) == 2 and all(isinstance(side, Integral) for side in sides)):
        raise ValueError(f"a window must be one whole number, or two for left and right, got {spelled(window)}")
    if min(sides) < 0:
        raise ValueError(f"a window counts the keys to the left and right, both at least 0, got {sides}")
    return int(sides[0]), int(sides[1])


def within(ahead: Any, causal: bool, window: tuple[int, int] | None) -> Any:
    """Return which keys a causal mask or a window shows, by how many positions they are ahead of a query."""
    left, right = (None, None) if window is None else window
    right = 0 if causal else right
    if right is None:
        return True
    return ahead <= right if left is None else (ahead >= -left) & (ahead <= right)


def check_kind(name: str, value: Any, kind: type) -> None:
    """Raise ValueError unless a field is None or of such numbers."""
    if value is not None and not jnp.issubdtype(getattr(value, "dtype", float), kind):
        rule = "booleans, True where a key is visible" if kind is jnp.bool_ else "whole numbers"
        raise ValueError(f"mask {name} must be an array of {rule}, got {spelled(value)}")


def spelled(value: Any) -> str:
    """Describe a value for a message: an array by its type and shape."""
    return f"{value.dtype}{list(value.shape)}" if hasattr(value, "dtype") else repr(value)
