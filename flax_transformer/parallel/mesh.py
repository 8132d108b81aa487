"""The device mesh: axes data, pipeline, fsdp, expert, tensor and sequence, made from a config."""

import math
from collections import Counter
from typing import Any

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh, create_hybrid_device_mesh
from jax.sharding import AbstractMesh, AxisType, Mesh

from flax_transformer.frozen import frozen

AXES = ("data", "pipeline", "fsdp", "expert", "tensor", "sequence")
"""In the order of how much their devices say to each other, least first: neighbours are the closest."""

# Explicit axes, the default of make_mesh, would ask every gather for an output sharding.
_AUTO = (AxisType.Auto,) * len(AXES)


@frozen
class MeshConfig:
    """Devices along each mesh axis; one of them may be -1, which takes all that are left."""

    data: int = -1
    """Groups that rows of a batch are split over; parameters are the same in each."""
    pipeline: int = 1
    """Stages that the layers of a stack are shared out to."""
    fsdp: int = 1
    """Groups that rows, parameters and optimizer state are split over."""
    expert: int = 1
    """Groups that the experts of a mixture are shared out to; rows are split over them, too."""
    tensor: int = 1
    """Devices that heads and hidden widths of a layer are split over."""
    sequence: int = 1
    """Devices that the positions of a row are split over."""
    slices: int = 1
    """Groups of devices with a fast network inside and a slow one between; `data` is a multiple of it, and nothing but
    data parallelism crosses from one to another."""

    def __post_init__(self):
        sizes = dict(zip(AXES, self.sizes(), strict=True))
        if any(size < 1 and size != -1 for size in sizes.values()):
            raise ValueError(f"a mesh axis must be a positive number or -1 (what is left), got {sizes}")
        if list(sizes.values()).count(-1) > 1:
            raise ValueError(f"only one mesh axis may be -1, got {sizes}")
        if self.slices < 1:
            raise ValueError(f"slices must be a positive number, got {self.slices}")

    def sizes(self) -> tuple[int, ...]:
        """Sizes in the order of `AXES`, -1 unresolved."""
        return tuple(getattr(self, axis) for axis in AXES)

    def shape(self, devices: int) -> tuple[int, ...]:
        """Sizes in the order of `AXES` on so many devices.

        Raises:
          ValueError: when the axes need more devices than there are, or leave some unused, or `data` cannot be shared
            out to the slices. A mesh of one device with every axis 1 is always allowed.
        """
        sizes = self.sizes()
        fixed = math.prod(size for size in sizes if size != -1)
        shape = tuple(devices // fixed if size == -1 else size for size in sizes)
        names = "×".join(f"{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
        if fixed > devices:
            raise ValueError(
                f"the mesh must not be larger than the devices: {names} needs {fixed}, there are {devices}"
            )
        if math.prod(shape) not in (devices, 1):
            raise ValueError(f"the mesh must use all devices: {names} makes {math.prod(shape)}, there are {devices}")
        if shape[0] % self.slices:
            raise ValueError(f"data must be a multiple of slices, got data={shape[0]}, slices={self.slices}")
        return shape


def make_mesh(config: MeshConfig, devices: list | None = None) -> Mesh:
    """Arrange the devices as `config` says.

    Args:
      devices: what to arrange; all of `jax.devices()` by default.

    Raises:
      ValueError: as `MeshConfig.shape`, and when the devices do not lie in as many slices as asked for.
    """
    devices = jax.devices() if devices is None else devices
    shape = config.shape(len(devices))
    if config.slices > 1:
        return Mesh(_hybrid(shape, config.slices, devices), AXES, axis_types=_AUTO)
    devices = devices[: math.prod(shape)]
    try:
        return jax.make_mesh(shape, AXES, axis_types=_AUTO, devices=devices)
    except NotImplementedError:  # a mesh axis is the product of no axes of the slice, so these have to be cut
        return Mesh(create_device_mesh(shape, devices, allow_split_physical_axes=True), AXES, axis_types=_AUTO)


def abstract_mesh(config: MeshConfig, devices: int | None = None) -> AbstractMesh:
    """Make a mesh of devices that need not be there, to lay out arrays that are not either.

    Args:
      devices: how many; by default as many as the axes with a number make.
    """
    fixed = math.prod(size for size in config.sizes() if size != -1)
    at_least = config.slices if config.data == -1 else 1
    return AbstractMesh(config.shape(fixed * at_least if devices is None else devices), AXES, axis_types=_AUTO)


def _hybrid(shape: tuple[int, ...], slices: int, devices: list) -> np.ndarray:
    """Arrange devices so that slices are apart on the data axis alone."""
    by_process = len({getattr(device, "slice_index", 0) for device in devices}) == 1
    found = Counter(_slice(device, by_process) for device in devices)
    if len(found) != slices or len(set(found.values())) > 1:
        kind = "processes" if by_process else "slices"
        counts = ", ".join(str(count) for _, count in sorted(found.items()))
        raise ValueError(
            f"slices must be what the devices lie in, equally many in each: got slices={slices}, "
            f"{len(found)} {kind} of {counts} devices"
        )
    inside, between = (shape[0] // slices, *shape[1:]), (slices, *(1,) * (len(shape) - 1))
    return create_hybrid_device_mesh(
        inside, between, devices, process_is_granule=by_process, allow_split_physical_axes=True
    )


def _slice(device: Any, by_process: bool) -> int:
    return device.process_index if by_process else device.slice_index
