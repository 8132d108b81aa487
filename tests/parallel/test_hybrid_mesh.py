"""Meshes over slices: only the data axis goes from one to another."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_transformer.launch.local import free_port
from flax_transformer.parallel import AXES, MeshConfig, abstract_mesh, make_mesh

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Device:
    """Stands for a device of a slice."""

    id: int
    slice_index: int
    process_index: int = 0
    platform: str = "cpu"
    device_kind: str = "stand-in"


def devices(slices, each):
    """List devices so that neighbours are in different slices."""
    return [Device(id=i, slice_index=i % slices) for i in range(slices * each)]


@dataclass(frozen=True)
class Chip:
    """Stands for a chip of a v5p slice."""

    id: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    slice_index: int = 0
    process_index: int = 0
    platform: str = "tpu"
    device_kind: str = "TPU v5p"


@pytest.mark.parametrize("bounds", [(4, 8, 8), (4, 4, 4)])
def test_a_mesh_axis_need_not_be_a_product_of_the_axes_of_a_slice(bounds):
    """16 is none of 4, 8 and 8."""
    places = np.ndindex(*bounds)
    chips = [Chip(id=i, coords=place) for i, place in enumerate(places)]
    mesh = make_mesh(MeshConfig(data=-1, fsdp=16), chips)
    assert mesh.shape["data"] == len(chips) // 16
    assert {chip.coords for chip in mesh.devices.flat} == {chip.coords for chip in chips}
    group = mesh.devices.reshape(-1, 16)[0]
    spread = [len({chip.coords[axis] for chip in group}) for axis in range(3)]
    assert np.prod(spread) == 16  # a box: none of them is far from the others


def slice_of(mesh):
    return np.vectorize(lambda device: device.slice_index)(mesh.devices)


@pytest.mark.parametrize(
    ("config", "slices"),
    [
        (MeshConfig(data=2, fsdp=4, slices=2), 2),
        (MeshConfig(data=-1, fsdp=2, tensor=2, slices=2), 2),
        (MeshConfig(data=4, sequence=2, slices=4), 4),
        (MeshConfig(data=4, pipeline=2, slices=2), 2),
    ],
)
def test_slices_are_apart_on_the_data_axis_alone(config, slices):
    mesh = make_mesh(config, devices(slices, 8 // slices))
    assert mesh.axis_names == AXES
    assert mesh.size == 8
    found = slice_of(mesh).reshape(slices, -1)
    assert all(len(set(part)) == 1 for part in found)
    assert len({part[0] for part in found}) == slices
    assert len({device.id for device in mesh.devices.flat}) == 8


@pytest.mark.parametrize(
    ("config", "there", "message"),
    [
        (MeshConfig(data=2, fsdp=4, slices=2), devices(4, 2), r"slices=2, 4 slices of 2, 2, 2, 2 devices"),
        (MeshConfig(data=2, slices=2), devices(1, 2), r"slices=2, 1 processes of 2 devices"),
        (MeshConfig(data=3, fsdp=2, slices=3), [*devices(3, 2)[:5], Device(9, 0)], r"3 slices of 3, 2, 1 devices"),
        (MeshConfig(data=3, slices=2), devices(3, 1), r"data must be a multiple of slices, got data=3, slices=2"),
    ],
)
def test_slices_that_are_not_there_are_refused(config, there, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(config, there)


def test_devices_of_one_process_are_one_slice():
    with pytest.raises(ValueError, match=r"data must be a multiple of slices, got data=1, slices=2"):
        make_mesh(MeshConfig(data=-1, slices=2), jax.devices()[:1])
    with pytest.raises(ValueError, match="slices must be a positive number, got 0"):
        MeshConfig(slices=0)


def test_an_abstract_mesh_has_as_many_devices_as_its_axes_make():
    assert abstract_mesh(MeshConfig(fsdp=4, tensor=2)).size == 8
    assert abstract_mesh(MeshConfig(fsdp=4, slices=2)).shape["data"] == 2
    assert abstract_mesh(MeshConfig(fsdp=4), 12).shape["data"] == 3
    with pytest.raises(ValueError, match="must use all devices"):
        abstract_mesh(MeshConfig(fsdp=4), 6)


@pytest.mark.slow
def test_two_processes_are_two_slices():
    """Real devices: without slices of their own, those of a process are one."""
    address = f"127.0.0.1:{free_port()}"
    flags = "--xla_force_host_platform_device_count=4"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE.parent.parent)}
    command = [sys.executable, str(HERE / "two_slices.py"), address]
    both = [
        subprocess.Popen([*command, str(i)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    try:
        said = [process.communicate(timeout=180) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], said
    for out, _ in said:
        found = json.loads(out.splitlines()[-1])
        assert found == {"processes": [[0, 0], [0, 0], [1, 1], [1, 1]], "sum": 28.0}
