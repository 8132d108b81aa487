"""The device mesh: axes data, fsdp, tensor and sequence, made from a config."""

import math
from dataclasses import dataclass

import jax
from jax.sharding import AxisType, Mesh

AXES = ("data", "fsdp", "tensor", "sequence")


@dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each mesh axis; one of them may be -1, which takes all that are left."""

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    sequence: int = 1

    def __post_init__(self):
        sizes = dict(zip(AXES, self.sizes(), strict=True))
        if any(size < 1 and size != -1 for size in sizes.values()):
            raise ValueError(f"a mesh axis must be a positive number or -1 (what is left), got {sizes}")
        if list(sizes.values()).count(-1) > 1:
            raise ValueError(f"only one mesh axis may be -1, got {sizes}")

    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of `AXES`, -1 unresolved."""
        return (self.data, self.fsdp, self.tensor, self.sequence)


def make_mesh(config: MeshConfig, devices: list | None = None) -> Mesh:
    """Arrange the devices as `config` says.

    Args:
      devices: what to arrange; all of `jax.devices()` by default.

    Raises:
      ValueError: when the axes need more devices than there are, or leave some unused. A mesh of one device with
        every axis 1 is always allowed.
    """
    devices = jax.devices() if devices is None else devices
    sizes = config.sizes()
    fixed = math.prod(size for size in sizes if size != -1)
    shape = tuple(len(devices) // fixed if size == -1 else size for size in sizes)
    names = "×".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
    if fixed > len(devices):
        raise ValueError(
            f"the mesh must not be larger than the devices: {names} needs {fixed}, there are {len(devices)}"
        )
    if math.prod(shape) not in (len(devices), 1):
        raise ValueError(f"the mesh must use all devices: {names} makes {math.prod(shape)}, there are {len(devices)}")
    # Explicit axes, the default of make_mesh, would ask every gather for an output sharding.
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[: math.prod(shape)])
