"""Notebooks are what their Python halves say, small, and hold the outputs of a run without errors."""

import json
from pathlib import Path

import jupytext
import pytest

pytestmark = pytest.mark.proves("guides", "notebooks")

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("**/*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.name)
def notebook(request):
    return request.param


def test_a_notebook_equals_its_python_half(notebook):
    """`jupytext --to ipynb --update notebooks/NAME.py` makes it so."""
    cells, paired = (
        [(cell.cell_type, cell.source) for cell in jupytext.read(path).cells]
        for path in (notebook, notebook.with_suffix(".py"))
    )
    assert cells == paired


def test_a_notebook_is_small_and_was_run_in_order(notebook):
    assert notebook.stat().st_size <= 600_000
    code = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
