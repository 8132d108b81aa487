"""Which devices the code being traced is for: their kind, and the mesh they form."""

import math

import jax
from jax.sharding import AxisType

ROWS, HEADS = ("data", "fsdp"), "tensor"
"""Mesh axes that split a batch, and heads."""


def platform() -> str:
    """Name the platform, `cpu`, `gpu` or `tpu`: of the mesh in context if there is one, else JAX's default.

    The mesh decides because a program may be compiled here for devices that are elsewhere.

    >>> platform() in ("cpu", "gpu", "tpu")
    True
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    name = jax.default_backend() if device is None else device.platform
    return {"cuda": "gpu", "rocm": "gpu"}.get(name, name)


def auto_axes() -> dict[str, int]:
    """Give the mesh axes in context along which the compiler splits arrays, with their sizes; none without a mesh.

    >>> auto_axes()
    {}
    """
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name: mesh.shape[name] for name, kind in kinds if kind == AxisType.Auto}


def parts(*names: str) -> int:
    """Count the parts into which the axes of these names split an array.

    >>> parts("data", "fsdp")
    1
    """
    axes = auto_axes()
    return math.prod(axes.get(name, 1) for name in names)
