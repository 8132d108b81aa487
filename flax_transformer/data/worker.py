"""Worker processes that lay out batches, of Grain's multiprocessing."""

import multiprocessing
import os
import signal
import threading
from typing import Any


def in_workers(batches: Any, count: int) -> Any:
    """Return a Grain dataset whose elements are made by so many processes, each of them every `count`-th.

    The order is that of one process. Workers have no accelerator, are not interrupted with the process that they
    work for, and end when it does.
    """
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():  # Grain asks a flag of absl, which a program that is none of absl's never parses
        flags.FLAGS.mark_as_parsed()
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=count), worker_init_fn=_begin)


def _begin(index: int, count: int) -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)
