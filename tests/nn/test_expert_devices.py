"""Experts on eight devices: the same numbers, each device its own experts, and tokens sent all to all, or gathered."""

from pathlib import Path

import numpy as np
import pytest
from fake_devices import on_eight

pytestmark = [pytest.mark.slow, pytest.mark.proves("experts", "all to all on eight devices")]

D, F, E, ROWS, LENGTH = 32, 64, 8, 16, 16


def run(what, how):
    return on_eight(Path(__file__).parent / "expert_devices.py", what, how)[0]


@pytest.fixture(scope="module")
def layers():
    found = {how: run("layers", how) for how in ("places", "dropless")}
    assert 0 < found["places"].pop("dropped") < 1
    assert found["dropless"].pop("dropped") == 0
    assert len(found["places"]) == len(found["dropless"]) == 3
    return found


@pytest.mark.parametrize("how", ["places", "dropless"])
def test_eight_devices_give_what_one_gives(layers, how):
    for name, each in layers[how].items():
        assert each["apart"] < 1e-4, name


@pytest.mark.parametrize("how", ["places", "dropless"])
def test_each_device_has_its_own_experts(layers, how):
    assert [each["share"] for each in layers[how].values()] == [1 / 8, 1 / 4, 1 / 8]


@pytest.mark.parametrize("name", ["expert", "data×expert"])
def test_tokens_go_to_experts_and_experts_stay(layers, name):
    """In compiled programs: tokens are sent all to all, and no collective is as large as a kernel of the experts."""
    sent, devices = layers["places"][name]["sent"], {"expert": 8, "data×expert": 4}[name]
    kinds = {kind for kind, _, _ in sent}
    assert "all-to-all" in kinds, sent
    places = 4 * ROWS // 8 * E * 4 * D  # bytes of a device's tokens at their places: capacity 1, two of eight, T=16
    assert max(size for _, size, _ in sent) <= places, sent
    assert places < 4 * E // devices * D * F * (devices - 1), "a gathered kernel would be larger"


@pytest.mark.parametrize("name", ["expert", "data×expert"])
def test_tokens_are_gathered_and_their_sums_scattered(layers, name):
    """Where none is dropped: no collective is larger than the tokens of all that have experts between them."""
    sent, devices = layers["dropless"][name]["sent"], {"expert": 8, "data×expert": 4}[name]
    tokens = 4 * ROWS // 8 * devices * LENGTH * D
    assert {kind for kind, size, _ in sent if size == tokens} == {"all-gather", "reduce-scatter"}, sent
    assert max(size for _, size, _ in sent) == tokens, sent


def test_kernels_split_both_ways_are_gathered_one_way(layers):
    """Of `fsdp` by `tensor`, kernels of a device's experts are made whole along `fsdp` alone."""
    sent = layers["dropless"]["fsdp×expert×tensor"]["sent"]
    kernel = 4 * (E // 2) * D * (F // 2)
    assert max(size for kind, size, _ in sent if kind == "all-gather") == kernel, sent


@pytest.mark.parametrize("how", ["places", "dropless"])
def test_losses_of_training_are_those_of_one_device(how):
    found = run("steps", how)
    assert (found["one device"][0][2] > 0) == (how == "places")
    for name, losses in found.items():
        np.testing.assert_allclose(losses, found["one device"], rtol=2e-4, err_msg=name)
