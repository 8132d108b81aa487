"""The documentation site names every page, shows every public name and config, and has no dead link."""

import doctest
import importlib
import json
import pkgutil
import re
from pathlib import Path

import pytest
import yaml

import flax_transformer as ft
from flax_transformer.frozen import meanings
from website import docstring, link, notebook, reference, result

ROOT = Path(__file__).parent.parent
ROOMS = reference.rooms()
SHOWN = {name.path for room in ROOMS for name in reference.names(room)}


def leaves(nav):
    """Return the files that a navigation names."""
    for entry in nav if isinstance(nav, list) else nav.values():
        yield from [entry] if isinstance(entry, str) else leaves(entry)


def test_the_navigation_names_every_page():
    config = yaml.safe_load((ROOT / "website/mkdocs.yml").read_text())
    pages = {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/results.md", "reference/index.md"}
    pages |= {f"docs/{path.name}" for path in ROOT.glob("docs/*.md")}
    notebooks = ROOT.glob("notebooks/**/*.ipynb")
    pages |= {f"{path.relative_to(ROOT).with_suffix('.md')}" for path in notebooks} | {"notebooks/book/README.md"}
    pages |= {f"reference/{room}.md" for room in ROOMS}
    assert sorted(leaves(notebook.with_chapters(config["nav"]))) == sorted(pages)


def test_every_room_has_a_page():
    assert set(ft.__all__) <= set(ROOMS)


def test_every_room_says_what_is_in_it():
    assert [room for room in ROOMS if not reference.first_words(f"flax_transformer.{room}")] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_page_shows_all_that_its_room_exports(room):
    package = importlib.import_module(f"flax_transformer.{room}")
    exported = getattr(package, "__all__", None) or [name.name for name in reference.exports(room)]
    page = reference.page(room)
    for name in exported:
        value = getattr(package, name)  # what `__all__` names must be there
        own = getattr(value, "__module__", "").startswith("flax_transformer") and hasattr(value, "__qualname__")
        where = rf"{value.__module__}.{value.__qualname__}" if own else rf"flax_transformer\.[\w.]+\.{name}"
        assert re.search(rf"^::: {where}$|\{{ #{where} \}}$", page, re.MULTILINE), name


def test_every_config_is_shown_with_its_fields():
    missing = []
    for module in pkgutil.walk_packages(ft.__path__, "flax_transformer."):
        if ".cli" in module.name or "chat_worker" in module.name:
            continue
        found = importlib.import_module(module.name)
        for value in vars(found).values():
            if isinstance(value, type) and value.__module__ == module.name and is_frozen(value):
                missing += [f"{module.name}.{value.__name__}"] if f"{module.name}.{value.__name__}" not in SHOWN else []
    assert [name for name in missing if not name.rpartition(".")[2].startswith("_")] == []


def is_frozen(kind):
    return type(vars(kind).get("__doc__")).__name__ == "_Docstring"


def test_all_that_pages_import_is_shown():
    exported = {f"flax_transformer.{room}.{name.name}" for room in ROOMS for name in reference.exports(room)}
    loose = {f"flax_transformer.{name}" for name in reference.LOOSE}
    assert "flax_transformer.frozen.frozen" in reference.used() - SHOWN - exported <= loose
    assert all(f"::: {name}\n" in reference.index() for name in loose)


def test_every_page_of_the_reference_names_what_is_there():
    """A name of the reference that is nowhere would end the build; this finds it without the site's tools."""
    for path in SHOWN:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name)


def test_names_in_texts_are_linked_and_code_is_left_alone():
    said = reference.linked("<p><code>ops.Mask</code> <code>x</code></p><pre><code>ops.Mask</code></pre>")
    mask = '<autoref identifier="flax_transformer.ops.mask.Mask"><code>ops.Mask</code></autoref>'
    assert said == f"<p>{mask} <code>x</code></p><pre><code>ops.Mask</code></pre>"


def test_the_dialect_of_docstrings():
    assert doctest.testmod(docstring) == (0, 3)
    both = "Args:\n  args, kwargs: given on.\n\n>>> f(1)\n2"
    assert docstring.rendered(both, {"args": "*args", "kwargs": "**kwargs"}) == (
        "Args:\n  *args: given on.\n  **kwargs: given on.\n\n```pycon\n>>> f(1)\n2\n```"
    )


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/results").glob("*.json")), ids=lambda path: path.stem)
def test_the_results_are_those_of_the_files(path):
    found = json.loads(path.read_text())
    section = result.section(path.stem, found)
    assert found.get("command", "") in section
    assert {**found.get("environment", {}), **found}["date"] in section
    for name, value in found.get("test", {}).items():
        assert result.spoken(name) in section
        assert result.number(value) in section


def test_numbers_are_written_for_people():
    assert doctest.testmod(result) == (0, 1)


def test_a_notebook_is_shown_as_it_was_run():
    path = ROOT / "notebooks/sharding.ipynb"
    page, cells = notebook.page(path), json.loads(path.read_text())["cells"]
    for cell in cells:
        assert "".join(cell["source"]).partition("\n")[0] in page
    printed = ["".join(output["text"]) for cell in cells for output in cell.get("outputs", []) if "text" in output]
    assert printed
    assert all(line.rstrip() in page for text in printed for line in text.splitlines())


def test_a_solution_is_folded_and_its_check_is_not(tmp_path):
    hidden = {"tags": ["solution"], "jupyter": {"source_hidden": True}}
    cells = [{"cell_type": "markdown", "source": ["# Title"]}]
    cells += [{"cell_type": "code", "source": ["def f():\n", "    pass"], "outputs": [], "metadata": hidden}]
    cells += [{"cell_type": "code", "source": ["f()"], "outputs": [], "metadata": {"tags": ["check"]}}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    solution = '??? example "Solution"\n    ```python\n    def f():\n        pass\n    ```'
    assert notebook.page(tmp_path / "a.ipynb").endswith(f"{solution}\n\n```python\nf()\n```")


def test_formulas_of_a_notebook_are_mathml(tmp_path):
    pytest.importorskip("latex2mathml", reason="the site's tools are installed by `make docs`")
    cells = [{"cell_type": "markdown", "source": ["# Title"]}]
    cells += [{"cell_type": "markdown", "source": ["$x$ begins a line\n\n$$x =\n", "y$$"]}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    page = notebook.page(tmp_path / "a.ipynb")
    assert "$" not in page
    assert "\n<math" in page  # a block
    assert "\n<span><math" in page  # not a block, though at the beginning of a line


def test_what_belongs_to_a_numbered_item_is_indented_by_four(tmp_path):
    text = "```python\nif x:\n    y\n```\n\n1. Do\n   this:\n\n   ```python\n   if x:\n       y\n   ```\n"
    cells = [{"cell_type": "markdown", "source": ["# Title"]}, {"cell_type": "markdown", "source": [text]}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    page = notebook.page(tmp_path / "a.ipynb")
    assert "```python\nif x:\n    y\n```" in page
    assert "1. Do\n    this:\n\n    ```python\n    if x:\n        y\n    ```" in page


def test_what_a_cell_prints_in_pieces_is_shown_as_one(tmp_path):
    pieces = [{"output_type": "stream", "text": ["one\n"]}, {"output_type": "stream", "text": ["two\n"]}]
    cells = [{"cell_type": "markdown", "source": ["# Title"]}]
    cells.append({"cell_type": "code", "source": ["f()"], "outputs": pieces})
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert notebook.page(tmp_path / "a.ipynb").endswith("```python\nf()\n```\n\n```text { .output }\none\ntwo\n```")


def test_a_dead_link_and_what_other_hosts_have_are_found(tmp_path):
    (tmp_path / "index.html").write_text('<h2 id="here"></h2><a href="a.html#there">x</a><a href="#here">x</a>')
    (tmp_path / "a.html").write_text('<a href="gone.html">x</a><a href="https://elsewhere.org">x</a>')
    (tmp_path / "b.html").write_text('<script src="https://elsewhere.org/x.js"></script><a name="there"></a>')
    assert link.faults(tmp_path) == [
        "a.html links to gone.html, which is not there",
        "b.html fetches https://elsewhere.org/x.js",
        "index.html links to a.html#there, which is not there",
    ]
    (tmp_path / "a.html").write_text('<a id="there" href="index.html#here">x</a>')
    (tmp_path / "b.html").write_text('<script src="a.html"></script>')
    assert link.faults(tmp_path) == []


@pytest.mark.rotates
def test_a_field_is_shown_with_the_string_below_it():
    pytest.importorskip("griffe", reason="the site's tools are installed by `make docs`")
    import griffe

    loaded = griffe.load(
        "flax_transformer",
        search_paths=[str(ROOT)],
        extensions=griffe.load_extensions(str(ROOT / "website/field.py")),
    )
    config = loaded["nn.attention.CrossAttentionConfig"]
    kind = importlib.import_module("flax_transformer.nn").CrossAttentionConfig
    (fields,) = [part for part in config.docstring.parse("google") if part.kind.value == "parameters"]
    said = {field.name: field.description for field in fields.value}
    assert meanings(kind).items() <= said.items()  # inherited ones too
    assert {field.name: field.default for field in fields.value}["qk_norm"] == "None"
    assert "flax_transformer.nn.Precision" in loaded["nn.config.Precision"].aliases  # what others import leads to it
