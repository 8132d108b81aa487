"""Experts on eight devices: the same numbers, each device its own experts, and tokens sent all to all."""

from pathlib import Path

import numpy as np
import pytest
from fake_devices import on_eight

pytestmark = [pytest.mark.slow, pytest.mark.proves("experts", "all to all on eight devices")]

D, F, E, ROWS, LENGTH = 32, 64, 8, 16, 16


def run(what):
    return on_eight(Path(__file__).parent / "expert_devices.py", what)[0]


@pytest.fixture(scope="module")
def layers():
    found = run("layers")
    assert 0 < found.pop("dropped") < 1
    assert len(found) == 3
    return found


def test_eight_devices_give_what_one_gives(layers):
    for name, each in layers.items():
        assert each["apart"] < 1e-4, name


def test_each_device_has_its_own_experts(layers):
    assert [each["share"] for each in layers.values()] == [1 / 8, 1 / 4, 1 / 8]


@pytest.mark.parametrize("name", ["expert", "data×expert"])
def test_tokens_go_to_experts_and_experts_stay(layers, name):
    """In compiled programs: tokens are sent all to all, and no collective is as large as a kernel of the experts."""
    sent, devices = layers[name]["sent"], {"expert": 8, "data×expert": 4}[name]
    kinds = {kind for kind, _, _ in sent}
    assert "all-to-all" in kinds, sent
    places = 4 * ROWS // 8 * E * 4 * D  # bytes of a device's tokens at their places: capacity 1, two of eight, T=16
    assert max(size for _, size, _ in sent) <= places, sent
    assert places < 4 * E // devices * D * F * (devices - 1), "a gathered kernel would be larger"


def test_losses_of_training_are_those_of_one_device():
    found = run("steps")
    assert found["one device"][0][2] > 0
    for name, losses in found.items():
        np.testing.assert_allclose(losses, found["one device"], rtol=2e-4, err_msg=name)
