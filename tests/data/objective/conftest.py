import threading

import pytest


@pytest.fixture(autouse=True)
def _end_readers():
    """Wait for the reader threads a closed stream leaves behind.

    The type checks that run in them draw from the global generator, which Hypothesis watches in the next test.
    """
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("grain-prefetch"):
            thread.join(timeout=30)
