"""Every line of the page of the first hour runs, in its order, on small checkpoints and small data."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.task.checkpoints import checkpoint, corpus, speech

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "first_hour.md").read_text()
BLOCKS = re.findall(r"```(python|sh)\n(.*?)```", PAGE, re.DOTALL)
SHORT = {
    "train.steps": 2, "train.log-every": 1, "train.eval-every": 2, "train.checkpoint-every": 2,
    "optimizer.schedule.warmup": 1,
}  # fmt: skip
ROWS = {
    "finetune_image": "--rows 4", "classify_text": "--rows 4 --length 32 --buckets 1",
    "recognise_speech": "--rows 4", "pretrain_bert": "--rows 4 --length 24",
    "translate_text": "--batch.tokens 256 --batch.buckets 1 --batch.max-tokens 24 --evaluators.0.search.beams 1 "
    "--evaluators.0.search.ratio 0 --evaluators.0.search.extra 12 --evaluators.0.search.batch 4",
}  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Be where the page's folders are."""
    import PIL.Image

    for name, kind in (("whisper", "whisper"), ("opus", "marian"), ("vit", "vit")):
        checkpoint(kind, tmp_path / name)
    checkpoint("bert", tmp_path / "bert", architectures=["BertForMaskedLM"])
    rng = np.random.default_rng(0)
    for flower in ("daisy", "rose"):
        (tmp_path / "flowers" / flower).mkdir(parents=True)
        for number in range(10):
            pixels = rng.integers(0, 256, (16, 16), np.uint8)
            PIL.Image.fromarray(pixels).save(tmp_path / "flowers" / flower / f"{number}.png")
    (tmp_path / "reviews").mkdir()
    for split in ("train", "dev", "test"):
        lines = (f"{word}\t{label}\n" for word, label in (("good", "for"), ("bad", "against")) * 8)
        (tmp_path / "reviews" / f"{split}.tsv").write_text("".join(lines))
    corpus(tmp_path / "corpus")
    speech(tmp_path / "speech", ["one two", "nine", "seven"] * 4)
    (tmp_path / "text.txt").write_text("zero one\ntwo three four\nfive\nsix seven\neight nine\n" * 60)
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(line, monkeypatch):
    """Run an experiment as a command does, for two steps."""
    _, file, *given = shlex.split(line)
    options = [word for name, value in SHORT.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", [file, *given, *options, *ROWS[Path(file).stem].split()])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(file, run_name="__main__")
    assert not stop.value.code


def command(line, run):
    """Run a command, with what is sent into it."""
    words = shlex.split(line)
    sent = Path(words[words.index("<") + 1]).read_bytes() if "<" in words else b""
    words = words[: words.index("<")] if "<" in words else words
    code, out, err = run(*words[1:], stdin=sent)
    assert code == 0, err
    assert out


@pytest.mark.rotates
def test_the_python_of_the_page_runs(place):
    names: dict = {}
    for language, code in BLOCKS:
        if language == "python":
            exec(compile(code, "docs/first_hour.md", "exec"), names)
    assert (place / "bert-trained" / "config.json").is_file()


@pytest.mark.slow
def test_the_commands_of_the_page_run(place, run, monkeypatch):
    for language, code in BLOCKS:
        for line in code.splitlines() if language == "sh" else ():
            train(line, monkeypatch) if line.startswith("python ") else command(line, run)


def test_the_page_is_short():
    assert len(PAGE.splitlines()) <= 70
