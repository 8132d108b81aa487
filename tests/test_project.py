"""What `import flax_transformer as ft` gives, and what a stranger finds out about it."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import flax_transformer as ft
from flax_transformer.models.preset import presets

ROOT = Path(__file__).parent.parent


def test_completion_lists_every_room_that_there_is():
    folders = {path.parent.name for path in (ROOT / "flax_transformer").glob("*/__init__.py")}
    assert set(dir(ft)) == {"__version__", *folders - {"cli"}}


@pytest.mark.rotates
def test_a_forward_reference_names_what_is_there():
    """Linters leave strings alone, as jaxtyping's are no names."""
    missing = []
    for file in sorted((ROOT / "flax_transformer").rglob("*.py")):
        nodes = [*ast.walk(ast.parse(file.read_text()))]
        known = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        known |= {
            alias.asname or alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        known |= {node.id for node in nodes if isinstance(node, ast.Name)}
        hints = (getattr(node, name, None) for node in nodes for name in ("annotation", "returns"))
        parts = (part for hint in hints if hint is not None for part in ast.walk(hint))
        strings = (part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str))
        classes = [each for each in strings if re.fullmatch(r"[A-Z][A-Za-z0-9]{2,}", each)]
        missing += [f"{file.relative_to(ROOT)}: {each}" for each in classes if each not in known]
    assert not missing


@pytest.mark.rotates
def test_every_annotation_can_be_checked_at_run_time():
    """As the shape checks of the newest Python do (`make test SHAPES=1`)."""
    code = """if True:
        import pkgutil, jaxtyping
        with jaxtyping.install_import_hook("flax_transformer", "beartype.beartype"):
            import flax_transformer
            for module in pkgutil.walk_packages(flax_transformer.__path__, "flax_transformer."):
                module.name.endswith("__main__") or __import__(module.name)
    """
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.rotates
def test_a_room_needs_no_import_of_its_own():
    rooms = "(getattr(ft, room).__name__ for room in ft.__all__)"
    code = f"import flax_transformer as ft; print(ft.hub.load.__name__, *{rooms})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert said.split() == ["load", *(f"flax_transformer.{room}" for room in ft.__all__)]


def test_what_is_no_room_is_answered_with_the_rooms():
    with pytest.raises(AttributeError, match=r"no 'layers'; it has bench, compress, data, .*train"):
        _ = ft.layers


def test_the_version_is_one(run):
    assert run("--version") == (0, f"flax-transformer {ft.__version__}\n", "")
    assert re.search(rf"^version: {re.escape(ft.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)


@pytest.mark.slow
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


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_workflows_call_what_is_there():
    jobs = [job for name in ("test.yml", "docs.yml", "release.yml") for job in workflow(name)["jobs"].values()]
    lines = [line for job in jobs for step in job["steps"] for line in step.get("run", "").splitlines()]
    made = {line.split()[1] for line in lines if line.startswith("make ")}
    assert {"test", "docs"} < made <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    ours = {line for line in lines if line.startswith(".ci/")}
    assert ours == {".ci/run", ".ci/nightly"}
    assert all(os.access(ROOT / line, os.X_OK) for line in ours)


@pytest.mark.parametrize(
    ("name", "asked"), [("release.yml", {"id-token": "write"}), ("docs.yml", {"id-token": "write", "pages": "write"})]
)
def test_only_the_job_that_publishes_may_ask_for_a_token(name, asked):
    publishing = workflow(name)
    assert publishing["permissions"] == {"contents": "read"}
    asking = {name: job["permissions"] for name, job in publishing["jobs"].items() if "permissions" in job}
    assert asking == {"publish": asked}
    assert publishing["jobs"]["publish"]["needs"] == "build"


def test_files_of_parity_are_marked_so():
    """Else `make test` runs them wherever torch is."""
    files = sorted(ROOT.glob("tests/**/test_*_parity.py"))
    assert files
    assert [path.name for path in files if "mark.parity" not in path.read_text()] == []


def test_the_lock_names_public_places_and_what_the_project_asks_for():
    text = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r"https?://[^/\"]+", text)) == {"https://pypi.org", "https://files.pythonhosted.org"}
    _, ours = re.split(r'^name = "flax-transformer"$', text, flags=re.MULTILINE)
    ours = ours.partition("\n[[package]]")[0].partition("requires-dist = [")[2]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(name for extra in project["optional-dependencies"].values() for name in extra)]
    names = [re.match(r"[\w-]+", requirement)[0].lower().replace("_", "-") for requirement in asked]
    assert sorted(re.findall(r'name = "([\w-]+)"', ours.partition("\n]")[0])) == sorted(names)
