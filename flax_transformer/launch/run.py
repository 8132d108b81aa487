"""Carry out a plan: begin again after a preemption, go on watching after a broken connection, delete on request."""

import subprocess
import sys
import time
from dataclasses import dataclass

from flax_transformer.launch.folder import LaunchFolder, Made
from flax_transformer.launch.plan import Command, LaunchPlan, LaunchStep, check_tool
from flax_transformer.launch.target import TARGETS

MAKE_WAY = 143
"""Exit code of a worker that was told to make way."""

DISCONNECTED = 255
"""Exit code of ssh where the connection, not the command, failed."""

REFUSED = 2
"""Exit code of an experiment whose settings cannot work: there is nothing to try again."""

SETTLE = 15
"""Seconds after which the state of machines that are taken away says so."""


@dataclass
class Lost(Exception):
    """The run does not go on, or cannot be seen, for no fault of its own."""

    why: str
    anew: bool
    """Whether what was made is of no more use, so that it must be deleted and made anew."""


class Unknown(RuntimeError):
    """The tool cannot tell the state of things: no network, say, or nobody is logged in."""


def carry_out(plan: LaunchPlan, made: Made, folder: LaunchFolder, *, retries: int) -> int:
    """Do what a plan says, until the run has ended; begin again up to `retries` times.

    What is lost is deleted and made anew if launch has made it, with pauses that double from half a minute to ten.

    Returns:
      The exit code of the command that ended it; 1 after the last retry; 130 after Ctrl-C, which only ends watching.

    Raises:
      Missing: when the tool is not installed.
      RuntimeError: when the tool cannot tell what there is, or when that was not made by launch and is in the way.
    """
    check_tool(plan.tool)
    try:
        _clear(plan, folder)
        for attempt in range(retries + 1):
            if attempt:
                pause = min(30 * 2 ** (attempt - 1), 600)
                _say(f"retry {attempt} of {retries} in {pause} s")
                time.sleep(pause)
            try:
                code = _attempt(plan, made, folder, first=attempt == 0)
                if folder.read() is not None:
                    _say("what was made stays, and may cost, until it is deleted: the same command with --delete")
                return code
            except Lost as lost:
                _say(lost.why)
                if lost.anew:
                    _delete_own(plan, folder)
                    folder.write(made)
        _say(f"gave up after {retries} retries; the same command goes on from the last checkpoint")
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        if folder.read() is not None:
            _say("stopped watching; the run goes on: the same command watches it again, with --delete it is ended")
        return 130


def delete(made: Made, folder: LaunchFolder) -> int:
    """Delete what launch has made; that it is gone already is as good.

    Returns:
      0, or the exit code of a deletion that failed; then the note of it stays.

    Raises:
      Missing: when the tool is not installed.
    """
    tool = TARGETS[made.on].tool
    check_tool(tool)
    for command in made.delete:
        _say(f"deleting: {' '.join(command)}")
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode and tool.gone.lower() not in done.stderr.lower():
            return done.returncode
    folder.forget()
    return 0


def _say(text: str) -> None:
    print(f"launch: {text}", file=sys.stderr, flush=True)


def _state(plan: LaunchPlan) -> str:
    """Query the state: a word, or nothing where there is no such thing.

    Raises:
      Unknown: when the tool cannot tell.
    """
    done = subprocess.run(plan.state, capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout.strip() or "UNDER WAY"
    if plan.tool.gone.lower() in done.stderr.lower():
        return ""
    raise Unknown(done.stderr.strip() or f"{plan.tool.name} ended with exit code {done.returncode}")


def _clear(plan: LaunchPlan, folder: LaunchFolder) -> None:
    """Delete what an earlier launch has left that is of no more use."""
    state = _state(plan) if plan.state else "UNDER WAY"
    if state in (*plan.lost, *plan.over) or (not state and folder.read() is not None):
        _say(f"an earlier launch has ended: {state or 'gone'}")
        _delete_own(plan, folder)


def _delete_own(plan: LaunchPlan, folder: LaunchFolder) -> None:
    """Delete what launch has made.

    Raises:
      RuntimeError: when launch has not made it, or it cannot be deleted.
    """
    own = folder.read()
    if own is None:
        commands = "; ".join(" ".join(command) for command in plan.delete)
        raise RuntimeError(f"launch deletes only what it has made from here; delete it yourself: {commands}")
    if (code := delete(own, folder)) != 0:
        raise RuntimeError(f"it cannot be deleted: {plan.tool.name} ended with exit code {code}")


def _attempt(plan: LaunchPlan, made: Made, folder: LaunchFolder, *, first: bool) -> int:
    """Go through the steps once.

    Raises:
      Lost: when it is worth going through them again.
    """
    for step in plan.again if plan.again and folder.read() else plan.steps:
        if step.unless and subprocess.run(step.unless, capture_output=True).returncode == 0:
            continue
        if step.makes:
            folder.write(made)
        try:
            code = _wait(step, plan) if step.ends else _run(step.command)
            if code:
                _raise_if_lost(plan, step, code, first=first)
        except Unknown as unknown:
            raise Lost(f"out of reach: {unknown}", anew=False) from unknown
        if code in plan.ended or (code and step.makes and plan.state and not _exists(plan)):
            folder.forget()
        if code:
            return code
    return 0


def _run(command: Command) -> int:
    _say(" ".join(command[:5]) + (" …" if len(command) > 5 else ""))
    return subprocess.run(command).returncode


def _wait(step: LaunchStep, plan: LaunchPlan) -> int:
    """Poll until a word of a step is answered; return 0 for the good one, else `MAKE_WAY` for loss, else 1."""
    said = None
    while (state := _state(plan)) and state not in step.ends:
        if state != said:
            _say(f"{state}, waiting for {step.ends[0]}")
            said = state
        if step.meanwhile:
            subprocess.run(step.meanwhile)
        time.sleep(step.pause)
    _say(state or "gone")
    return 0 if state == step.ends[0] else MAKE_WAY if state in plan.lost else 1


def _raise_if_lost(plan: LaunchPlan, step: LaunchStep, code: int, *, first: bool) -> None:
    """Return whether it is a loss of the machine, or a failure of the run.

    Machines that cannot be made are a loss where they could be made before: there is no room for them at the moment.
    """
    if not plan.lost or code == REFUSED or (step.makes and first):
        return
    time.sleep(SETTLE)
    state = _state(plan)
    if not state or state in plan.lost:
        raise Lost(f"the machines were taken away: {state or 'gone'}", anew=bool(state))
    if step.makes or code in (MAKE_WAY, DISCONNECTED):
        raise Lost(f"interrupted with exit code {code}: {state}", anew=False)


def _exists(plan: LaunchPlan) -> bool:
    try:
        return bool(_state(plan))
    except Unknown:
        return True  # so that the note stays by which it can be deleted
