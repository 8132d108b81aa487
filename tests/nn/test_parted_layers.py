"""Layers whose parameters are stored in parts give what they give whole, and their gradients come back in parts."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fake_devices import on_eight

pytestmark = pytest.mark.rotates

HERE = Path(__file__).parent
MESHES = ("data", "fsdp", "data×fsdp×tensor", "fsdp×sequence", "data×pipeline")
SHAPES = ("(16, 8)", "(6, 8)", "(3, 8)", "(8,)", "(2, 3, 5)", "(8, 4)")
LAYERS = "look up", "thrice"


def cases(layers, sizes, few):
    """Every size on every mesh; those that `few` gives of a mesh's number are tried without `every` too."""
    for number, mesh in enumerate(MESHES):
        for layer in layers:
            for at, size in enumerate(sizes):
                yield pytest.param(f"{mesh}, {layer}, {size}", marks=() if at in few(number) else pytest.mark.slow)


CASES = [
    *cases(LAYERS, SHAPES, lambda number: (0, 1 + number % 4, *((5,) if number in (1, 2) else ()))),
    *cases(["Product"], (16, 3), lambda number: (0, 1) if number == 2 else (0,)),
]
SHORT = [*cases(["bfloat16"], (16, 3), lambda number: (0, 1) if number == 2 else (0,))]


@cache
def run(*which):
    return on_eight(HERE / "parted_layers.py", *which)[0]


@pytest.fixture
def found(request):
    return run(*(["every"] if request.node.get_closest_marker("slow") else []))


@pytest.mark.rotates
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_one_device(found, case):
    value, slope = found[case]["value"], found[case]["slope"]
    # A sum of hundreds of terms of order 1, which may cancel, in float32.
    np.testing.assert_allclose(*value, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(*slope, rtol=1e-4, atol=1e-5)
    assert np.abs(slope[1]).max() > 0.5


@pytest.mark.parametrize("case", SHORT)
def test_bfloat16_is_summed_over_devices_too(found, case):
    """In 8 bits, so each sum is rounded; on a CPU XLA could not do it."""
    value, slope = found[case]["value"], found[case]["slope"]
    np.testing.assert_allclose(*value, rtol=2e-2)
    np.testing.assert_allclose(*slope, rtol=5e-2, atol=2e-2 * np.abs(slope[1]).max())


@pytest.mark.parametrize(
    "case", [case for case in CASES if "fsdp" in case.values[0] and case.values[0].endswith((", 16", "(16, 8)"))]
)
def test_gradients_are_split_as_their_parameters(found, case):
    made, stored = found[case]["places"]
    assert made == stored
    assert "fsdp" in made


def test_eager_lookups_know_the_mesh(found):
    assert found["eager"]


def test_without_a_mesh_a_product_is_the_plain_one(found):
    assert found["no mesh"]
