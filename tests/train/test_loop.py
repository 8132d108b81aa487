"""Every way a run may end: at its last step, early, by a loss that is no number, by a disk that is full."""

import json
import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flax_transformer.train.checkpoint import CheckpointError, Checkpoints
from flax_transformer.train.loop import Evaluation, Interrupted, NotFinite, Reporting, TrainConfig, fit
from flax_transformer.train.metrics import JsonLines
from flax_transformer.train.state import init_state
from flax_transformer.train.step import jit_train_step, make_train_step


class Stream:
    """Rows drawn by position; from step `bad` on (counted from 1) they are not numbers."""

    def __init__(self, bad=10**9, at=None):
        self.step, self.bad, self.at = 0, bad, at or {}

    def __iter__(self):
        return self

    def __next__(self):
        self.step += 1
        if self.step in self.at:
            self.at[self.step]()
        rows = np.random.default_rng(self.step).normal(size=(4, 3)).astype(np.float32)
        return np.full_like(rows, np.nan) if self.step >= self.bad else rows

    def get_state(self):
        return {"step": self.step}

    def set_state(self, state):
        self.step = state["step"]


def objective(model, batch, *, key):
    noise = jax.random.normal(key, model["kernel"].shape)
    return jnp.sum((batch @ (model["kernel"] + 0.1 * noise) - 1.0) ** 2), {"count": jnp.float32(batch.shape[0])}


BETTER = {"loss": "lower", "accuracy": "higher", "bleu": "higher"}


def run(folder, config, stream=None, *, losses=(), rate=0.05, writer=None):
    """Train; validation losses are taken from `losses`, by step, or fall."""
    optimizer = optax.sgd(rate)
    init = lambda key: {"kernel": jax.random.normal(key, (3, 2))}  # noqa: E731
    state = init_state(init, optimizer, jax.random.key(config.seed), ema=config.ema > 0)
    step = jit_train_step(make_train_step(objective, optimizer, ema=config.ema), state)
    evaluate = lambda model, at: {"loss": dict(losses).get(at, 1 / at), "accuracy": at / 100}  # noqa: E731
    schedule = lambda count: rate  # noqa: E731
    with Checkpoints(folder / "checkpoints", keep=config.keep) as checkpoints:
        after = (checkpoints.steps() or [0])[-1]
        own = writer or JsonLines(folder / "metrics.jsonl", after=after)
        try:
            return fit(
                state, step, stream or Stream(), config,
                checkpoints=checkpoints, evaluation=Evaluation(evaluate, BETTER), reporting=Reporting(own, schedule),
            )  # fmt: skip
        finally:
            own.close()


def saved(folder):
    with Checkpoints(folder / "checkpoints", keep=None) as checkpoints:
        return checkpoints.steps()


def records(folder, *, speeds=False):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines if speeds else [{k: v for k, v in line.items() if "second" not in k} for line in lines]


def every(n, **options):
    return TrainConfig(**{"steps": 20, "log_every": n, "eval_every": n, "checkpoint_every": n, **options})


@pytest.mark.rotates
@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_run_in_two_parts_equals_one_in_one(tmp_path, ema):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    expected = run(whole, every(5, ema=ema))
    run(parts, every(5, ema=ema, steps=10))
    found = run(parts, every(5, ema=ema))
    assert int(found.step) == 20
    for a, b in zip(
        jax.tree.leaves((found.model, found.ema)), jax.tree.leaves((expected.model, expected.ema)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert records(parts) == records(whole)
    assert [record["step"] for record in records(whole) if record["split"] == "train"] == [5, 10, 15, 20]


@pytest.mark.rotates
def test_a_finished_run_is_not_trained_again(tmp_path):
    run(tmp_path, every(5))
    before = records(tmp_path, speeds=True)
    stream = Stream()
    assert int(run(tmp_path, every(5), stream).step) == 20
    assert stream.step == 20
    assert records(tmp_path, speeds=True) == before


@pytest.mark.parametrize(("bad", "kept"), [(1, []), (3, []), (7, [5]), (10, [5]), (11, [5, 10])])
def test_a_loss_that_is_no_number_stops_at_its_step(tmp_path, bad, kept):
    last = f"step {kept[-1]}" if kept else "none"
    with pytest.raises(
        NotFinite, match=rf"loss and gradient_norm .* at step {bad}; the last good checkpoint is {last}"
    ):
        run(tmp_path, every(5), Stream(bad))
    assert saved(tmp_path) == kept


def test_parameters_that_overflow_are_not_saved(tmp_path):
    """The loss of a step is computed before its update, so it is finite when the update is not."""
    with pytest.raises(NotFinite, match="parameters stopped being finite at step 1; the last good checkpoint is none"):
        run(tmp_path, every(1), rate=3e38)
    assert saved(tmp_path) == []


def test_patience_stops_and_stays_stopped(tmp_path):
    losses = {1: 3.0, 2: 2.0, 3: 2.5, 4: 2.0, 5: 1.0}
    config = every(1, patience=2, log_every=7, checkpoint_every=7)
    assert int(run(tmp_path, config, losses=losses).step) == 4
    assert saved(tmp_path) == [4]
    assert int(run(tmp_path, config, losses=losses).step) == 4


@pytest.mark.rotates
def test_patience_is_remembered_over_a_restart(tmp_path):
    losses = {1: 1.0, 2: 2.0, 3: 2.0, 4: 2.0}
    assert int(run(tmp_path, every(1, patience=3, steps=3), losses=losses).step) == 3
    assert int(run(tmp_path, every(1, patience=3), losses=losses).step) == 4


@pytest.mark.rotates
def test_patience_may_watch_what_should_rise(tmp_path):
    assert int(run(tmp_path, every(1, patience=2, monitor="accuracy")).step) == 20
    with pytest.raises(ValueError, match="patience watches 'bleu', evaluation gave loss, accuracy"):
        run(tmp_path / "other", every(1, patience=2, monitor="bleu"), writer=Nowhere())


class Nowhere:
    def write(self, step, split, metrics):
        pass

    def close(self):
        pass


class Full(Nowhere):
    def write(self, step, split, metrics):
        if step > 6:
            raise OSError(28, "No space left on device")


def test_a_metrics_file_that_cannot_grow_names_the_last_good_step(tmp_path):
    with pytest.raises(CheckpointError, match=r"No space left.*the last good checkpoint is step 5"):
        run(tmp_path, every(5), writer=Full())
    assert saved(tmp_path) == [5]


def test_a_save_that_fails_stops_the_run_at_once(tmp_path, monkeypatch):
    seal = Checkpoints._write_manifest

    def fail_at_ten(self, step):
        if step >= 10:
            raise OSError(28, "No space left on device")
        seal(self, step)

    monkeypatch.setattr(Checkpoints, "_write_manifest", fail_at_ten)
    stream = Stream(at=dict.fromkeys(range(11, 200), lambda: threading.Event().wait(0.05)))
    with pytest.raises(CheckpointError, match=r"could not save the checkpoint of step 10 .* last good one is step 5"):
        run(tmp_path, every(5, steps=200, checkpoint_every=5), stream)
    assert stream.step < 100


@pytest.mark.rotates
def test_interruption_saves_the_step_and_can_be_resumed(tmp_path):
    whole = tmp_path / "whole"
    whole.mkdir()
    expected = run(whole, every(10))
    stream = Stream(at={7: lambda: os.kill(os.getpid(), signal.SIGINT)})
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped at step 7; the same command goes on"):
        run(tmp_path, every(10), stream)
    assert signal.getsignal(signal.SIGINT) is before
    assert saved(tmp_path) == [7]
    found = run(tmp_path, every(10))
    np.testing.assert_array_equal(found.model["kernel"], expected.model["kernel"])


def test_the_second_interruption_ends_at_once(tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(tmp_path, every(10), Stream(at={7: twice}))
    assert not isinstance(caught.value, Interrupted)
    assert saved(tmp_path) == []


@pytest.mark.parametrize(
    "options",
    [{"steps": 0}, {"log_every": 0}, {"average": 4, "keep": 3}, {"ema": 1.0}, {"patience": 0}, {"accumulate": 0}],
)
def test_settings_that_cannot_work_are_refused(options):
    with pytest.raises(ValueError, match="got"):
        TrainConfig(**options)


class Growing(Stream):
    """Batches of a row more from the third on."""

    def __next__(self):
        rows = super().__next__()
        return np.concatenate([rows, rows[:1]]) if self.step >= 3 else rows


def test_a_step_that_compiles_again_says_why(tmp_path, capsys):
    run(tmp_path, TrainConfig(steps=5, log_every=5), Growing())
    said = [line for line in capsys.readouterr().out.splitlines() if "compiled again" in line]
    assert len(said) == 1
    assert said[0].startswith("step 3: compiled again in ")
    assert said[0].endswith(", as this changed: batch: float32[4, 3] → float32[5, 3]")
