"""What is carried beside gradients, by two processes as by one."""

from pathlib import Path

import numpy as np
import pytest
from harness import Job, good, losses

CARRYING = Path(__file__).parent.parent / "task" / "carrying.py"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["statistics", "queue"])
def test_two_processes_carry_what_one_does(tmp_path, cache, kind):
    """A checkpoint of it by both, too: a run that goes on ends with the same bits."""
    for processes in (1, 2):
        good(Job(tmp_path / str(processes), "--kind", kind, cache=cache, processes=processes, file=CARRYING))
    one, two = (np.load(tmp_path / name / "model.npz") for name in "12")
    assert sorted(one) == sorted(two)
    for name in one:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(losses(tmp_path / "2"), losses(tmp_path / "1"), rtol=1e-5)
    good(Job(tmp_path / "2", "--kind", kind, cache=cache, processes=2, file=CARRYING))
    for name, before in two.items():
        np.testing.assert_array_equal(np.load(tmp_path / "2" / "model.npz")[name], before)
