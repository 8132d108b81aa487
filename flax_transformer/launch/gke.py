"""A JobSet on a GKE cluster with TPU nodes, through kubectl.

Of the two usual ways this is the one that asks for less: a JobSet runs on any cluster that has its controller, can be
read before it runs, and is what `xpk workload create` writes too, which besides wants a cluster made by xpk, Docker and
a registry. The code goes along in ConfigMaps, so no image is built. The cluster begins a lost run again by itself.

Source: the GKE documentation (plan TPUs in GKE; TPU workloads; Cloud Storage FUSE CSI driver; Spot VMs), the JobSet
documentation (TPU multislice training; failure policy) and the Kubernetes documentation (pod failure policy), 2026-11.
"""

from collections.abc import Iterator
from typing import Any

import yaml

from flax_transformer.launch.plan import Command, LaunchPlan, LaunchStep, Tool
from flax_transformer.launch.request import LaunchRequest
from flax_transformer.launch.script import WORKER

KUBECTL = Tool(name="kubectl", install="gcloud components install kubectl gke-gcloud-auth-plugin", gone="(NotFound)")
IMAGE = "python:3.12"
PART = 3 * 2**18
"""Bytes of code in one ConfigMap, which may hold a mebibyte."""
PARTS = "abcd"
"""Endings of the parts of code that is larger, as `split` names them; each has a ConfigMap of its own."""


def delete_gke(name: str, zone: str | None = None, project: str | None = None) -> tuple[Command, ...]:
    """Delete a JobSet and its code; zone and project are those of kubectl's context."""
    return (
        ("kubectl", "delete", "jobset", name, "--ignore-not-found"),
        ("kubectl", "delete", "configmap", name, *(f"{name}-{part}" for part in PARTS[1:]), "--ignore-not-found"),
    )


def plan_gke(request: LaunchRequest) -> LaunchPlan:
    """Write the JobSet, apply it, and show what its pods say until it has ended.

    Raises:
      ValueError: for code too large for ConfigMaps, and for a zone or project, which are those of kubectl's context.
    """
    if request.zone or request.project:
        raise ValueError(
            "with --on gke zone and project are those of kubectl's context: leave --zone and --project out"
        )
    name, folder, size = request.name, request.folder, len(request.package.content)
    if size > len(PARTS) * PART:
        raise ValueError(f"on GKE the code must fit into ConfigMaps of {len(PARTS) * PART:,} bytes, got {size:,}")
    state = ("kubectl", "get", "jobset", name, "--output=jsonpath={.status.terminalState}")
    logs = (
        "kubectl", "logs", f"--selector=jobset.sigs.k8s.io/jobset-name={name}", "--follow", "--prefix", "--tail=-1",
        f"--max-log-requests={request.accelerator.pods}", "--container=worker",
    )  # fmt: skip
    return LaunchPlan(
        tool=KUBECTL,
        scripts=((f"{folder}/worker.sh", WORKER),),
        files=((f"{folder}/jobset.yaml", yaml.safe_dump(jobset(request), sort_keys=False, width=1_000)),),
        steps=(
            *_send(request, state),
            LaunchStep(command=("kubectl", "create", f"--filename={folder}/jobset.yaml"), unless=state, makes=True),
            LaunchStep(command=state, ends=("Completed", "Failed"), meanwhile=logs, pause=10),
        ),
        delete=delete_gke(name),
        state=state,
        over=("Completed", "Failed"),
    )


def _parts(request: LaunchRequest) -> dict[str, str]:
    """Name the ConfigMaps, and the file of code in each."""
    count = -(-len(request.package.content) // PART)
    if count <= 1:
        return {request.name: "code.tar.xz"}
    names = (f"{request.name}{f'-{part}' if part != PARTS[0] else ''}" for part in PARTS)
    return {name: f"code.tar.xz.{part}" for name, part in list(zip(names, PARTS, strict=True))[:count]}


def _send(request: LaunchRequest, state: Command) -> Iterator[LaunchStep]:
    """Split the code where it is too large for one ConfigMap, and make them."""
    folder, parts = request.folder, _parts(request)
    if len(parts) > 1:
        whole = f"{folder}/code.tar.xz"
        yield LaunchStep(command=("split", "-a", "1", "-b", str(PART), whole, f"{whole}."))
    for number, (name, file) in enumerate(parts.items()):
        files = (file, "worker.sh") if number == 0 else (file,)
        command = ("kubectl", "create", "configmap", name, *(f"--from-file={folder}/{each}" for each in files))
        yield LaunchStep(command=command, unless=state, makes=True)


def jobset(request: LaunchRequest) -> dict[str, Any]:
    """Return the JobSet: as many pods as the slice has machines, on one node pool, begun again together.

    Exit code 2 means settings that cannot work, so nothing is begun again after it.
    """
    refuse = {"action": "FailJob", "onExitCodes": {"containerName": "worker", "operator": "In", "values": [2]}}
    pods = request.accelerator.pods
    job = {
        "backoffLimit": 0,
        "completions": pods,
        "parallelism": pods,
        "completionMode": "Indexed",
        "podFailurePolicy": {"rules": [refuse]},
        "template": {"metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}}, "spec": _pod(request)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": request.name,
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {
                "maxRestarts": request.retries,
                "rules": [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [{"name": "slice", "replicas": 1, "template": {"spec": job}}],
        },
    }


def _pod(request: LaunchRequest) -> dict[str, Any]:
    slice = request.accelerator
    spot = {"cloud.google.com/gke-spot": "true"}
    container = {
        "name": "worker",
        "image": IMAGE,
        "command": ["bash", "/launch/worker.sh", *request.arguments],
        "ports": [{"containerPort": 8471}],
        "resources": {"limits": {"google.com/tpu": slice.pod_chips}},
        "volumeMounts": [
            {"name": "launch", "mountPath": "/launch", "readOnly": True},
            {"name": "bucket", "mountPath": request.mount},
        ],
    }
    bucket = {
        "driver": "gcsfuse.csi.storage.gke.io",
        "volumeAttributes": {
            "bucketName": request.bucket,
            "mountOptions": "implicit-dirs,rename-dir-limit=1000000,metadata-cache:ttl-secs:0",
        },
    }
    tolerate = [
        {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"} for key, value in spot.items()
    ]
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 120,
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": slice.generation.gke,
            "cloud.google.com/gke-tpu-topology": slice.topology,
            **(spot if request.spot else {}),
        },
        **({"tolerations": tolerate} if request.spot else {}),
        "containers": [container],
        "volumes": [
            {"name": "launch", **_mounted(request)},
            {"name": "bucket", "csi": bucket},
        ],
    }


def _mounted(request: LaunchRequest) -> dict[str, Any]:
    """Return the volume of the code: a ConfigMap, or several as one folder."""
    names = [*_parts(request)]
    if len(names) == 1:
        return {"configMap": {"name": names[0]}}
    return {"projected": {"sources": [{"configMap": {"name": name}} for name in names]}}
