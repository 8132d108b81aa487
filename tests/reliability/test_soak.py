"""A long time of bad luck: killed and preempted again and again, a run ends where an undisturbed one does.

`make soak` runs this and prints the numbers; TRIALS sets how often.
"""

import os
import random
import signal
import time

import pytest
from harness import Job, arrays, good, records, saved

pytestmark = pytest.mark.soak

TRIALS = int(os.environ.get("TRIALS", 24))
STEPS = 1_000
OPTIONS = ("--train.steps", STEPS, "--train.log-every", 5, "--train.eval-every", 100)
OFTEN = ("--train.checkpoint-every", 2)  # so that many kills hit a save
SELDOM = ("--train.checkpoint-every", 200)


def undisturbed(cache, folder, processes):
    good(Job(folder, *OPTIONS, *SELDOM, cache=cache, processes=processes))
    return folder


@pytest.fixture(scope="module")
def whole(cache, tmp_path_factory):
    return undisturbed(cache, tmp_path_factory.mktemp("whole") / "run", 1)


@pytest.fixture(scope="module")
def whole_by_two(cache, tmp_path_factory):
    return undisturbed(cache, tmp_path_factory.mktemp("whole2") / "run", 2)


def assert_same(folder, other):
    """The same bits, and the same evaluations; a report also comes with every save, and those come at other steps."""
    assert arrays(folder, STEPS) == arrays(other, STEPS)
    assert evaluations(folder) == evaluations(other)


def evaluations(folder):
    return [line for line in records(folder) if line["split"] != "train"]


def at_some_moment(job, draw):
    """Wait for a random moment: while the run is restored and compiled, or while it trains and saves."""
    if draw.random() < 0.3:
        job.wait_for("parameters, ")
        time.sleep(draw.uniform(0, 1))
    else:
        job.wait_for("loss")
        time.sleep(draw.uniform(0, 1.5))
    return job


def newest(folder):
    return (saved(folder) or [0])[-1] if (folder / "checkpoints").exists() else 0


def torn(folder):
    return sum(1 for _ in (folder / "checkpoints").glob("*.orbax-checkpoint-tmp"))


def last_reported(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines() if (folder / "metrics.jsonl").exists() else []
    return max([int(line.split('"step": ')[1].split(",")[0]) for line in lines if '"step": ' in line], default=0)


def test_killed_at_random_moments(whole, cache, tmp_path, capsys):
    draw, before, during, lost, kills = random.Random(0), 0, 0, [], 0
    for _ in range(TRIALS):
        job = at_some_moment(Job(tmp_path, *OPTIONS, *OFTEN, cache=cache), draw)
        if job.members[0].poll() is not None:  # it came to its end
            break
        job.kill()
        kills += 1
        step, reached = newest(tmp_path), last_reported(tmp_path)
        assert step >= before
        # What is lost is at most the save under way, the interval before it, and what ran while it was written.
        lost.append(reached - step)
        before, during = step, during + torn(tmp_path)
    good(Job(tmp_path, *OPTIONS, *SELDOM, cache=cache))
    assert_same(tmp_path, whole)
    with capsys.disabled():
        print(f"\n{kills} kills, {during} of them during a save, at most {max(lost)} steps lost; bit-equal to the end")
    assert kills >= min(20, TRIALS)


def test_killed_while_two_processes_train(whole_by_two, cache, tmp_path, capsys):
    draw, kills = random.Random(1), []
    for _ in range(max(TRIALS // 3, 1)):
        job = at_some_moment(Job(tmp_path, *OPTIONS, *OFTEN, cache=cache, processes=2), draw)
        victim = draw.choice([0, 1, None])
        if victim is None:
            job.kill()
        else:
            began = time.monotonic()
            job.send(signal.SIGKILL, victim).end()
            kills.append(time.monotonic() - began)
            assert kills[-1] < 30
    good(Job(tmp_path, *OPTIONS, *SELDOM, cache=cache, processes=2))
    assert_same(tmp_path, whole_by_two)
    with capsys.disabled():
        print(f"\n{TRIALS // 3} kills of two processes; the one left ended within {max(kills, default=0):.1f} s")


@pytest.mark.parametrize("processes", [1, 2])
def test_preempted_again_and_again(whole, whole_by_two, cache, tmp_path, processes, capsys):
    draw, steps = random.Random(2), [0]
    for _ in range(max(TRIALS // 3, 1)):
        job = at_some_moment(Job(tmp_path, *OPTIONS, *OFTEN, cache=cache, processes=processes, PACE=0.02), draw)
        good(job.send(signal.SIGTERM, draw.randrange(processes)))
        steps.append(newest(tmp_path))
        assert steps[-1] >= steps[-2]  # equal where it came before training: nothing was there to save
    good(Job(tmp_path, *OPTIONS, *SELDOM, cache=cache, processes=processes))
    assert_same(tmp_path, whole if processes == 1 else whole_by_two)
    with capsys.disabled():
        print(f"\n{len(steps) - 1} preemptions of {processes} processes, saved at steps {steps[1:]}; bit-equal")


def test_kills_and_another_number_of_processes(whole, cache, tmp_path):
    draw = random.Random(3)
    for number in range(max(TRIALS // 6, 1)):
        at_some_moment(Job(tmp_path, *OPTIONS, *OFTEN, cache=cache, processes=(1, 2, 4)[number % 3]), draw).kill()
    good(Job(tmp_path, *OPTIONS, *SELDOM, cache=cache))
    found, expected = ([line["loss"] for line in evaluations(folder)] for folder in (tmp_path, whole))
    assert found == pytest.approx(expected, rel=1e-5)
