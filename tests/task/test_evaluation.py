"""Evaluation uses the devices of training: the same numbers, each device with its part of the work."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found():
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(
        [sys.executable, str(HERE / "eight_evaluations.py")], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mesh", ["data", "data×fsdp×tensor", "fsdp", "data×pipeline"])
def test_an_evaluation_on_a_mesh_measures_what_one_device_does(found, mesh):
    assert found[mesh]["loss"] == pytest.approx(found["one"]["loss"], rel=1e-5)
    assert found[mesh]["rows"] == [16, 16, 8]


@pytest.mark.parametrize("mesh", ["data", "data×fsdp×tensor", "fsdp"])
def test_each_device_does_a_part_of_an_evaluation(found, mesh):
    assert found[mesh]["share"] < 0.3
