"""Evaluation uses the devices of training: the same numbers, each device with its part of the work."""

from pathlib import Path

import numpy as np
import pytest
from fake_devices import on_eight

pytestmark = pytest.mark.rotates

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found():
    return on_eight(HERE / "eight_evaluations.py")[0]


@pytest.mark.parametrize("mesh", ["data", "data×fsdp×tensor", "fsdp", "data×pipeline"])
def test_an_evaluation_on_a_mesh_measures_what_one_device_does(found, mesh):
    assert found[mesh]["loss"] == pytest.approx(found["one"]["loss"], rel=1e-5)
    assert found[mesh]["rows"] == [16, 16, 8]


@pytest.mark.parametrize("mesh", ["data", "data×fsdp×tensor"])
def test_objects_are_found_on_a_mesh_where_one_device_finds_them(found, mesh):
    one = np.array(found["boxes"]["one"])
    assert one.shape == (3, 6, 4)
    np.testing.assert_allclose(found["boxes"][mesh], one, atol=1e-3)  # in pixels


@pytest.mark.parametrize("mesh", ["data", "data×fsdp×tensor", "fsdp"])
def test_each_device_does_a_part_of_an_evaluation(found, mesh):
    assert found[mesh]["share"] < 0.3
