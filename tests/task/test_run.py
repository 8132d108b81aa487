"""Whole runs of an experiment file, each in a process of its own: resuming, interrupting, bad input."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_transformer.train.checkpoint import Checkpoints

ROOT = Path(__file__).parent.parent.parent
PARTS = (
    *((side, part) for side in ("encoder", "decoder") for part in ("attention", "feedforward", "residual")),
    ("decoder", "cross"),
)
SMALL = {
    "model.embedding.embed": 32,
    **{f"model.{side}.depth": 1 for side in ("encoder", "decoder")},
    **{f"model.{side}.block.{part}.embed": 32 for side, part in PARTS},
    **{f"model.{side}.block.{part}.heads": 2 for side, part in PARTS if part in ("attention", "cross")},
    **{f"model.{side}.block.feedforward.inner": 32 for side in ("encoder", "decoder")},
    "data.train": 400,
    "data.validation": 20,
    "data.test": 5,
    "batch.tokens": 512,
    "batch.buckets": 2,
    "bpe.merges": 20,
    "optimizer.schedule.name": "constant",
    "optimizer.schedule.warmup": 4,
    "evaluators.0.search.batch": 5,
    "train.log-every": 5,
    "train.eval-every": 10,
    "train.checkpoint-every": 5,
    "train.ema": 0.9,
}
TINY = [part for name, value in SMALL.items() for part in (f"--{name}", value)]


@pytest.fixture(scope="module")
def environment():
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def command(name, *arguments):
    return [sys.executable, str(ROOT / "experiments" / f"{name}.py"), *map(str, arguments)]


def run(environment, *arguments, name="translate_numbers"):
    return subprocess.run(command(name, *arguments), env=environment, capture_output=True, text=True, timeout=300)


def good(done):
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def straight(environment, tmp_path_factory):
    """Twenty steps in one go."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    done = good(run(environment, "--workdir", folder, "--train.steps", 20, *TINY))
    return folder, done.stdout


def arrays(folder, step):
    """Every array of a checkpoint, by path, as bytes."""
    with Checkpoints(folder / "checkpoints", keep=None) as checkpoints:
        shapes = checkpoints.shapes(step)
        nested = {name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for name, leaf in shapes.items()}
        state, meta = checkpoints.restore(nested, step)
    return {name: np.asarray(leaf).tobytes() for name, leaf in state.items()}, meta


def metrics(folder):
    """The lines of metrics.jsonl without speeds."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


def assert_same_run(one, other):
    (left, left_meta), (right, right_meta) = arrays(one, 20), arrays(other, 20)
    assert len(left) > 100  # parameters, two moments, average, step, key
    assert left.keys() == right.keys()
    assert [name for name in left if left[name] != right[name]] == []
    assert left_meta == right_meta


@pytest.mark.slow
def test_ten_steps_a_restart_and_ten_more_equal_twenty_bit_for_bit(straight, environment, tmp_path):
    whole, _ = straight
    good(run(environment, "--workdir", tmp_path / "run", "--train.steps", 10, *TINY))
    again = good(run(environment, "--workdir", tmp_path / "run", "--train.steps", 20, *TINY))
    assert "resuming from step 10" in again.stdout
    assert_same_run(tmp_path / "run", whole)
    assert metrics(tmp_path / "run") == metrics(whole)
    assert (tmp_path / "run" / "samples.jsonl").read_text() == (whole / "samples.jsonl").read_text()


def interrupted(environment, folder, *, after, delay=0.0, steps=20):
    """Start a run and send SIGINT once a line of its output holds `after`."""
    arguments = ["--workdir", folder, "--train.steps", steps, *TINY]
    process = subprocess.Popen(
        command("translate_numbers", *arguments),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    guard = threading.Timer(200, process.kill)
    guard.start()
    for line in process.stdout:
        if after in line:
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate()
    guard.cancel()
    assert "Traceback" not in err
    return process.returncode, out, err


def saved(folder):
    with Checkpoints(folder / "checkpoints", keep=None) as checkpoints:
        return checkpoints.steps()


@pytest.mark.slow
def test_ctrl_c_saves_says_how_to_go_on_and_resumes_exactly(straight, environment, tmp_path):
    whole, _ = straight
    code, out, err = interrupted(environment, tmp_path, after="step  5/20")
    assert code == 130
    assert "interrupted: saving after this step" in out
    step = saved(tmp_path)[-1]
    assert f"stopped at step {step}; the same command goes on from there" in err
    good(run(environment, "--workdir", tmp_path, "--train.steps", 20, *TINY))
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
def test_ctrl_c_while_the_first_step_is_compiled(environment, tmp_path):
    cold = {name: value for name, value in environment.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    code, _, err = interrupted(cold, tmp_path, after=" parameters, ", delay=1.0, steps=5_000)
    assert code == 130
    step = saved(tmp_path)[-1]
    assert step <= 2
    assert f"stopped at step {step}; the same command goes on from there" in err


@pytest.mark.slow
def test_a_run_ends_with_samples_score_and_what_to_try_next(straight):
    folder, said = straight
    assert "\nexact match 0.0 % on 5 test sentences" in said
    assert f"run folder: {folder}" in said
    assert f"flax-transformer translate {folder}" in said
    assert "\x1b" not in said
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 5
    assert samples[0].keys() >= {"source", "target", "hypothesis", "score", "tokens", "logprobs"}
    assert len(samples[0]["tokens"]) == len(samples[0]["logprobs"])
    for name in ("config.json", "tokenizer.json", "tensorboard", "model.json", "export/model.safetensors"):
        assert (folder / name).exists()
    train, validation = [(step, "train") for step in (5, 10, 15, 20)], [(step, "validation") for step in (10, 20)]
    found = [(line["step"], line["split"]) for line in metrics(folder)]
    assert found == [*sorted(train + validation), (20, "test")]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_told_in_one_sentence(straight, environment, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(straight[0], folder)
    newest = folder / "checkpoints" / "20"
    path = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    arguments = ["--workdir", folder, "--train.steps", 20, *TINY]
    done = run(environment, *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: checkpoint 20 is damaged: {path} has changed; step 15 is the last good one, "
        f"to go on from there delete {newest}"
    )
    assert "Traceback" not in done.stderr
    shutil.rmtree(newest)
    assert "resuming from step 15" in good(run(environment, *arguments)).stdout
    assert_same_run(folder, straight[0])
