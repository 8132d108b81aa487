"""Several processes as one run: started from the environment, kept in step, ended together."""

import glob
import importlib.util
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from flax_transformer.frozen import frozen
from flax_transformer.parallel.sharding import batch_sharding

HEARTBEAT = 15
"""Seconds after which a process that is silent counts as dead, and all others are ended."""

SHUTDOWN = 30
"""Seconds a process that is done waits for the others, all of which have met at `leave` before."""

VARIABLES = {
    "coordinator": "FLAX_TRANSFORMER_COORDINATOR",
    "processes": "FLAX_TRANSFORMER_PROCESSES",
    "index": "FLAX_TRANSFORMER_PROCESS_INDEX",
}
"""Environment variables that stand in for a `Multihost` that says nothing."""


@frozen
class Multihost:
    """Which process of which run this one is; all three, or none: then the environment says, or it is alone."""

    coordinator: str | None = None
    """HOST:PORT of process 0, which all others reach; also FLAX_TRANSFORMER_COORDINATOR."""
    processes: int | None = None
    """How many there are; also FLAX_TRANSFORMER_PROCESSES."""
    index: int | None = None
    """Which one this is, from 0; also FLAX_TRANSFORMER_PROCESS_INDEX."""

    def __post_init__(self):
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if len({value is None for value in given.values()}) > 1:
            raise ValueError(f"coordinator, processes and index go together, got {given}")
        if self.coordinator is not None and not self.coordinator.rpartition(":")[2].isdigit():
            raise ValueError(f"coordinator must be HOST:PORT, got {self.coordinator!r}")
        if self.processes is not None and not 0 <= self.index < self.processes:
            raise ValueError(f"index must be in 0..processes - 1, got {self.index} of {self.processes}")


def from_environment() -> Multihost:
    """Read FLAX_TRANSFORMER_COORDINATOR, FLAX_TRANSFORMER_PROCESSES and FLAX_TRANSFORMER_PROCESS_INDEX.

    Raises:
      ValueError: when only some of them are set, or they contradict each other.
    """
    read = {name: os.environ.get(variable) or None for name, variable in VARIABLES.items()}
    try:
        numbers = {name: None if read[name] is None else int(read[name]) for name in ("processes", "index")}
        return Multihost(coordinator=read["coordinator"], **numbers)
    except ValueError as error:
        raise ValueError(f"{', '.join(VARIABLES.values())}: {error}") from error


def find_cluster() -> str | None:
    """Name the cluster whose marks this machine bears, in the words of `jax.distributed.initialize`; None: alone."""
    if int(os.environ.get("SLURM_NTASKS") or 1) > 1 and "SLURM_STEP_NODELIST" in os.environ:
        return "slurm"
    chips = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    on_tpu = bool(chips) and importlib.util.find_spec("libtpu") is not None
    if not on_tpu or os.environ.get("JAX_PLATFORMS", "tpu").split(",")[0] != "tpu":
        return None
    if os.environ.get("TPU_WORKER_HOSTNAMES"):
        return "gketpu"
    return None if "TPU_SKIP_MDS_QUERY" in os.environ else "gcetpu"


def start(multihost: Multihost | None = None) -> None:
    """Join the other processes of the run, before anything else is asked of JAX; nothing to do where there are none.

    Where `multihost` says nothing the environment is asked: our own variables, then SLURM (`srun`), GKE or a TPU VM.
    From here on a process that fails prints its number and its traceback and ends, and the others end within seconds.

    Raises:
      ValueError: when the environment contradicts itself.
    """
    multihost = Multihost() if multihost is None else multihost
    named = multihost if multihost.coordinator is not None else from_environment()
    limits = {"heartbeat_timeout_seconds": HEARTBEAT, "shutdown_timeout_seconds": SHUTDOWN}
    if named.coordinator is not None:
        jax.distributed.initialize(
            named.coordinator, named.processes, named.index, cluster_detection_method="deactivate", **limits
        )
    elif (cluster := find_cluster()) is not None:
        jax.distributed.initialize(cluster_detection_method=cluster, **limits)
    else:
        return
    jax.devices()  # to learn of each other's devices all must ask; whoever fails later must not have to
    sys.excepthook = lambda kind, error, trace: fail(error)
    threading.excepthook = lambda failed: fail(failed.exc_value, failed.thread)


def fail(error: BaseException | None, thread: threading.Thread | None = None, *, code: int = 1) -> None:
    """Print who failed and how, and end this process without waiting for anyone, which ends the others."""
    if thread is not None and isinstance(error, SystemExit):  # an ordinary way for a thread to end
        return
    where = "" if thread is None else f" in thread {thread.name}"
    lines = traceback.format_exception(error) if error is not None else []
    print(f"process {jax.process_index()} of {jax.process_count()} failed{where}\n{''.join(lines)}", file=sys.stderr)
    end(code)


def end(code: int) -> None:
    """End this process at once; what is printed so far is shown, other threads are not waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def leave(code: int) -> None:
    """Exit with the others, once all have come here; what went wrong in one alone must `end` instead."""
    if jax.distributed.is_initialized():
        barrier("leave")
    sys.exit(code)


def barrier(name: str) -> None:
    """Wait until every process is here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def broadcast_from_first(value: int) -> int:
    """Return the number that process 0 has."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


@contextmanager
def first(name: str) -> Iterator[None]:
    """Run the block in process 0 before the others, who find what it has written."""
    if jax.process_index() > 0:
        barrier(name)
    yield
    if jax.process_index() == 0:
        barrier(name)


def row_parts(mesh: Mesh | None) -> tuple[tuple[int, ...], int]:
    """Return which parts of a batch's rows this process lays out, and of how many.

    A mesh cuts the rows into equal parts; processes whose devices share a part (tensor, sequence or pipeline axes that
    reach over processes) each lay it out.
    """
    if mesh is None:
        return (0,), 1
    sharding = batch_sharding(mesh)
    count = mesh.size // sharding.shard_shape((mesh.size,))[0]
    places = sharding.addressable_devices_indices_map((count,))
    return tuple(sorted({rows.start or 0 for (rows,) in places.values()})), count


def whole(tree: Any) -> Any:
    """Gather arrays that are spread over processes, one at a time; every process must take part.

    Returns:
      NumPy arrays in place of those that this process does not hold all of, everything else as it is.
    """

    def gather(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
            return leaf
        if leaf.is_fully_replicated:
            return np.asarray(leaf)
        return multihost_utils.process_allgather(leaf, tiled=True)

    return jax.tree.map(gather, tree)


def to_local_devices(tree: Any) -> Any:
    """Bring a tree gathered by `whole` onto this process's own devices, each array split where it can be."""
    devices = jax.local_devices()
    mesh = Mesh(np.asarray(devices), ("local",))

    def place(leaf: Any) -> Any:
        axis = next((axis for axis in range(leaf.ndim)[::-1] if leaf.shape[axis] % len(devices) == 0), None)
        spec = PartitionSpec() if axis is None else PartitionSpec(*(None,) * axis, "local")
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jax.tree.map(place, tree)
