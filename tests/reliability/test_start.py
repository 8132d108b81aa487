"""Which processes make up a run, and which rows each of them lays out."""

from pathlib import Path

import jax
import numpy as np
import pytest
from harness import Job, good

from flax_transformer.data.bucket import BucketPlan, BucketStream
from flax_transformer.data.text import Tokenized
from flax_transformer.data.text.batch import ragged
from flax_transformer.parallel import multihost
from flax_transformer.parallel.multihost import Multihost
from flax_transformer.train.batch_layout import shared

NAMES = ("COORDINATOR", "PROCESSES", "PROCESS_INDEX")


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    clusters = ("SLURM_NTASKS", "SLURM_STEP_NODELIST", "TPU_WORKER_HOSTNAMES", "TPU_SKIP_MDS_QUERY", "JAX_PLATFORMS")
    for name in (*(f"FLAX_TRANSFORMER_{name}" for name in NAMES), *clusters):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"coordinator": "host:1"}, "coordinator, processes and index go together, got"),
        ({"coordinator": "host", "processes": 2, "index": 0}, "coordinator must be HOST:PORT, got 'host'"),
        ({"coordinator": "host:1", "processes": 2, "index": 2}, r"index must be in 0..processes - 1, got 2 of 2"),
    ],
)
def test_processes_that_cannot_be_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        Multihost(**given)


def test_the_environment_says_which_process_this_is(monkeypatch):
    assert multihost.from_environment() == Multihost()
    for name, value in zip(NAMES, ("host:1234", "4", "3"), strict=True):
        monkeypatch.setenv(f"FLAX_TRANSFORMER_{name}", value)
    assert multihost.from_environment() == Multihost(coordinator="host:1234", processes=4, index=3)
    monkeypatch.setenv("FLAX_TRANSFORMER_PROCESSES", "four")
    with pytest.raises(ValueError, match=r"FLAX_TRANSFORMER_PROCESSES, .*'four'"):
        multihost.from_environment()
    monkeypatch.delenv("FLAX_TRANSFORMER_PROCESSES")
    with pytest.raises(ValueError, match=r"FLAX_TRANSFORMER_COORDINATOR, .* go together"):
        multihost.from_environment()


@pytest.mark.parametrize(
    ("variables", "chips", "cluster"),
    [
        ({}, [], None),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "node[1-4]"}, [], "slurm"),
        ({"SLURM_NTASKS": "4"}, [], None),  # in a batch script, but not by srun
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "node1"}, [], None),
        ({}, ["/dev/accel0"], "gcetpu"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, ["/dev/vfio/0"], "gketpu"),
        ({"TPU_SKIP_MDS_QUERY": "1"}, ["/dev/accel0"], None),
        ({"JAX_PLATFORMS": "cpu"}, ["/dev/accel0"], None),
    ],
)
def test_clusters_are_told_by_their_marks(monkeypatch, variables, chips, cluster):
    monkeypatch.setattr(multihost.glob, "glob", lambda pattern: [chip for chip in chips if chip[:7] == pattern[:7]])
    monkeypatch.setattr(multihost.importlib.util, "find_spec", lambda name: object())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert multihost.find_cluster() == cluster


def stream():
    lengths = np.random.default_rng(0).integers(1, 7, 50)
    rows = ragged([range(3, 3 + length) for length in lengths])
    pairs = Tokenized(rows, rows)
    return BucketStream(BucketPlan(pairs.lengths, tokens=64, boundaries=(4, 8), seed=0, multiple=4), pairs)


def test_parts_of_a_stream_make_up_its_batches():
    whole, parts = stream(), {share: stream() for share in ((0, 2), (1, 3))}
    for share, part in parts.items():
        assert shared(part, share, 4) is part
        assert part.get_state() == whole.get_state()
    for _ in range(5):
        expected = next(whole)
        halves = {share: next(part) for share, part in parts.items()}
        for share, half in halves.items():
            for rows, own in zip(jax.tree.leaves(expected), jax.tree.leaves(half), strict=True):
                quarter = len(rows) // 4
                taken = [rows[part * quarter : (part + 1) * quarter] for part in share]
                np.testing.assert_array_equal(own, np.concatenate(taken))
    with pytest.raises(ValueError, match=r"rows of every batch must be a multiple of the processes, got 3"):
        stream().share((0,), 3)


class Whole:
    def __iter__(self):
        return self

    def __next__(self):
        return {"x": np.arange(6)}

    def get_state(self):
        return {"step": 3}

    def set_state(self, state):
        self.state = state


def test_rows_are_picked_from_whole_batches():
    own = shared(Whole(), (0, 2), 3)
    assert next(own)["x"].tolist() == [0, 1, 4, 5]
    assert own.get_state() == {"step": 3}
    every = Whole()
    assert shared(every, (0, 1), 2) is every
    with pytest.raises(ValueError, match="rows must be a multiple of the parts, got 6 rows, 4 parts"):
        next(shared(Whole(), (0,), 4))


@pytest.mark.slow
def test_any_order_of_devices_gives_every_row_once(cache, tmp_path):
    script = Path(__file__).parent / "row_parts.py"
    flags = "--xla_force_host_platform_device_count=2"
    ended = good(Job(tmp_path, cache=cache, processes=2, file=script, XLA_FLAGS=flags))
    assert all("rows are right" in one.out for one in ended)
