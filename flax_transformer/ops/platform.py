"""Which kind of devices the code being traced is for."""

import re

import jax


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
    """Return the version of NVIDIA's instructions that the devices here have; None where they have none.

    >>> platform() == "gpu" or compute_capability() is None
    True
    """
    version = getattr(jax.local_devices()[0], "compute_capability", "")
    return tuple(map(int, version.split("."))) if re.fullmatch(r"\d+\.\d+", str(version)) else None
