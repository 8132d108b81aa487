"""`flax-transformer bench` as it is typed."""

import dataclasses
import json
import re

import pytest

from flax_transformer.bench.workload import Size
from flax_transformer.cli import bench as cli
from flax_transformer.models import preset
from flax_transformer.models.text.transformer import transformer_tiny
from flax_transformer.nn import with_fields
from flax_transformer.parallel import MeshConfig


@pytest.fixture(autouse=True)
def small_presets(monkeypatch):
    monkeypatch.setattr("flax_transformer.bench.device.measured_peak", lambda dtype: 1e12)
    shallow = lambda vocab=16: with_fields(transformer_tiny(vocab), depth=1)  # noqa: E731
    monkeypatch.setattr(preset, "presets", lambda: {"shallow": shallow, "transformer_tiny": transformer_tiny})


def test_options_are_those_of_the_library():
    for mine, theirs in ((cli.Mesh, MeshConfig), (cli.BenchSize, Size)):
        assert [(f.name, f.default) for f in dataclasses.fields(mine)] == [
            (f.name, f.default) for f in dataclasses.fields(theirs)
        ]


@pytest.mark.slow
def test_measure_write_and_compare(run, tmp_path):
    size = ("shallow", "--batch", 2, "--length", 4, "--vocab", 16, "--steps", 2)
    code, out, err = run("bench", *size, "--what", "forward", "--json", tmp_path / "a.json")
    assert (code, err) == (0, "")
    assert "shallow   333,312 parameters, float32, rows 2, source 4, target 4, vocab 16" in out
    assert list(json.loads((tmp_path / "a.json").read_text())["programs"]) == ["forward"]
    code, out, err = run("bench", *size, "--what", "forward", "train", "--compare", tmp_path / "a.json")
    assert (code, err) == (0, "")
    assert "compared with" in out
    assert "forward: step" in out
    assert "train: step" not in out


def test_a_mesh_of_too_many_devices_is_refused(run):
    code, _, err = run("bench", "transformer_tiny", "--mesh.data", 1, "--mesh.fsdp", 64)
    assert code == 2
    assert "the mesh must not be larger than the devices" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("transformer_huge",), "error: no preset is called 'transformer_huge'"),
        (("transformer_tiny", "--batch", "0"), "error: batch must be at least 1, got 0"),
        (("transformer_tiny", "--steps", "-1"), "error: steps must be a positive number, got -1"),
        (("transformer_tiny", "--compare", "none.json"), "error: a comparison needs an earlier result"),
        (("transformer_tiny", "--json", "nowhere/a.json"), "error: the numbers are written to a file in a folder that"),
        (("transformer_tiny", "--json", "."), "error: the numbers are written to a file, . is a folder"),
        (("attention", "--heads", "0"), "error: heads must be a positive number, got 0"),
        (("attention", "--heads", "3", "--kv-heads", "2"), "error: query heads must be a multiple of kv heads"),
    ],
)
def test_bad_options_end_in_one_sentence(run, arguments, message):
    code, out, err = run("bench", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.slow
def test_attention_is_a_target(run, tmp_path):
    code, out, err = run(
        "bench", "attention", "--lengths", 8, "--heads", 2, "--width", 8, "--causal", "--json", tmp_path / "a.json"
    )
    assert (code, err) == (0, "")
    assert "halved as causal" in out
    assert len(json.loads((tmp_path / "a.json").read_text())["results"]) == 5


GROWING = """
import jax, numpy as np
from flax_transformer.bench import Program

def growing():
    add = jax.jit(lambda rows: rows + 1)
    return Program(add, (np.zeros(1, np.float32),), advance=lambda given, _: (np.append(given[0], np.float32(0)),))
"""


@pytest.mark.rotates
def test_a_program_that_compiles_again_ends_with_its_cause_and_an_error(run, tmp_path):
    (tmp_path / "mine.py").write_text(GROWING)
    code, out, err = run("bench", f"{tmp_path / 'mine.py'}:growing", "--steps", 1, "--json", tmp_path / "a.json")
    assert code == 1
    assert "FAULT: compiled again after the first run, since" in out
    assert err.startswith("error: growing compiled ")
    assert " programs after its first run: rows: float32[1] → float32[2]; rows: float32[2] → float32[3]; " in err
    assert json.loads((tmp_path / "a.json").read_text())["programs"]["growing"]["recompiles"] > 2


NAMED = """
import jax, jax.numpy as jnp

def product():
    def run(x):
        with jax.named_scope("Mine"):
            return jnp.tanh(x @ x)
    return run, (jnp.ones((200, 200)),)
"""


@pytest.mark.rotates
def test_a_profile_has_a_trace_and_its_longest_operations(run, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(NAMED)
    monkeypatch.chdir(tmp_path)
    code, out, err = run("bench", "mine.py:product", "--steps", 1, "--profile", "2:3", "--json", "a.json")
    assert (code, err) == (0, "")
    assert len(list(tmp_path.glob("profile/product/plugins/profile/*/*.xplane.pb"))) == 1
    found = json.loads((tmp_path / "a.json").read_text())["programs"]["product"]["operations"]
    assert ("Mine", "dot_general") in [(each["module"], each["name"]) for each in found]
    assert "product, traced" in out
    assert re.search(r"by module +product FLOPs", out)
    code, _, err = run("bench", "mine.py:product", "--profile", "3")
    assert (code, err) == (2, "error: a profile is of steps FROM:TO, as in 10:12, got '3'\n")
