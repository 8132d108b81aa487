"""The command `launch`: start an experiment here in several processes, or somewhere else."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flax_transformer.cli.read import Folder, Options
from flax_transformer.listing import listed

On = Literal["local", "tpu-vm", "queued-resource", "gke", "sky"]


@dataclass(frozen=True)
class Machines:
    """What to run on, where that is not here."""

    tpu: str = ""
    """Slice, as v5litepod-16 or v5e:4x4."""
    zone: str | None = None
    """Zone of the TPU; gcloud's own by default, any for --on sky."""
    project: str | None = None
    """Project that pays; gcloud's own by default."""
    spot: bool = False
    """Whether to take machines that cost less and may be taken away."""
    name: str = ""
    """Of all that is made for the run; the experiment's by default."""
    retries: int = 10
    """How often to begin again after the machines were taken away."""


def launch(
    experiment: Folder,
    options: Options = (),
    /,
    *,
    on: On,
    workdir: str | None = None,
    machines: Annotated[Machines, tyro.conf.arg(name="")] = Machines(),
    processes: int = 1,
    dry_run: bool = False,
    delete: bool = False,
) -> None:
    """Start an experiment on TPUs, or here in several processes, and show what it says until it has ended.

    The same command again shows what runs, or goes on from the last checkpoint in WORKDIR.

    Args:
      experiment: File of the experiment, FILE:NAME for one of several in it.
      options: Of several experiments the NAME, if not said yet; and arguments of the experiment, after --, as in:
        -- base --train.steps 10.
      on: Where: in processes here; on TPU machines, at once or when there is room; on a GKE cluster; by SkyPilot.
      workdir: Folder of the run: gs://BUCKET/FOLDER, which all machines reach; for --on local a folder here, the
        experiment's own by default.
      machines: Machines.
      processes: How many to start with --on local.
      dry_run: Print what would be run, to be pasted into a shell, and run nothing.
      delete: Delete what launch has made under this name, and nothing else, instead of starting anything.
    """
    from flax_transformer.launch import Missing

    try:
        experiment, options = _as_run(experiment, options)
        if on == "local":
            code = _here(experiment, options, workdir, processes, dry_run=dry_run, delete=delete)
        elif delete:
            code = _delete(experiment, options, on, machines, dry_run=dry_run)
        else:
            code = _elsewhere(experiment, options, on, workdir or "", machines, dry_run=dry_run)
    except (ValueError, Missing) as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _as_run(experiment: str, options: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Spell an experiment as its file is run: the name is the first of its arguments."""
    from flax_transformer.task.command import spelled, split_target

    target, options = spelled(experiment, options)
    file, name = split_target(target)
    return file, (name, *options) if name else options


def _here(
    experiment: str, options: tuple[str, ...], workdir: str | None, processes: int, *, dry_run: bool, delete: bool
) -> int:
    from flax_transformer.launch import Local, local_lines, run_local

    if delete:
        raise ValueError("a run here leaves nothing to delete but its folder: remove that")
    local = Local(experiment=experiment, workdir=workdir, options=options, processes=processes)
    if not dry_run:
        return run_local(local)
    print(local_lines(local), end="")
    return 0


def _own(experiment: str, options: tuple[str, ...], on: str, machines: Machines):
    """Name what is to be made, and the folder that remembers it."""
    from flax_transformer.launch import ROOT, LaunchFolder, Made, default_name

    name = machines.name or default_name(experiment, options)
    made = Made(on=on, name=name, zone=machines.zone, project=machines.project)
    return made, LaunchFolder(Path(ROOT) / name)


def _elsewhere(
    experiment: str, options: tuple[str, ...], on: str, workdir: str, machines: Machines, *, dry_run: bool
) -> int:
    from flax_transformer.launch import TARGETS, LaunchRequest, carry_out, find_accelerator, pack, render

    made, folder = _own(experiment, options, on, machines)
    before = folder.read()
    if before not in (None, made):
        raise ValueError(f"{made.name} is launched already, as {before}; delete that first, or give another --name")
    package = pack(Path(experiment))
    request = LaunchRequest(
        name=made.name,
        folder=folder.root.as_posix(),
        package=package,
        options=options,
        workdir=workdir,
        accelerator=find_accelerator(machines.tpu),
        zone=machines.zone,
        project=machines.project,
        spot=machines.spot,
        retries=machines.retries,
    )
    plan = TARGETS[on].plan(request)
    print(f"launch: {folder.prepare(package, plan)}", file=sys.stderr)
    if not dry_run:
        return carry_out(plan, made, folder, retries=machines.retries)
    print(render(plan), end="")
    return 0


def _delete(experiment: str, options: tuple[str, ...], on: str, machines: Machines, *, dry_run: bool) -> int:
    from flax_transformer.launch import delete, render_commands

    made, folder = _own(experiment, options, on, machines)
    before = folder.read()
    if dry_run:
        print(render_commands((before or made).delete), end="")
        return 0
    if before is None:
        others = sorted(note.parent.name for note in folder.root.parent.glob("*/launch.json"))
        there = f"; there is {listed(others)}" if others else ""
        print(f"launch: nothing to delete: nothing named {made.name} was launched from here{there}", file=sys.stderr)
        return 0
    return delete(before, folder)
