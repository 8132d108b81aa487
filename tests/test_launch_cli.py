"""The command line of launch: options, refusals, dry runs."""

import shlex
from pathlib import Path

import pytest

from flax_transformer.launch import LaunchRequest, find_accelerator
from flax_transformer.launch.package import Package

ROOT = Path(__file__).parent.parent
WMT14 = str(ROOT / "experiments/wmt14.py")
TPU = ("launch", WMT14, "--on", "tpu-vm", "--tpu", "v5e:4x4")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.rotates
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


@pytest.mark.rotates
def test_a_dry_run_prints_commands_alone(run):
    out = run(*TPU, "--workdir", "gs://bucket/run", "--dry-run")[1]
    assert all(line.startswith("gcloud ") for line in out.splitlines())
    assert not Path("runs/launch/wmt14/launch.json").exists()


def test_a_dry_run_of_delete_prints_what_would_be_deleted(run):
    command = (*TPU, "--zone", "us-west4-a", "--delete", "--dry-run", "--name", "mine")
    assert run(*command)[1] == "gcloud compute tpus tpu-vm delete mine --zone=us-west4-a --quiet\n"


@pytest.mark.rotates
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


SPELLINGS = ([f"{WMT14}:big"], [WMT14, "big"], [WMT14, "--", "big"])


@pytest.mark.parametrize("spelling", SPELLINGS, ids=["colon", "word", "hyphens"])
def test_an_experiment_is_spelled_in_three_ways(run, monkeypatch, spelling):
    asked = []

    def ask(target, *arguments, options=(), **others):
        asked.append((target, tuple(options or next((each for each in arguments if isinstance(each, tuple)), ()))))
        raise ValueError("asked")

    monkeypatch.setattr("flax_transformer.bench.target.find_workload", ask)
    monkeypatch.setattr("flax_transformer.bench.run.open_target", ask)
    monkeypatch.setattr("flax_transformer.bench.plan.plan", lambda case, *_, **__: ask(case.target, case.options))
    at = spelling.index("--") if "--" in spelling else len(spelling)
    before, after = spelling[:at], ["--", *spelling[at + 1 :]]
    for command in ("sharding", "bench", "plan"):
        assert run(command, *before, *after, "--train.steps", "3")[2] == "error: asked\n"
    assert asked == [(f"{WMT14}:big", ("--train.steps", "3"))] * 3
    code, out, _ = run("launch", *before, "--on", "local", "--dry-run", *after, "--train.steps", "3")
    assert (code, out.split()[1:]) == (0, [WMT14, "big", "--train.steps", "3"])


def test_a_name_said_twice_otherwise_is_refused(run):
    code, _, err = run("launch", f"{WMT14}:big", "base", "--on", "local", "--dry-run")
    assert (code, f"an experiment is named once, got {WMT14}:big and base" in err) == (2, True)


@pytest.mark.parametrize("bucket", ["b", "ab", "Bucket", "-bucket", "bucket-", "b" * 64, "a.b" + "c" * 64])
def test_the_rule_of_a_buckets_name_is_said(bucket):
    package = Package(content=b"", files=0, experiment="x.py", requirement="")
    given = {"name": "x", "folder": "x", "package": package, "accelerator": find_accelerator("v5e:4x4")}
    with pytest.raises(ValueError, match="a bucket's name must have 3 to 63 lower-case letters, digits, hyphens"):
        LaunchRequest(**given, workdir=f"gs://{bucket}/r")
    for name in ("abc", "a-b_c.d", "b" * 63):
        assert LaunchRequest(**given, workdir=f"gs://{name}/r").bucket == name


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
