"""Loading onto a mesh of eight devices, in a process of its own, as their count is fixed at start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flax_transformer import hub
from tests.hub.test_load import LLAMA, build

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    saved = tmp_path_factory.mktemp("saved")
    hub.save(hub.wrap(build(LLAMA), "LlamaForCausalLM"), saved)
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(HERE.parent.parent)}
    command = [sys.executable, str(HERE / "eight_loaders.py"), str(saved)]
    done = subprocess.run(command, env=env, cwd=HERE.parent.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", ["gathered", "layer by layer"])
def test_a_mesh_is_filled_by_the_sharding_table(eight, way):
    assert eight["devices"] == 8
    assert eight[way]["misplaced"] == []
    assert eight[way]["different"] == []
    assert eight[way]["error"] <= 1e-5
    assert eight[way]["split"] >= 9
