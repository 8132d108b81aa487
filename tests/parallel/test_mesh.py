"""Meshes of eight devices agree with one device; they run in a process of their own, as the count is fixed at start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from flax_transformer.parallel import AXES, MeshConfig, make_mesh

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# Compile fast rather than well: the programs run ten steps.
FLAGS = (
    "--xla_force_host_platform_device_count=8 "
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)


@pytest.fixture(scope="module")
def eight() -> dict:
    env = {**os.environ, "XLA_FLAGS": FLAGS, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HERE / "eight_devices.py")]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["devices"] == 8
    return {**result, "warnings": done.stderr}


def test_nothing_is_replicated_to_be_moved(eight):
    """XLA says so when it knows no better way from one layout to another."""
    assert "Involuntary full rematerialization" not in eight["warnings"]


@pytest.mark.parametrize("mesh", ["data", "fsdp", "tensor", "all"])
def test_losses_equal_one_device_with_dropout(eight, mesh):
    one, many = eight["losses"]["one device"], eight["losses"][mesh]
    assert len(one) == 10
    assert one[-1] < one[0]
    np.testing.assert_allclose(many, one, rtol=1e-5)


@pytest.mark.parametrize("mesh", ["data", "fsdp", "tensor", "all"])
def test_parameters_equal_one_device_after_training(eight, mesh):
    # Ten steps of Adam at 1e-3 move a parameter by up to 1e-2.
    assert eight["parameters"][mesh] < 2e-4


@pytest.mark.parametrize(("mesh", "share"), [("data", 1.0), ("fsdp", 1 / 8), ("tensor", 1 / 4), ("all", 1 / 4)])
def test_kernels_and_moments_lie_split(eight, mesh, share):
    layout = eight["layout"][mesh]
    kernels = {name: place[1] for name, place in layout.items() if name.endswith(("kernel", "embedding"))}
    assert sum(name.startswith("model.") for name in kernels) == 17
    assert any(name.startswith("opt_state.") and ".nu." in name for name in kernels)
    assert kernels == dict.fromkeys(kernels, share)


def test_spec_of_a_stacked_kernel(eight):
    spec, _ = eight["layout"]["all"]["model.decoder.cross.query.kernel"]
    assert spec.endswith("(None, 'fsdp', 'tensor', None)")


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "adafactor", "lion", "muon"])
def test_every_optimizer_state_is_laid_out_as_its_parameters(eight, name):
    assert eight["optimizers"][name]["wrong"] == []
    assert eight["optimizers"][name]["matched"] >= 43


def test_one_axis_takes_what_is_left():
    devices = [jax.devices()[0]]
    mesh = make_mesh(MeshConfig(data=1, fsdp=-1), devices)
    assert mesh.axis_names == AXES
    assert mesh.axis_types == (AxisType.Auto,) * 4
    assert mesh.size == 1


@pytest.mark.parametrize(
    ("config", "count", "message"),
    [
        (MeshConfig(data=4, tensor=2), 1, "larger than the devices: .*data=4.*tensor=2.* needs 8, there are 1"),
        (MeshConfig(data=-1, fsdp=4), 2, "larger than the devices: .* needs 4, there are 2"),
        (MeshConfig(data=2), 6, "must use all devices: .* makes 2, there are 6"),
        (MeshConfig(data=-1, tensor=4), 6, "must use all devices: .* makes 4, there are 6"),
    ],
)
def test_a_mesh_that_cannot_be_names_both_numbers(config, count, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(config, jax.devices()[:1] * count)


def test_a_mesh_of_one_is_allowed_on_many_devices():
    assert make_mesh(MeshConfig(data=1), jax.devices()[:1] * 8).size == 1


@pytest.mark.parametrize("sizes", [{"data": 0}, {"data": -2}, {"data": -1, "fsdp": -1}])
def test_axis_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match=r"mesh axis .*got \{'data': "):
        MeshConfig(**sizes)
