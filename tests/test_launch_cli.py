"""The command line of launch: options, refusals, dry runs."""

import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WMT14 = str(ROOT / "experiments/wmt14.py")
TPU = ("launch", WMT14, "--on", "tpu-vm", "--tpu", "v5e:4x4")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_arguments_after_two_hyphens_are_the_experiments(run):
    code, out, err = run(
        *TPU, "--workdir", "gs://bucket/run", "--dry-run", "--", "base", "--train.steps", 3, "--dry-run"
    )
    assert code == 0
    assert "experiments/wmt14.py base --train.steps 3 --dry-run --workdir /gcs/bucket/run" in out
    assert "launch: runs/launch/wmt14-base has worker.sh, watch.sh, and code.tar.xz:" in err
    files = [word for line in out.splitlines() for word in shlex.split(line) if word.startswith("runs/")]
    assert files
    assert all(Path(file).is_file() for file in files), "what is printed can be pasted: its files are there"


def test_a_dry_run_prints_commands_alone(run):
    out = run(*TPU, "--workdir", "gs://bucket/run", "--dry-run")[1]
    assert all(line.startswith("gcloud ") for line in out.splitlines())
    assert not Path("runs/launch/wmt14/launch.json").exists()


def test_a_dry_run_of_delete_prints_what_would_be_deleted(run):
    command = (*TPU, "--zone", "us-west4-a", "--delete", "--dry-run", "--name", "mine")
    assert run(*command)[1] == "gcloud compute tpus tpu-vm delete mine --zone=us-west4-a --quiet\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on", "tpu-vm", "--tpu", "v5litepod-16"), "must have a WORKDIR gs://BUCKET/FOLDER"),
        (("--on", "tpu-vm", "--tpu", "v5litepod-16", "--workdir", "runs/a"), "must have a WORKDIR gs://BUCKET/FOLDER"),
        (("--on", "gke", "--tpu", "v5litepod-12", "--workdir", "gs://bucket/a"), "v5litepod-8, v5litepod-16, …, got"),
        (("--on", "sky", "--workdir", "gs://bucket/a"), "a TPU must be one of"),
        (("--on", "sky", "--tpu", "v6e-8", "--workdir", "gs://bucket/a", "--name", "A"), "a name must begin with"),
        (("--on", "tpu-vm", "--tpu", "v6e-8", "--workdir", "gs://bucket/a", "--zone=-x"), "zone must be a name"),
        (("--on", "tpu-vm", "--tpu", "v6e-8", "--workdir", "gs://bucket/a", "--retries", "-1"), "must not be negative"),
        (("--on", "local", "--workdir", "gs://bucket/a"), "must have a folder as its WORKDIR"),
        (("--on", "local", "--processes", "0"), "processes must be at least 1, got 0"),
        (("--on", "local", "--delete"), "leaves nothing to delete but its folder"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_made(run, arguments, message):
    code, out, err = run("launch", WMT14, *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_no_experiment_is_said(run):
    for on in ("local", "tpu-vm"):
        code, _, err = run("launch", "none.py", "--on", on, "--tpu", "v6e-8", "--workdir", "runs/a")
        assert code == 2
        assert "an experiment must be a Python file, there is none at none.py" in err


def test_help_tells_what_can_be_chosen(run):
    code, out, _ = run("launch", "--help")
    assert code == 0
    for word in ("local,tpu-vm,queued-resource,gke,sky", "--dry-run", "--delete", "--retries", "v5e:4x4"):
        assert word in out
