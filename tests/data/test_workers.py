"""Worker processes lay out the batches that threads do."""

import os
import signal

import numpy as np
import pytest

from flax_transformer.data.bucket import BucketPlan, BucketStream
from flax_transformer.data.examples import shuffled
from flax_transformer.data.stream import ExampleStream
from flax_transformer.train.batch_layout import work_in


def collate(examples):
    """Lay numbers out, and the process that did."""
    return {"inputs": {"x": np.asarray(examples)}, "process": np.full(len(examples), os.getpid())}


def stream(**options):
    """Return batches of numbers."""
    return ExampleStream(shuffled(range(40), seed=3), collate, rows=8, **options)


class Lengths:
    """Rows of a bucket plan."""

    def __init__(self):
        self.lengths = np.tile([[2, 3], [7, 6], [3, 3]], (8, 1))
        self.identity = {"data": "lengths"}

    def lay_out(self, indices, boundary):
        """Lay numbers out."""
        return {"inputs": {"x": indices}, "boundary": np.asarray(boundary)}


@pytest.mark.rotates
def test_workers_lay_out_the_batches_of_threads():
    """Two workers, from a step on, of one of two processes: the same rows, made elsewhere; and threads again after."""
    other = {"start": 3, "process_index": 1, "process_count": 2}
    expected, batches = stream(**other), stream(**other)
    batches.work_in(2)
    for _ in range(4):
        one, two = next(expected), next(batches)
        np.testing.assert_array_equal(two["inputs"]["x"], one["inputs"]["x"])
        assert os.getpid() not in two["process"]
    assert batches.get_state() == expected.get_state()
    batches.work_in(0)
    again = next(batches)
    np.testing.assert_array_equal(again["inputs"]["x"], next(expected)["inputs"]["x"])
    assert os.getpid() in again["process"]
    batches.close()
    expected.close()


@pytest.mark.rotates
def test_a_bucket_plan_goes_to_workers():
    """Its lock stays behind."""
    made = []
    for workers in (0, 1):
        lengths = Lengths()
        batches = BucketStream(BucketPlan(lengths.lengths, tokens=16, boundaries=(4, 8), seed=0), lengths)
        batches.work_in(workers)
        made.append([next(batches) for _ in range(3)])
        batches.close()
    for one, two in zip(*made, strict=True):
        np.testing.assert_array_equal(one["inputs"]["x"], two["inputs"]["x"])


@pytest.mark.rotates
def test_workers_outlive_an_interrupt_of_their_group():
    """Ctrl-C and a preemption are for the process that trains, which still wants batches to end with."""
    batches = stream()
    batches.work_in(1)
    worker = int(next(batches)["process"][0])
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(worker, number)
    assert {int(next(batches)["process"][0]) for _ in range(20)} == {worker}
    batches.close()


class Own:
    """Batches that are no stream."""

    def __iter__(self):
        """See `Batches`."""
        return self

    def __next__(self):
        """See `Batches`."""
        return {}

    def get_state(self):
        """See `Batches`."""
        return {}

    def set_state(self, state):
        """See `Batches`."""


def test_bad_numbers_of_workers():
    """A negative one, and batches of another kind."""
    with pytest.raises(ValueError, match="workers must not be negative, got -1"):
        stream().work_in(-1)
    with pytest.raises(ValueError, match="batches of a Stream, got Own and 2 workers"):
        work_in(Own(), 2)
    work_in(Own(), 0)
