"""Forward mode, and modes over each other, on meshes: whole stacks, as on one device."""

from pathlib import Path

import pytest
from fake_devices import on_eight

pytestmark = pytest.mark.proves("parallelism", "forward mode on every mesh")


@pytest.mark.slow
def test_forward_mode_on_every_mesh_is_that_of_one_device():
    found = on_eight(Path(__file__).parent / "forward_mode.py")[0]
    assert len(found) == 25
    assert {name: error for name, error in found.items() if not error <= 2e-5} == {}
