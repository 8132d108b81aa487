"""Retry, resume and delete, against tools that stand in for the real ones and fail as those do."""

import json
import shlex
from pathlib import Path

import pytest

from flax_transformer.launch import Package

QUEUED = ("launch", "exp.py", "--on", "queued-resource", "--tpu", "v5e:4x4", "--workdir", "gs://bucket/run", "--spot")
TPU_VM = (*QUEUED[:3], "tpu-vm", *QUEUED[4:])
GKE = (*QUEUED[:3], "gke", *QUEUED[4:])
SKY = (*QUEUED[:3], "sky", *QUEUED[4:])
NOTE = Path("runs/launch/exp/launch.json")
TAKEN = {"code": 255, "state": "SUSPENDED"}

pytestmark = pytest.mark.usefixtures("experiment")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    package = Package(content=b"code", files=1, experiment="exp.py", requirement=".[tpu]")
    monkeypatch.setattr("flax_transformer.launch.pack", lambda experiment: package)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("command", "did"),
    [(QUEUED, ["create", "scp", "ssh"]), (TPU_VM, ["create", "scp", "ssh"]), (GKE, ["create", "create"])],
)
def test_a_run_that_meets_no_trouble_is_made_once(run, tools, pauses, command, did):
    if command is GKE:
        tools.plan(get=[{}, {}, {}, {"state": "Completed"}, {}])
    code, out, err = run(*command)
    assert code == 0, err
    assert "what was made stays, and may cost, until it is deleted" in err
    assert [verb for verb in tools.did if verb != "logs"] == did
    assert tools.exists
    assert (out, json.loads(NOTE.read_text())["name"]) == ("", "exp")


def test_what_is_run_is_what_the_dry_run_prints(run, tools, pauses):
    printed = run(*QUEUED, "--dry-run")[1].splitlines()
    assert tools.calls == []
    assert run(*QUEUED)[0] == 0
    did = [shlex.join(call) for call in tools.calls if call[4] not in ("describe",)]
    assert [line.split(" || ")[-1] for line in printed if not line.startswith("until")] == did


def test_a_queue_is_waited_for(run, tools, pauses):
    states = ["WAITING_FOR_RESOURCES", "PROVISIONING"]
    tools.plan(create=[{"state": states[0]}], describe=[{}, {}, {"state": states[1]}, {"state": "ACTIVE"}])
    code, _, err = run(*QUEUED)
    assert (code, tools.did) == (0, ["create", "scp", "ssh"])
    assert err.index("WAITING_FOR_RESOURCES, waiting for ACTIVE") < err.index("PROVISIONING, waiting for ACTIVE")
    assert pauses[:2] == [30, 30]


@pytest.mark.rotates
def test_after_a_preemption_machines_are_made_anew_and_the_same_run_goes_on(run, tools, pauses):
    tools.plan(ssh=[TAKEN, TAKEN, {}])
    code, _, err = run(*QUEUED)
    assert code == 0
    assert tools.did == ["create", "scp", "ssh", *["delete", "create", "scp", "ssh"] * 2]
    runs = [call[-1] for call in tools.calls if "ssh" in call]
    assert len(set(runs)) == 1, "the command, and so the WORKDIR it resumes from, is the same each time"
    assert runs[0].endswith("--workdir /gcs/bucket/run")
    assert [pause for pause in pauses if pause != 15] == [30, 60]
    assert "the machines were taken away: SUSPENDED" in err
    assert "retry 2 of 10 in 60 s" in err


@pytest.mark.rotates
def test_a_preempted_tpu_vm_is_made_anew(run, tools, pauses):
    tools.plan(ssh=[{"code": 1, "state": "PREEMPTED"}, {}])
    assert run(*TPU_VM)[0] == 0
    assert tools.did == ["create", "scp", "ssh", "delete", "create", "scp", "ssh"]


@pytest.mark.rotates
def test_machines_that_are_gone_are_made_anew(run, tools, pauses):
    tools.plan(ssh=[{"code": 255, "state": None}, {}])
    assert run(*TPU_VM)[0] == 0
    assert tools.did == ["create", "scp", "ssh", "create", "scp", "ssh"]


@pytest.mark.rotates
def test_a_request_that_fails_in_the_queue_is_made_anew(run, tools, pauses):
    tools.plan(create=[{"state": "FAILED"}, {"state": "ACTIVE"}])
    assert run(*QUEUED)[0] == 0
    assert tools.did == ["create", "delete", "create", "scp", "ssh"]


@pytest.mark.rotates
def test_no_room_after_a_preemption_is_waited_out(run, tools, pauses):
    tools.plan(ssh=[TAKEN, {}], create=[{}, {"code": 1, "says": "no capacity"}, {}])
    assert run(*QUEUED)[0] == 0
    assert tools.did == ["create", "scp", "ssh", "delete", "create", "create", "scp", "ssh"]


@pytest.mark.rotates
def test_retries_have_a_limit(run, tools, pauses):
    tools.plan(ssh=[TAKEN] * 9)
    code, _, err = run(*QUEUED, "--retries", 3)
    assert (code, tools.did.count("ssh"), tools.did.count("create")) == (1, 4, 4)
    assert "gave up after 3 retries; the same command goes on from the last checkpoint" in err
    assert [pause for pause in pauses if pause != 15] == [30, 60, 120]


@pytest.mark.rotates
def test_pauses_grow_to_ten_minutes(run, tools, pauses):
    tools.plan(ssh=[TAKEN] * 9)
    run(*QUEUED, "--retries", 7)
    assert [pause for pause in pauses if pause != 15] == [30, 60, 120, 240, 480, 600, 600]


@pytest.mark.parametrize("code", [1, 2, 7])
def test_a_failure_of_the_experiment_is_not_tried_again(run, tools, pauses, code):
    tools.plan(ssh=[{"code": code}])
    assert run(*TPU_VM)[0] == code
    assert tools.did == ["create", "scp", "ssh"]


@pytest.mark.rotates
@pytest.mark.parametrize("code", [143, 255])
def test_a_broken_connection_and_a_worker_that_made_way_are_joined_again(run, tools, pauses, code):
    tools.plan(ssh=[{"code": code}, {}])
    assert run(*TPU_VM)[0] == 0
    assert tools.did == ["create", "scp", "ssh", "scp", "ssh"], "nothing is deleted, nothing made twice"


@pytest.mark.rotates
def test_without_a_network_nothing_is_deleted(run, tools, pauses):
    down = {"code": 1, "says": "ERROR: could not reach the server"}
    tools.plan(ssh=[{"code": 255}, {}], describe=[{}, {}, down, {}])
    code, _, err = run(*TPU_VM)
    assert (code, tools.did) == (0, ["create", "scp", "ssh", "scp", "ssh"])
    assert "out of reach: ERROR: could not reach the server" in err


def test_who_is_not_logged_in_is_told_at_once(run, tools, pauses):
    tools.plan(describe=[{"code": 1, "says": "ERROR: you do not have an active account"}])
    code, _, err = run(*TPU_VM)
    assert (code, tools.did, pauses) == (1, [], [])
    assert "error: ERROR: you do not have an active account" in err


def test_machines_that_cannot_be_made_at_first_are_an_error_and_leave_nothing(run, tools, pauses):
    tools.plan(create=[{"code": 1, "says": "ERROR: quota exceeded"}])
    assert run(*TPU_VM)[0] == 1
    assert tools.did == ["create"]
    assert run(*TPU_VM, "--delete")[2] == "launch: nothing to delete: nothing named exp was launched from here\n"
    assert tools.did == ["create"]


@pytest.mark.rotates
def test_the_same_command_joins_a_run_that_is_there(run, tools, pauses):
    run(*TPU_VM)
    tools.forget_calls()
    assert run(*TPU_VM)[0] == 0
    assert tools.did == ["scp", "ssh"]


@pytest.mark.rotates
def test_what_an_earlier_launch_has_lost_is_deleted_first(run, tools, pauses):
    run(*QUEUED)
    tools.set("SUSPENDED")
    tools.forget_calls()
    assert run(*QUEUED)[0] == 0
    assert tools.did == ["delete", "create", "scp", "ssh"]


@pytest.mark.rotates
@pytest.mark.parametrize("command", [QUEUED, TPU_VM, GKE, SKY])
def test_delete_deletes_what_was_made_and_that_once(run, tools, pauses, command):
    if command is GKE:
        tools.plan(get=[{}, {}, {}, {"state": "Failed"}, {}])
    if command is SKY:
        tools.plan(launch=[{"code": 101}])
    run(*command)
    tools.forget_calls()
    assert run(*command, "--delete")[0] == 0
    assert not tools.exists
    assert set(tools.did) == {"cancel" if command is SKY else "delete"}
    calls = len(tools.calls)
    code, _, err = run(*command, "--delete")
    assert (code, len(tools.calls)) == (0, calls)
    assert "nothing to delete" in err


def test_delete_of_what_is_gone_already_is_as_good(run, tools, pauses):
    run(*TPU_VM)
    (tools.folder / "state").unlink()
    assert run(*TPU_VM, "--delete")[0] == 0
    assert "nothing to delete" in run(*TPU_VM, "--delete")[2]


def test_a_deletion_that_fails_is_not_forgotten(run, tools, pauses):
    run(*TPU_VM)
    tools.plan(delete=[{"code": 1, "says": "ERROR: permission denied"}])
    assert run(*TPU_VM, "--delete")[0] == 1
    assert run(*TPU_VM, "--delete")[0] == 0
    assert not tools.exists


def test_what_launch_has_not_made_is_neither_deleted_nor_made_anew(run, tools, pauses):
    tools.set("READY")
    assert run(*TPU_VM)[0] == 0, "a machine that is there may be used"
    assert run(*TPU_VM, "--delete")[0] == 0
    assert tools.exists
    tools.set("PREEMPTED")
    code, _, err = run(*TPU_VM)
    assert code == 1
    assert (
        "launch deletes only what it has made from here; delete it yourself: gcloud compute tpus tpu-vm delete" in err
    )
    assert "delete" not in tools.did


@pytest.mark.rotates
def test_one_name_is_launched_in_one_place(run, tools, pauses):
    run(*TPU_VM)
    code, _, err = run(*QUEUED)
    assert code == 2
    assert "exp is launched already" in err
    (tools.folder / "state").unlink()
    assert run(*QUEUED, "--name", "other")[0] == 0
    assert (
        "nothing named third was launched from here; there is exp, other"
        in run(*QUEUED, "--name", "third", "--delete")[2]
    )


@pytest.mark.rotates
def test_a_job_set_that_has_ended_is_replaced(run, tools, pauses):
    tools.plan(get=[{}, {}, {}, {"state": "Failed"}, {}])
    assert run(*GKE)[0] == 1
    tools.forget_calls()
    tools.plan(get=[{}, {}, {}, {}, {"state": "Completed"}])
    assert run(*GKE)[0] == 0
    deeds = [call[1:3] for call in tools.calls if call[1] in ("create", "delete")]
    assert deeds[:3] == [["delete", "jobset"], ["delete", "configmap"], ["create", "configmap"]]


def test_a_managed_job_under_way_is_watched_and_not_submitted_twice(run, tools, pauses):
    tools.plan(launch=[{"code": 101}])
    assert run(*SKY)[0] == 101
    assert run(*SKY)[0] == 0
    assert run(*SKY)[0] == 0
    assert tools.did == ["launch", "logs", "launch"]


def test_ctrl_c_stops_watching_only(run, tools, monkeypatch):
    def interrupted(command):
        raise KeyboardInterrupt

    monkeypatch.setattr("flax_transformer.launch.run._run", interrupted)
    code, _, err = run(*TPU_VM)
    assert code == 130
    assert "the run goes on: the same command watches it again, with --delete it is ended" in err


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        (TPU_VM, "gcloud is not installed; install it with: curl https://sdk.cloud.google.com | bash"),
        (GKE, "kubectl is not installed; install it with: gcloud components install kubectl"),
        (SKY, 'sky is not installed; install it with: pip install "skypilot[gcp]"'),
    ],
)
def test_a_missing_tool_is_one_sentence(run, no_tools, command, hint):
    code, out, err = run(*command)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"error: {hint}")
    assert run(*command, "--dry-run")[0] == 0, "what would be run can be printed without it"


@pytest.mark.rotates
def test_a_damaged_note_is_named(run, tools):
    run(*TPU_VM)
    for content in ("{", '{"on": "moon", "name": "exp"}', '{"on": "tpu-vm", "name": "exp", "zone": "--x"}', "[]"):
        NOTE.write_text(content)
        code, _, err = run(*TPU_VM, "--delete")
        assert code == 2
        assert "launch.json must say what a launch has made" in err
