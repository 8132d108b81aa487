"""Layers whose parameters are stored in parts give what they give whole, and their gradients come back in parts."""

from pathlib import Path

import numpy as np
import pytest
from fake_devices import on_eight

HERE = Path(__file__).parent
MESHES = ("data", "fsdp", "data×fsdp×tensor", "fsdp×sequence", "data×pipeline")
SHAPES = ("(16, 8)", "(6, 8)", "(3, 8)", "(8,)", "(2, 3, 5)")
CASES = [f"{mesh}, {layer}, {shape}" for mesh in MESHES for layer in ("look up", "thrice") for shape in SHAPES]
CASES += [f"{mesh}, Product, {rows}" for mesh in MESHES for rows in (16, 3)]
SHORT = [f"{mesh}, bfloat16, {rows}" for mesh in MESHES for rows in (16, 3)]


@pytest.fixture(scope="module")
def found():
    return on_eight(HERE / "parted_layers.py")[0]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_one_device(found, case):
    value, slope = found[case]["value"], found[case]["slope"]
    np.testing.assert_allclose(*value, rtol=1e-5)
    np.testing.assert_allclose(*slope, rtol=1e-4, atol=1e-5)
    assert np.abs(slope[1]).max() > 1


@pytest.mark.parametrize("case", SHORT)
def test_bfloat16_is_summed_over_devices_too(found, case):
    """In 8 bits, so each sum is rounded; on a CPU XLA could not do it."""
    value, slope = found[case]["value"], found[case]["slope"]
    np.testing.assert_allclose(*value, rtol=2e-2)
    np.testing.assert_allclose(*slope, rtol=5e-2, atol=2e-2 * np.abs(slope[1]).max())


@pytest.mark.parametrize("case", [case for case in CASES if "fsdp" in case and case.endswith((", 16", "(16, 8)"))])
def test_gradients_are_split_as_their_parameters(found, case):
    made, stored = found[case]["places"]
    assert made == stored
    assert "fsdp" in made


def test_eager_lookups_know_the_mesh(found):
    assert found["eager"]


def test_without_a_mesh_a_product_is_the_plain_one(found):
    assert found["no mesh"]
