"""What is printed is what is run: snapshots of every target, quoting, YAML."""

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flax_transformer.launch import (
    TARGETS,
    LaunchPlan,
    LaunchRequest,
    LaunchStep,
    Local,
    Package,
    Tool,
    find_accelerator,
    local_lines,
    render,
    render_commands,
)

pytestmark = pytest.mark.proves(
    "launch", "TPU VM, queued resources, GKE, SkyPilot: rendered, never run against a cloud"
)

SNAPSHOTS = Path(__file__).parent / "snapshots"
REQUEST = LaunchRequest(
    name="wmt14-base",
    folder="runs/launch/wmt14-base",
    package=Package(content=b"code", files=1, experiment="experiments/wmt14.py", requirement=".[tpu]"),
    options=("base", "--data.root", "/gcs/my-bucket/wmt14 en-de"),
    workdir="gs://my-bucket/runs/base",
    accelerator=find_accelerator("v5litepod-16"),
    zone="us-west4-a",
    project="my-project",
    spot=True,
)
PLACED = {"tpu-vm": {}, "queued-resource": {}, "gke": {"zone": None, "project": None}, "sky": {"project": None}}


def plan(on, **changes):
    return TARGETS[on].plan(replace(REQUEST, **PLACED[on], **changes))


def same(name, text):
    """Compare with a snapshot; UPDATE_SNAPSHOTS=1 writes it, to be read before it is kept."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("on", TARGETS)
def test_a_target_renders_as_before(on):
    made = plan(on)
    same(on, render(made) + "# delete\n" + render_commands(made.delete))


def test_local_renders_as_before(monkeypatch):
    monkeypatch.setattr("flax_transformer.launch.local.free_port", lambda: 12345)
    monkeypatch.setattr("sys.executable", "python")
    monkeypatch.setattr("os.path.isfile", lambda path: True)
    local = Local(experiment="experiments/wmt14.py", workdir="runs/a b", options=("base",), processes=2)
    same("local", local_lines(local))
    assert local_lines(replace(local, processes=1)) == "python experiments/wmt14.py base --workdir 'runs/a b'\n"


@pytest.mark.parametrize("on", TARGETS)
def test_what_is_rendered_is_shell(on):
    lines = render(plan(on))
    subprocess.run(["bash", "-n"], input=lines, text=True, check=True)
    assert "\t" not in lines


@pytest.mark.parametrize("on", TARGETS)
def test_every_command_calls_the_tool_that_is_looked_for(on):
    made = plan(on)
    commands = [command for step in made.steps for command in (step.command, step.unless, step.meanwhile) if command]
    assert {command[0] for command in (*commands, *made.delete)} == {made.tool.name}


ODD = ("it's", 'say "hi"', "$HOME", "a;b", "`id`", "--x=*", "new\nline", "ü")


@pytest.mark.parametrize("on", ["tpu-vm", "queued-resource"])
def test_odd_arguments_arrive_as_they_are_through_two_shells(on):
    ssh = next(step.command for step in plan(on, options=ODD).steps if "ssh" in step.command)
    remote = shlex.split(shlex.split(str(LaunchStep(command=ssh)))[-1])
    assert remote[:2] == ["bash", "watch.sh"]
    assert tuple(remote[6:-2]) == ODD


def test_odd_arguments_arrive_as_they_are_through_yaml():
    (_, jobset), (_, task) = plan("gke", options=ODD).files[0], plan("sky", options=ODD).files[0]
    pod = yaml.safe_load(jobset)["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert tuple(pod["containers"][0]["command"][6:-2]) == ODD
    assert tuple(shlex.split(yaml.safe_load(task)["run"])[6:-2]) == ODD


def test_a_heredoc_gives_back_the_file(tmp_path):
    text = 'it\'s $HOME `id` \\ "x"\nend'
    made = LaunchPlan(
        tool=Tool(name="x", install="", gone=""), steps=(), delete=(), files=((str(tmp_path / "a b"), text),)
    )
    subprocess.run(["bash"], input=render(made), text=True, check=True)
    assert (tmp_path / "a b").read_text() == text + "\n"


def test_the_job_set_asks_for_the_slice():
    job = yaml.safe_load(plan("gke", accelerator=find_accelerator("v5p:4x4x4"), spot=False).files[0][1])["spec"]
    spec = job["replicatedJobs"][0]["template"]["spec"]
    pod = spec["template"]["spec"]
    assert (spec["parallelism"], spec["completions"], spec["backoffLimit"]) == (16, 16, 0)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "4x4x4",
    }
    assert pod["containers"][0]["resources"] == {"limits": {"google.com/tpu": 4}}
    assert job["failurePolicy"]["maxRestarts"] == 10
    assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2]


def test_workers_write_to_the_mounted_bucket():
    assert REQUEST.arguments[-2:] == ("--workdir", "/gcs/my-bucket/runs/base")
    made = yaml.safe_load(plan("sky").files[0][1])
    assert made["file_mounts"]["/gcs/my-bucket"] == {"source": "gs://my-bucket", "mode": "MOUNT"}


@pytest.mark.parametrize(
    ("on", "changes", "message"),
    [
        ("tpu-vm", {"accelerator": find_accelerator("tpu7x-128")}, "tpu7x-128 is offered by GKE alone: use --on gke"),
        ("queued-resource", {"accelerator": find_accelerator("tpu7x-8")}, "use --on gke"),
        ("sky", {"accelerator": find_accelerator("tpu7x-8")}, "use --on gke"),
        ("gke", {"package": replace(REQUEST.package, content=b"0" * (3 * 2**20 + 1))}, "into ConfigMaps of 3,145,728"),
    ],
)
def test_what_a_target_cannot_do_is_said(on, changes, message):
    with pytest.raises(ValueError, match=message):
        plan(on, **changes)


def test_places_that_a_tool_knows_itself_are_refused():
    with pytest.raises(ValueError, match="those of kubectl's context"):
        TARGETS["gke"].plan(REQUEST)
    with pytest.raises(ValueError, match="leave --project out"):
        TARGETS["sky"].plan(REQUEST)


@pytest.mark.parametrize("workdir", ["runs/base", "gs://", "gs://bucket", "gs://bucket/", "s3://bucket/run", ""])
def test_a_workdir_that_not_all_machines_reach_is_refused(workdir):
    with pytest.raises(ValueError, match="must have a WORKDIR gs://BUCKET/FOLDER"):
        replace(REQUEST, workdir=workdir)


@pytest.mark.parametrize("name", ["A", "1a", "-a", "a-", "a_b", "a" * 41, "", "--zone=x"])
def test_a_name_that_clouds_refuse_is_refused(name):
    with pytest.raises(ValueError, match="a name must begin with a letter"):
        replace(REQUEST, name=name)


def test_code_too_large_for_one_config_map_is_split():
    """Each part is in a ConfigMap of its own, all in one folder of the worker, which puts them together."""
    made = plan("gke", package=replace(REQUEST.package, content=b"0" * (2**20 + 1)))
    split, first, second, *_ = [step.command for step in made.steps]
    folder = REQUEST.folder
    assert split == ("split", "-a", "1", "-b", "786432", f"{folder}/code.tar.xz", f"{folder}/code.tar.xz.")
    assert first[3:] == (
        REQUEST.name, f"--from-file={folder}/code.tar.xz.a", f"--from-file={folder}/worker.sh"
    )  # fmt: skip
    assert second[3:] == (f"{REQUEST.name}-b", f"--from-file={folder}/code.tar.xz.b")
    pod = yaml.safe_load(made.files[0][1])["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    sources = [source["configMap"]["name"] for source in pod["volumes"][0]["projected"]["sources"]]
    assert sources == [REQUEST.name, f"{REQUEST.name}-b"]
    assert {*sources} <= {*made.delete[1]}
