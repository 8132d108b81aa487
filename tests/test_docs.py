"""Every section of the pages that are programs runs as it stands, prints what the page says, and stays short."""

import contextlib
import io
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from fake_devices import on_eight

from tests.shares import share

pytestmark = pytest.mark.proves("guides", "every section of docs/ runs")

ROOT = Path(__file__).parent.parent
PAGES = (
    "start_composing",
    "composing",
    "checkpoints",
    "compression",
    "vision",
    "multimodal",
    "speech",
    "decisions",
    "video",
)

GUIDES = ("retrieval", "self_supervision", "image_generation", "inside")
"""Pages of which some sections are programs."""
WHOLE = ("documents", "embeddings", "image_to_image")
"""Pages whose programs are one, and check what they say themselves."""


def parts(page: str) -> tuple[str, dict[str, str]]:
    """Split a page into what stands before its sections, and the sections by title."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    introduction, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    return introduction, {section.partition("\n")[0]: section for section in sections}


def blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


SECTIONS = [(page, title) for page in PAGES for title in parts(page)[1]]
SECTIONS += [(page, title) for page in GUIDES for title, section in parts(page)[1].items() if blocks(section)]
SECTIONS.append(("text", "Forms of data"))
RUN = [*SECTIONS, *(("text", title) for title in ("Long texts", "Generating"))]


def program(page: str, title: str) -> str:
    introduction, sections = parts(page)
    return "\n".join(blocks(introduction) + blocks(sections[title]))


@pytest.mark.rotates
@pytest.mark.parametrize(("page", "title"), share(RUN, 3, of=9))
def test_a_section_runs_and_prints_what_it_says(page, title):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program(page, title), f"docs/{page}.md: {title}", "exec"), {"__name__": page})
    assert out.getvalue() == "".join(blocks(parts(page)[1][title], "text"))


@pytest.mark.rotates
@pytest.mark.parametrize("page", WHOLE)
def test_a_page_runs_as_a_whole(page):
    code = "\n".join(blocks((ROOT / "docs" / f"{page}.md").read_text()))
    assert "assert " in code
    exec(compile(code, f"docs/{page}.md", "exec"), {"__name__": page})


@pytest.mark.parametrize(("page", "title"), SECTIONS)
def test_a_section_is_short_and_compares(page, title):
    section = parts(page)[1][title]
    (code,) = blocks(section)
    assert len(code.splitlines()) <= 25
    assert "same(" in code or "```text" in section


@pytest.mark.rotates
def test_the_block_inside_shard_map_runs_on_eight_devices():
    code = program("composing", "Inside `shard_map`") + "\nprint(len(outputs.sharding.device_set))"
    assert on_eight("-c", code)[0] == 8


@pytest.mark.rotates
def test_a_mesh_of_ones_own_may_have_eight_devices():
    code = program("composing", "On a mesh of your own") + "\nprint(len(outputs.sharding.device_set))"
    assert on_eight("-c", code)[0] == 8


def test_the_comparison_can_fail():
    names: dict = {}
    exec("\n".join(blocks(parts("composing")[0])), names)
    with pytest.raises(AssertionError):
        names["same"]({"a": names["x"]}, {"a": names["x"] + 1e-3})


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_a_layer_of_ones_own_has_a_table_and_plans_in_ten_lines(platform, tmp_path, monkeypatch):
    """For the chips whose compiler is here."""
    compilers = {"tpu": ("libtpu",), "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin")}[platform]
    if not any(map(find_spec, compilers)):
        pytest.skip(f"needs {' or '.join(compilers)}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (code,) = blocks((ROOT / "docs" / "tpu.md").read_text())
    assert len([line for line in code.splitlines() if line]) <= 10
    said = {"tpu": ('("v5e:2x2",)', "4 chips, 4 devices"), "gpu": ('("h100:8",)', "8 GPUs, 1 host of 8")}[platform]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code.replace('("v5e:2x2", "h100:8")', said[0]), {})
    assert "FLOP/s" in out.getvalue()
    assert said[1] in out.getvalue()
