"""Which devices the code being traced is for: their kind, and the mesh they form."""

import math
import re

import jax
from jax.sharding import AxisType

ROWS, HEADS = ("data", "fsdp"), "tensor"
"""Mesh axes that split a batch, and heads."""


def platform() -> str:
    """Name the platform, `cpu`, `gpu`, `rocm` or `tpu`: of the mesh in context if there is one, else JAX's default.

    The mesh decides because a program may be compiled here for devices that are elsewhere. `gpu` is NVIDIA's.

    >>> platform() in ("cpu", "gpu", "rocm", "tpu")
    True
    """
    device = jax.sharding.get_abstract_mesh().abstract_device or jax.devices()[0]
    name = {"cuda": "gpu"}.get(device.platform, device.platform)
    # JAX calls both makers' platforms gpu. A device that is elsewhere has no client, but it has its name.
    version = getattr(getattr(device, "client", None), "platform_version", "")
    return (
        "rocm" if name == "gpu" and re.search("rocm|AMD|Instinct|Radeon", f"{version} {device.device_kind}") else name
    )


def compute_capability() -> tuple[int, ...] | None:
    """Give the version of NVIDIA's instructions that the devices here have; None where they have none.

    >>> platform() == "gpu" or compute_capability() is None
    True
    """
    version = getattr(jax.local_devices()[0], "compute_capability", "")
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+\.\d+", str(version)) else None


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
