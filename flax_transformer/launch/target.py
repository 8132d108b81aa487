"""Where an experiment can be launched to: one line each."""

from collections.abc import Callable
from dataclasses import dataclass

from flax_transformer.launch.gke import KUBECTL, delete_gke, plan_gke
from flax_transformer.launch.plan import Command, LaunchPlan, Tool
from flax_transformer.launch.request import LaunchRequest
from flax_transformer.launch.sky import SKY, delete_sky, plan_sky
from flax_transformer.launch.tpu_vm import (
    GCLOUD,
    delete_queued_resource,
    delete_tpu_vm,
    plan_queued_resource,
    plan_tpu_vm,
)


@dataclass(frozen=True)
class Target:
    """A place to run: how to launch there, and how to delete what was launched."""

    plan: Callable[[LaunchRequest], LaunchPlan]
    """`plan(request)`: pure, so that what is printed is what is done."""
    delete: Callable[..., tuple[Command, ...]]
    """`delete(name, zone, project)`."""
    tool: Tool


TARGETS = {
    "tpu-vm": Target(plan_tpu_vm, delete_tpu_vm, GCLOUD),
    "queued-resource": Target(plan_queued_resource, delete_queued_resource, GCLOUD),
    "gke": Target(plan_gke, delete_gke, KUBECTL),
    "sky": Target(plan_sky, delete_sky, SKY),
}
