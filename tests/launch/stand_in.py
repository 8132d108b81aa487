"""Stands in for gcloud, kubectl and sky: writes down how it is called, and behaves as STAND_IN/plan.json says.

STAND_IN/state holds the state of the one thing there is; without that file there is none. The plan gives, by verb, what
happens at each call in turn: {"code": exit code, "state": new state or null for gone, "says": text on standard error}.
"""

import json
import os
import sys
from pathlib import Path


def gone(tool):
    print(
        "Error from server (NotFound): jobset" if tool == "kubectl" else "ERROR: NOT_FOUND: Resource", file=sys.stderr
    )
    sys.exit(1)


def main():
    folder, arguments = Path(os.environ["STAND_IN"]), sys.argv[1:]
    tool = Path(sys.argv[0]).name
    state = folder / "state"
    with (folder / "calls").open("a") as calls:
        calls.write(json.dumps([tool, *arguments]) + "\n")
    verbs = ("describe", "create", "scp", "ssh", "delete", "get", "logs", "launch", "cancel")
    verb = next(word for word in arguments if word in verbs)
    if "configmap" in arguments:
        sys.exit(0)
    plan = json.loads((folder / "plan.json").read_text())
    turn = (plan.get(verb) or [{}]).pop(0)
    (folder / "plan.json").write_text(json.dumps(plan))

    if turn.get("says"):
        print(turn["says"], file=sys.stderr)
    if turn.get("code") and verb in ("describe", "get"):
        sys.exit(turn["code"])
    if verb in ("describe", "get"):
        if not state.exists():
            gone(tool)
        print(state.read_text(), end="")
    elif verb == "create" and not turn.get("code"):
        state.write_text(
            turn.get("state", "ACTIVE" if "queued-resources" in arguments else "READY" * (tool == "gcloud"))
        )
    elif verb == "delete" and not turn.get("code"):
        if not state.exists() and "--ignore-not-found" not in arguments:
            gone(tool)
        state.unlink(missing_ok=True)
    elif "state" in turn:
        state.unlink(missing_ok=True)
        if turn["state"] is not None:
            state.write_text(turn["state"])
    if verb in ("describe", "get") and "state" in turn and turn["state"]:
        state.write_text(turn["state"])
    sys.exit(turn.get("code", 0))


if __name__ == "__main__":
    main()
