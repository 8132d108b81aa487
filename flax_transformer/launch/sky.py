"""A managed job of SkyPilot, which finds a zone, begins a preempted job again and takes its machines down at the end.

Source: the SkyPilot documentation (task YAML; Cloud TPU; managed jobs; cloud object storage), 2026-11.
"""

import shlex
from typing import Any

import yaml

from flax_transformer.launch.plan import Command, LaunchPlan, LaunchStep, Tool
from flax_transformer.launch.request import LaunchRequest
from flax_transformer.launch.script import WORKER

SKY = Tool(name="sky", install='pip install "skypilot[gcp]"', gone="no managed job")
HOME = "~/launch"
"""Where the files are sent to: one by one, because a folder that git ignores would be sent without them."""

ENDED = (0, 100, 102, 103)
"""Exit codes of `sky jobs launch` and `logs` for jobs that succeeded, failed, are unknown or were cancelled."""


def delete_sky(name: str, zone: str | None = None, project: str | None = None) -> tuple[Command, ...]:
    """Cancel a managed job, which takes down its machines; zone and project are SkyPilot's affair."""
    return (("sky", "jobs", "cancel", "--name", name, "--yes"),)


def plan_sky(request: LaunchRequest) -> LaunchPlan:
    """Write the task, submit it as a managed job, and show what it says.

    Raises:
      ValueError: for a TPU that SkyPilot does not know, and for a project, which SkyPilot takes from gcloud.
    """
    if request.project:
        raise ValueError("with --on sky the project is that of `gcloud config get project`: leave --project out")
    task = f"{request.folder}/task.yaml"
    return LaunchPlan(
        tool=SKY,
        scripts=((f"{request.folder}/worker.sh", WORKER),),
        files=((task, yaml.safe_dump(sky_task(request), sort_keys=False, width=1_000)),),
        steps=(LaunchStep(command=("sky", "jobs", "launch", "--name", request.name, "--yes", task), makes=True),),
        again=(LaunchStep(command=("sky", "jobs", "logs", "--name", request.name)),),
        delete=delete_sky(request.name),
        ended=ENDED,
    )


def sky_task(request: LaunchRequest) -> dict[str, Any]:
    """Return the task; SkyPilot runs its command on every machine of a slice."""
    generation = request.accelerator.generation
    if generation.runtime is None:
        raise ValueError(f"{request.accelerator.name} is offered by GKE alone: use --on gke")
    zone = request.zone
    infra = f"gcp/{zone.rpartition('-')[0]}/{zone}" if zone else "gcp"
    return {
        "name": request.name,
        "resources": {
            "infra": infra,
            "accelerators": f"tpu-{request.accelerator.name}",
            "accelerator_args": {"runtime_version": generation.runtime},
            "use_spot": request.spot,
        },
        "file_mounts": {
            **{f"{HOME}/{name}": f"{request.folder}/{name}" for name in ("code.tar.xz", "worker.sh")},
            request.mount: {"source": f"gs://{request.bucket}", "mode": "MOUNT"},
        },
        "run": f"bash {HOME}/worker.sh {shlex.join(request.arguments)}",
    }
