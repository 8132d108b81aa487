"""The command line on a small trained run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

from flax_transformer.task.experiment import train
from flax_transformer.task.translator import Search
from tests.recipe import tiny_translation

ROOT = Path(__file__).parent.parent
EXPERIMENT = tiny_translation(
    search=Search(beams=1, ratio=1.0, extra=4, batch=4),
    steps=12,
    log_every=6,
    eval_every=12,
    checkpoint_every=6,
    average=2,
)  # fmt: skip
SENTENCES = ["three hundred twenty-one", "seven", "four thousand two"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    train(EXPERIMENT, folder)
    return folder


def text(lines):
    return "".join(line + "\n" for line in lines).encode()


@pytest.mark.rotates
def test_translate_gives_one_line_a_sentence(run, workdir):
    code, out, err = run("translate", workdir, stdin=text(SENTENCES))
    assert (code, err) == (0, "")
    assert out.count("\n") == 3
    # In any order, and one at a time, the answers are the same.
    assert run("translate", workdir, stdin=text(SENTENCES[::-1]))[1].splitlines() == out.splitlines()[::-1]


@pytest.mark.rotates
def test_translate_by_files(run, workdir, tmp_path):
    (tmp_path / "in").write_bytes(text(SENTENCES))
    code, out, _ = run("translate", workdir, "--input", tmp_path / "in", "--output", tmp_path / "out")
    assert (code, out) == (0, "")
    assert (tmp_path / "out").read_text() == run("translate", workdir, stdin=text(SENTENCES))[1]


@pytest.mark.slow
def test_n_best_lists_are_numbered_and_sorted(run, workdir):
    code, out, _ = run("translate", workdir, "--beam", 3, "--n-best", 2, "--length-penalty", 0.6, stdin=text(SENTENCES))
    assert code == 0
    rows = [line.split("\t") for line in out.splitlines()]
    assert [int(row[0]) for row in rows] == [1, 1, 2, 2, 3, 3]
    scores = np.array([float(row[1]) for row in rows]).reshape(3, 2)
    assert (scores[:, 0] >= scores[:, 1]).all()
    assert all(len(row) == 3 for row in rows)


@pytest.mark.rotates
def test_more_best_than_beams_is_refused(run, workdir):
    code, out, err = run("translate", workdir, "--beam", 2, "--n-best", 3, stdin=b"one\n")
    assert (code, out) == (1, "")
    assert "n_best must be between 1 and beams, got n_best=3, beams=2" in err


@pytest.mark.rotates
def test_empty_lines_stay_in_place(run, workdir):
    code, out, _ = run("translate", workdir, stdin=b"seven\n\n   \nseven\n")
    lines = out.split("\n")
    assert code == 0
    assert len(lines) == 5
    assert lines[0] == lines[3] != ""
    assert lines[1] == ""


@pytest.mark.rotates
def test_the_last_line_needs_no_end_and_windows_ends_are_ends(run, workdir):
    assert run("translate", workdir, stdin=b"seven\r\nseven")[1].count("\n") == 2


def test_nothing_in_nothing_out(run, workdir):
    assert run("translate", workdir, stdin=b"") == (0, "", "")


def test_a_line_that_is_not_utf8_is_named(run, workdir, tmp_path):
    (tmp_path / "in").write_bytes(b"one\ntwo \xff\n")
    code, out, err = run("translate", workdir, "--input", tmp_path / "in")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {tmp_path / 'in'}, line 2: not UTF-8")
    assert "error: standard input, line 1: not UTF-8" in run("translate", workdir, stdin=b"\xff")[2]


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--input", "none.txt"), "there is no file none.txt"),
        (("--output", "none/out.txt"), "none/out.txt"),
    ],
)
def test_files_that_are_not_there_are_named(run, workdir, arguments, message):
    code, _, err = run("translate", workdir, *arguments, stdin=b"seven\n")
    assert code == 1
    assert message in err


def test_folders_that_are_no_run_are_named(run, tmp_path):
    for command, rule in (("translate", "neither a run folder nor a checkpoint"), ("show", "not a run folder")):
        code, _, err = run(command, tmp_path)
        assert code == 1
        assert f"{tmp_path} is {rule}: it has no config.json" in err


def corpus(folder):
    (folder / "source").write_bytes(text(SENTENCES))
    (folder / "reference").write_bytes(text(["drei hundert ein und zwanzig", "sieben", "viertausendzwei"]))
    return "--source", folder / "source", "--reference", folder / "reference"


@pytest.mark.rotates
def test_evaluate_equals_sacrebleu(run, workdir, tmp_path):
    code, out, _ = run("evaluate", workdir, *corpus(tmp_path))
    result = json.loads(out)
    hypotheses = run("translate", workdir, "--input", tmp_path / "source")[1].splitlines()
    references = [(tmp_path / "reference").read_text().splitlines()]
    bleu = sacrebleu.metrics.BLEU()
    assert code == 0
    assert result["bleu"] == bleu.corpus_score(hypotheses, references).score
    assert result["signature"] == str(bleu.get_signature())
    assert "tok:13a" in result["signature"]
    assert result["chrf"] == sacrebleu.corpus_chrf(hypotheses, references).score
    assert result["tokenized_bleu"] == sacrebleu.corpus_bleu(hypotheses, references, tokenize="none", force=True).score
    assert result["sentences"] == 3
    assert result["sentences_per_second"] > 0


def test_evaluate_names_unequal_counts(run, workdir, tmp_path):
    arguments = corpus(tmp_path)
    (tmp_path / "reference").write_text("eins\n")
    code, _, err = run("evaluate", workdir, *arguments)
    assert code == 1
    assert "got 3 in" in err
    assert "1 in" in err


def test_show_gives_configuration_parameters_and_metrics(run, workdir):
    code, out, _ = run("show", workdir)
    assert code == 0
    assert "evaluators.0: Translations" in out
    assert "learning_rate: 0.003" in out
    assert ["query.kernel", "1×16×2×8", "256", "1.02", "kB"] in [line.split()[:5] for line in out.splitlines()]
    assert "checkpoints: 6, 12" in out
    assert "validation (step 12): loss" in out
    assert "test (step 12): chrf" in out


def test_show_knows_presets_and_answers_a_misspelt_one_with_the_nearest(run):
    code, out, _ = run("show", "transformer_base")
    assert code == 0
    assert "heads: 8" in out
    assert out.startswith("transformer_base: Seq2Seq\nthe paper's base")
    assert out.splitlines()[-1].split()[:3] == ["total", "float32", "63,082,496"]
    code, out, err = run("show", "transformer_bass")
    assert (code, out) == (1, "")
    assert "no run folder transformer_bass" in err
    assert "did you mean transformer_base" in err
    listed = run("show", "xyz")[2].partition("there are ")[2]
    assert {"transformer_base", "transformer_big", "transformer_tiny", "gpt2"} <= set(listed.strip().split(", "))


def test_a_damaged_checkpoint_is_named(run, workdir, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(workdir, copy)
    data = max((copy / "checkpoints" / "12").rglob("*"), key=lambda path: path.stat().st_size)
    data.write_bytes(b"x" * data.stat().st_size)
    code, _, err = run("translate", copy, stdin=b"seven\n")
    assert code == 1
    assert f"checkpoint 12 is damaged: {data} has changed; step 6 is the last good one" in err


def test_a_misspelt_flag_is_answered_with_the_nearest(run, workdir):
    code, out, err = run("translate", workdir, "--beams", 3)
    assert code != 0
    assert "--beam" in (out + err).split("Perhaps you meant")[-1]


def python(*arguments, **options):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=120, **options)


@pytest.mark.rotates
def test_a_reader_that_has_had_enough_is_no_error():
    command = [sys.executable, "-m", "flax_transformer.cli", "show", "transformer_tiny"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    child.stdout.close()  # as `head` does
    said = child.stderr.read()
    assert child.wait() == 141
    assert "error" not in said
    assert "Traceback" not in said


def test_help_loads_no_jax():
    code = (
        "import sys; from flax_transformer.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('jax', 'flax', 'numpy', 'tokenizers', 'grain') if m in sys.modules])"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    for command in ("translate", "evaluate", "show"):
        assert command in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.rotates
def test_all_below_the_command_line_imports_light():
    """A machine with only jax, flax, optax, orbax and einops can import and run the core."""
    code = (
        "import importlib, pkgutil, sys, flax.nnx, flax_transformer as top\n"
        "before = set(sys.modules)\n"  # flax itself loads rich
        "for module in pkgutil.walk_packages(top.__path__, 'flax_transformer.', onerror=print):\n"
        "    if module.name.split('.')[1] not in ('cli', 'bench', 'launch'):\n"
        "        importlib.import_module(module.name)\n"
        "heavy = 'tensorflow_datasets grain tyro tensorboardX matplotlib rich tensorflow torch transformers'\n"
        "print(len([m for m in sys.modules if m.startswith('flax_transformer.')]))\n"
        "print([m for m in heavy.split() if m in set(sys.modules) - before])"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    count, heavy = done.stdout.splitlines()
    assert int(count) > 40
    assert heavy == "[]"
