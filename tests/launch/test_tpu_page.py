"""What docs/tpu.md, and the page before it, show below each dry run is what the command prints."""

import re
import shlex
from pathlib import Path

import pytest

from flax_transformer.launch.accelerator import ACCELERATORS, GENERATIONS

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/tpu.md").read_text()
DRY = re.compile(r"```sh\n(flax-transformer launch [^\n]*--dry-run[^\n]*)\n```\n\n```text\n(.*?)```", re.DOTALL)
SHOWN, BEFORE = DRY.findall(PAGE), DRY.findall((ROOT / "docs/start_launching.md").read_text())


def without_digest(text):
    return re.sub(r"\b[0-9a-f]{16}\b", "DIGEST", text)


def test_every_dry_run_is_shown_with_its_output():
    assert len(SHOWN) == PAGE.count("--dry-run --") + PAGE.count("--dry-run\n") == 5
    assert len(BEFORE) == 1


@pytest.mark.rotates
@pytest.mark.parametrize(("command", "output"), SHOWN + BEFORE)
def test_a_dry_run_prints_what_the_page_shows(run, tmp_path, monkeypatch, command, output):
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*shlex.split(command)[1:])
    assert code == 0, err
    assert without_digest(out) == without_digest(output)


def test_the_table_of_tpus_is_the_launchers():
    rows = [line.split(" | ") for line in PAGE.splitlines() if re.match(r"\| (v\d|tpu)", line)]
    assert [row[0][2:] for row in rows] == [generation.name for generation in GENERATIONS]
    for row, generation in zip(rows, GENERATIONS, strict=True):
        slices = [slice for slice in ACCELERATORS if slice.generation == generation]
        assert row[1] == f"{slices[0].name} … {slices[-1].name}"
        assert row[2] == f"{slices[0].topology} … {slices[-1].topology}"
        assert row[-1] == f"{generation.runtime or '–'} |"
