"""Runs of several processes, over loopback: the same losses, and one end for all."""

import numpy as np
import pytest
from harness import Job, arrays, copied, good, losses, records, saved

pytestmark = pytest.mark.proves("many processes", "same batches and losses on 1, 2 or 4")


def assert_same_losses(one, other):
    """Equal but for the order in which numbers are added."""
    assert [(r["step"], r["split"]) for r in records(one)] == [(r["step"], r["split"]) for r in records(other)]
    np.testing.assert_allclose(losses(one), losses(other), rtol=1e-5)


@pytest.mark.slow
def test_two_processes_train_as_one_with_dropout(straight, straight_by_two):
    assert_same_losses(straight_by_two, straight)
    assert (straight_by_two / "tokenizer.json").read_text() == '{"written by": 0}'
    assert len((straight_by_two / "samples.jsonl").read_text().splitlines()) == 1


@pytest.mark.slow
def test_sigterm_to_one_process_saves_one_agreed_step_in_all_and_resumes_exactly(straight_by_two, cache, tmp_path):
    zero, one = good(Job(tmp_path, cache=cache, processes=2, PACE=0.5, FAULT="terminate:1:3"))
    step = saved(tmp_path)[-1]
    assert 3 <= step < 20
    assert f"preempted at step {step}; the same command goes on from there" in zero.out
    assert f"preempted at step {step}; the same command goes on from there" in one.out
    good(Job(tmp_path, cache=cache, processes=2))
    assert arrays(tmp_path, 20) == arrays(straight_by_two, 20)
    assert records(tmp_path) == records(straight_by_two)


@pytest.mark.slow
def test_a_process_that_raises_ends_all_and_its_traceback_is_shown(cache, tmp_path):
    zero, one = Job(tmp_path, cache=cache, processes=2, FAULT="raise:1:7").end()
    assert (one.code, zero.code != 0) == (1, True)
    assert abs(zero.at - one.at) < 30
    assert "process 1 of 2 failed\nTraceback" in one.out
    assert "RuntimeError: the batch of this process is broken" in one.out


@pytest.mark.slow
@pytest.mark.usefixtures("straight_by_two")  # its first step is not compiled then, which takes time
def test_a_process_that_hangs_is_shown_and_ends_all(cache, tmp_path):
    zero, one = Job(tmp_path, "--train.stall", 3, cache=cache, processes=2, FAULT="hang:1:7").end()
    assert zero.code != 0
    assert one.code != 0
    stacks = (tmp_path / "stacks-1.txt").read_text()
    assert stacks.startswith("process 1 of 2: no training step was done in ")
    assert "in _break" in stacks
    assert "in _break" in one.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "mesh"),
    [(4, ()), (2, ("--mesh.data", 1, "--mesh.fsdp", 2)), (2, ("--mesh.data", 1, "--mesh.tensor", 2)),
     (4, ("--mesh.data", 2, "--mesh.tensor", 2)), (4, ("--mesh.data", 1, "--mesh.fsdp", 2, "--mesh.tensor", 2))],
)  # fmt: skip
def test_any_mesh_over_processes_trains_as_one(straight, cache, tmp_path, processes, mesh):
    good(Job(tmp_path / "run", *mesh, cache=cache, processes=processes))
    assert_same_losses(tmp_path / "run", straight)
    assert (tmp_path / "run" / "samples.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 4), (4, 2)])
def test_another_number_of_processes_goes_on(straight, cache, tmp_path, before, after):
    good(Job(tmp_path, "--train.steps", 10, cache=cache, processes=before))
    ended = good(Job(tmp_path, cache=cache, processes=after))
    assert "resuming from step 10" in ended[0].out
    assert_same_losses(tmp_path, straight)


@pytest.mark.slow
def test_ctrl_c_in_one_process_ends_all(straight_by_two, cache, tmp_path):
    zero, one = Job(tmp_path, cache=cache, processes=2, PACE=0.5, FAULT="interrupt:1:3").end()
    assert (zero.code, one.code) == (0, 130)
    good(Job(tmp_path, cache=cache, processes=2))
    assert arrays(tmp_path, 20) == arrays(straight_by_two, 20)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_is_killed_ends_the_other(straight_by_two, cache, tmp_path, victim):
    job = Job(tmp_path, cache=cache, processes=2, FAULT=f"kill:{victim}:12")
    ended = job.end()
    assert ended[victim].code == -9
    assert ended[1 - victim].code not in (0, None)
    good(Job(tmp_path, cache=cache, processes=2))
    assert arrays(tmp_path, 20) == arrays(straight_by_two, 20)


@pytest.mark.slow
def test_a_damaged_checkpoint_ends_all_with_one_sentence(straight_by_two, cache, tmp_path):
    folder = copied(straight_by_two, tmp_path / "run")
    path = max((folder / "checkpoints" / "20" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1])
    zero, one = Job(folder, "--train.steps", 30, cache=cache, processes=2).end()
    assert (zero.code, one.code != 0) == (1, True)
    assert f"error: checkpoint 20 is damaged: {path} has changed; step 15 is the last good one" in zero.out


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--train.average", 2), ("--train.keep-best", "--train.patience", 1)])
def test_an_averaged_or_best_model_is_gathered_from_all(cache, tmp_path, options):
    options = ("--train.ema", 0, "--train.eval-every", 5, *options)
    good(Job(tmp_path / "one", *options, cache=cache))
    good(Job(tmp_path / "two", *options, "--mesh.data", 1, "--mesh.fsdp", 2, cache=cache, processes=2))
    assert_same_losses(tmp_path / "two", tmp_path / "one")
    assert records(tmp_path / "two")[-1]["split"] == "test"
