"""`--mesh.…` of commands: devices along each axis of a mesh."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Mesh:
    """`parallel.MeshConfig`, spelled again so that `--help` needs no JAX."""

    data: int = -1
    """Devices along each axis; one may be -1, which takes all that are left."""
    pipeline: int = 1
    """Stages that the layers of a stack are shared out to."""
    fsdp: int = 1
    expert: int = 1
    """Groups that the experts of a mixture are shared out to."""
    tensor: int = 1
    sequence: int = 1
    slices: int = 1
    """Groups of devices with a fast network inside and a slow one between; `data` is a multiple of it, and nothing but
    data parallelism crosses from one to another."""


def asked_mesh(mesh: Mesh) -> Any:
    """Return the `parallel.MeshConfig` that was asked for; None where nothing was."""
    from flax_transformer.parallel import MeshConfig

    return None if mesh == Mesh() else MeshConfig(**asdict(mesh))


def open_mesh(mesh: Mesh) -> tuple[Any, AbstractContextManager]:
    """Return the devices of a mesh, and the context that programs on them run in; None and no context without one.

    Raises:
      ValueError: more devices than there are, or a stage of layers: only training runs in stages.
    """
    if mesh == Mesh():
        return None, nullcontext()
    import jax

    from flax_transformer.parallel import make_mesh

    if mesh.pipeline != 1:
        raise ValueError(f"layers are in stages for training alone, got --mesh.pipeline {mesh.pipeline}")
    devices = make_mesh(asked_mesh(mesh))
    return devices, jax.set_mesh(devices)
