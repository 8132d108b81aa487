"""Loading onto a mesh of eight devices, in a process of its own, as their count is fixed at start."""

from pathlib import Path

import pytest
from fake_devices import on_eight

from flax_transformer import hub
from tests.hub.test_load import LLAMA, build

pytestmark = [pytest.mark.slow, pytest.mark.proves("checkpoints of Hugging Face", "onto a mesh, layer by layer")]

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    saved = tmp_path_factory.mktemp("saved")
    hub.save(hub.wrap(build(LLAMA), "LlamaForCausalLM"), saved)
    return on_eight(HERE / "eight_loaders.py", saved)[0]


@pytest.mark.parametrize("way", ["gathered", "layer by layer"])
def test_a_mesh_is_filled_by_the_sharding_table(eight, way):
    assert eight["devices"] == 8
    assert eight[way]["misplaced"] == []
    assert eight[way]["different"] == []
    assert eight[way]["error"] <= 1e-5
    assert eight[way]["split"] >= 9
