"""TPU machines by the Cloud TPU API: made at once, or by a queued resource when there is room for them.

The experiment runs detached from the connection that shows it, so that a connection that breaks ends nothing.

Source: the gcloud reference of `compute tpus tpu-vm` and `compute tpus queued-resources` (create, describe, delete,
scp, ssh), and the Cloud TPU documentation on queued resources, Spot VMs and node states, 2026-11.
"""

import shlex

from flax_transformer.launch.plan import Command, LaunchPlan, LaunchStep, Tool
from flax_transformer.launch.request import LaunchRequest
from flax_transformer.launch.script import WATCH, WORKER

GCLOUD = Tool(name="gcloud", install="curl https://sdk.cloud.google.com | bash", gone="NOT_FOUND")
TPU_VM: Command = ("gcloud", "compute", "tpus", "tpu-vm")
QUEUED: Command = ("gcloud", "compute", "tpus", "queued-resources")
GONE = ("DELETING", "PREEMPTED", "STOPPED", "STOPPING", "TERMINATED")


def _where(zone: str | None, project: str | None) -> Command:
    return (*((f"--zone={zone}",) if zone else ()), *((f"--project={project}",) if project else ()))


def _runtime(request: LaunchRequest) -> str:
    if request.accelerator.generation.runtime is None:
        raise ValueError(f"{request.accelerator.name} is offered by GKE alone: use --on gke")
    return request.accelerator.generation.runtime


def _train(request: LaunchRequest) -> tuple[LaunchStep, ...]:
    """Send the code to all machines of a TPU VM and train there."""
    where = _where(request.zone, request.project)
    files = tuple(f"{request.folder}/{name}" for name in ("code.tar.xz", "worker.sh", "watch.sh"))
    command = shlex.join(("bash", "watch.sh", *request.arguments))
    return (
        LaunchStep(command=(*TPU_VM, "scp", *files, f"{request.name}:", "--worker=all", *where)),
        LaunchStep(command=(*TPU_VM, "ssh", request.name, "--worker=all", *where, "--command", command)),
    )


def _scripts(request: LaunchRequest) -> tuple[tuple[str, str], ...]:
    return ((f"{request.folder}/worker.sh", WORKER), (f"{request.folder}/watch.sh", WATCH))


def delete_tpu_vm(name: str, zone: str | None = None, project: str | None = None) -> tuple[Command, ...]:
    """Delete a TPU VM."""
    return ((*TPU_VM, "delete", name, *_where(zone, project), "--quiet"),)


def delete_queued_resource(name: str, zone: str | None = None, project: str | None = None) -> tuple[Command, ...]:
    """Delete a queued resource and its machines."""
    return ((*QUEUED, "delete", name, *_where(zone, project), "--force", "--quiet"),)


def plan_tpu_vm(request: LaunchRequest) -> LaunchPlan:
    """Make a TPU VM, or use the one of this name that launch has made, and train on it.

    Raises:
      ValueError: for a TPU that is offered otherwise.
    """
    where = _where(request.zone, request.project)
    state = (*TPU_VM, "describe", request.name, *where, "--format=value(state)")
    create = (
        *TPU_VM, "create", request.name, *where, f"--accelerator-type={request.accelerator.name}",
        f"--version={_runtime(request)}", *(("--spot",) if request.spot else ()),
    )  # fmt: skip
    return LaunchPlan(
        tool=GCLOUD,
        scripts=_scripts(request),
        steps=(LaunchStep(command=create, unless=state, makes=True), *_train(request)),
        delete=delete_tpu_vm(request.name, request.zone, request.project),
        state=state,
        lost=GONE,
    )


def plan_queued_resource(request: LaunchRequest) -> LaunchPlan:
    """Queue up for a TPU VM, wait until it is there, and train on it.

    Raises:
      ValueError: for a TPU that is offered otherwise.
    """
    where = _where(request.zone, request.project)
    state = (*QUEUED, "describe", request.name, *where, "--format=value(state.state)")
    create = (
        *QUEUED, "create", request.name, f"--node-id={request.name}", *where,
        f"--accelerator-type={request.accelerator.name}", f"--runtime-version={_runtime(request)}",
        *(("--spot",) if request.spot else ()),
    )  # fmt: skip
    lost = ("DELETING", "FAILED", "SUSPENDED", "SUSPENDING")
    return LaunchPlan(
        tool=GCLOUD,
        scripts=_scripts(request),
        steps=(
            LaunchStep(command=create, unless=state, makes=True),
            LaunchStep(command=state, ends=("ACTIVE", *lost)),
            *_train(request),
        ),
        delete=delete_queued_resource(request.name, request.zone, request.project),
        state=state,
        lost=lost,
    )
