"""Start an experiment somewhere else with one command: here in several processes, on TPU machines, GKE, or by SkyPilot.

A target turns a `LaunchRequest` into a `LaunchPlan`: the files and commands, all of them, before anything runs.
`render` prints a plan so that it can be pasted into a shell; `carry_out` runs the same plan through the tool that is
installed.
"""

from flax_transformer.launch.accelerator import Accelerator, find_accelerator
from flax_transformer.launch.folder import ROOT, LaunchFolder, Made
from flax_transformer.launch.local import Local, local_lines, run_local
from flax_transformer.launch.package import Package, pack
from flax_transformer.launch.plan import LaunchPlan, LaunchStep, Missing, Tool, render, render_commands
from flax_transformer.launch.request import LaunchRequest, default_name
from flax_transformer.launch.run import carry_out, delete
from flax_transformer.launch.target import TARGETS, Target

__all__ = [
    "ROOT",
    "TARGETS",
    "Accelerator",
    "LaunchFolder",
    "LaunchPlan",
    "LaunchRequest",
    "LaunchStep",
    "Local",
    "Made",
    "Missing",
    "Package",
    "Target",
    "Tool",
    "carry_out",
    "default_name",
    "delete",
    "find_accelerator",
    "local_lines",
    "pack",
    "render",
    "render_commands",
    "run_local",
]
