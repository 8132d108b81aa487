"""What the pages to start with show is what their commands print, but for the numbers."""

import re
import shlex
from pathlib import Path

import jax
import pytest

from tests.test_docs import blocks

PAGE = (Path(__file__).parent.parent / "docs" / "start_measuring.md").read_text()
(MINE,) = blocks(PAGE)
SHOWN = dict(re.findall(r"```sh\n(flax-transformer \w+ mine.py[^\n]*)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL))


def labels(text):
    """Return the first column of each line that has several, without the spaces before it."""
    return [re.split(r"\s{2,}", line.strip())[0] for line in text.splitlines() if re.search(r"\S\s{2,}\S", line)]


@pytest.mark.rotates
def test_the_function_shown_is_one_that_can_be_measured():
    names: dict = {}
    exec(MINE, names)
    step, arguments = names["train"]()
    assert jax.tree.structure(jax.eval_shape(step, *arguments)) == jax.tree.structure(arguments[0])


@pytest.mark.slow
def test_measuring_prints_the_lines_shown(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    measured = {command: output for command, output in SHOWN.items() if " bench " in command}
    assert len(measured) == 2
    for command, output in measured.items():
        _, said, error = run(*shlex.split(command)[1:])
        assert labels(output), command
        assert labels(said)[-len(labels(output)) :] == labels(output), error


def test_the_plan_shown_is_of_the_function_shown():
    (command,) = (command for command in SHOWN if " plan " in command)
    assert shlex.split(command)[2] == "mine.py:train"
    flops = [re.search(r"model FLOPs.*?([\d.]+ G)", output)[1] for output in SHOWN.values() if "model FLOPs" in output]
    assert len(set(flops)) == 1  # the same program, measured here and compiled for a TPU
