"""What `import flax_transformer as ft` gives, and what a stranger finds out about it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import flax_transformer as ft
from flax_transformer.models.preset import presets

ROOT = Path(__file__).parent.parent


def test_completion_lists_every_room_that_there_is():
    folders = {path.parent.name for path in (ROOT / "flax_transformer").glob("*/__init__.py")}
    assert set(dir(ft)) == {"__version__", *folders - {"cli"}}


def test_a_room_needs_no_import_of_its_own():
    rooms = "(getattr(ft, room).__name__ for room in ft.__all__)"
    code = f"import flax_transformer as ft; print(ft.hub.load.__name__, *{rooms})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.split() == ["load", *(f"flax_transformer.{room}" for room in ft.__all__)]


def test_what_is_no_room_is_answered_with_the_rooms():
    with pytest.raises(AttributeError, match=r"no 'layers'; it has bench, data, .*train"):
        _ = ft.layers


def test_the_version_is_one(run):
    assert run("--version") == (0, f"flax-transformer {ft.__version__}\n", "")
    assert re.search(rf"^version: {re.escape(ft.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


def test_presets_are_listed_with_family_and_parameters(run):
    code, out, err = run("presets")
    assert (code, err) == (0, "")
    family, listed = "", {}
    for line in out.splitlines():
        if line.startswith("  "):
            name, size, *about = line.split()
            listed[name] = (family, int(size.replace(",", "")))
            assert about
        else:
            family = line.partition(":")[0]
    assert listed.keys() == presets().keys()
    assert listed["transformer_base"] == ("transformer", 63_082_496)
    assert listed["mistral_7b"] == ("llama", 7_241_732_096)
