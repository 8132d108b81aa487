import threading

import pytest


@pytest.fixture(autouse=True)
def _end_readers():
    """Wait for the reader threads that a closed stream of this test leaves behind; fail where it was left open.

    The type checks that run in them draw from the global generator, which Hypothesis watches in the next test.
    """
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("grain-prefetch"):
            thread.join(timeout=30)
            assert not thread.is_alive(), "the test left a stream open: close it"
