import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """Programs of these processes alone: one that is killed may leave half of one behind."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def straight(cache, tmp_path_factory):
    """Twenty steps of one process in one go."""
    from harness import Job, good

    folder = tmp_path_factory.mktemp("straight") / "run"
    good(Job(folder, cache=cache))
    return folder


@pytest.fixture(scope="module")
def straight_by_two(cache, tmp_path_factory):
    """The same by two processes."""
    from harness import Job, good

    folder = tmp_path_factory.mktemp("two") / "run"
    good(Job(folder, cache=cache, processes=2))
    return folder
