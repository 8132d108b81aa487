import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def cache():
    """Where programs are kept that all processes share."""
    return Path(jax.config.jax_compilation_cache_dir)


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
