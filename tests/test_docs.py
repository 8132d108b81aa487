"""Every section of docs/composing.md runs as it stands, prints what the page says it prints, and stays short."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INTRODUCTION, *SECTIONS = re.split(r"^## ", (ROOT / "docs" / "composing.md").read_text(), flags=re.MULTILINE)
SECTIONS = {section.partition("\n")[0]: section for section in SECTIONS}


def blocks(text: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def program(title: str) -> str:
    return "\n".join(blocks(INTRODUCTION) + blocks(SECTIONS[title]))


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_runs_and_prints_what_it_says(title):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program(title), f"docs/composing.md: {title}", "exec"), {"__name__": "composing"})
    assert out.getvalue() == "".join(blocks(SECTIONS[title], "text"))


@pytest.mark.parametrize("title", SECTIONS)
def test_a_section_is_short_and_compares(title):
    (code,) = blocks(SECTIONS[title])
    assert len(code.splitlines()) <= 25
    assert "same(" in code or "```text" in SECTIONS[title]


def test_the_block_inside_shard_map_runs_on_eight_devices():
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    env["PYTHONPATH"] = str(ROOT)
    code = program("Inside `shard_map`") + "\nprint(len(outputs.sharding.device_set))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "8\n"


def test_the_comparison_can_fail():
    names: dict = {}
    exec("\n".join(blocks(INTRODUCTION)), names)
    with pytest.raises(AssertionError):
        names["same"]({"a": names["x"]}, {"a": names["x"] + 1e-3})
