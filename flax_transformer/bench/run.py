"""Measure a target or any function: compile its programs, time them, and put the numbers into one record."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from flax_transformer.bench.device import device_peak
from flax_transformer.bench.environment import environment
from flax_transformer.bench.record import Record
from flax_transformer.bench.target import find_target
from flax_transformer.bench.timing import Program, check_steps, make_program, real, time_program
from flax_transformer.bench.workload import PROGRAMS, Facts, Size, Workload, program_facts, ready
from flax_transformer.frozen import frozen
from flax_transformer.listing import listed
from flax_transformer.ops.attention.dispatch import logger as attention_log
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh
from flax_transformer.train.optimizer import make_optimizer
from flax_transformer.train.profile import OPERATIONS, Profile, operations
from flax_transformer.train.state import init_state
from flax_transformer.train.step import laid_out


class RefusedError(ValueError):
    """What was asked for cannot be, and nothing has been measured."""

    exit_code = 2


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Make refusals of errors in what was asked for, found before anything is measured."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise RefusedError(str(error)) from error


class RecompiledError(RuntimeError):
    """A program was compiled again after its first run."""


@contextmanager
def attention_said() -> Iterator[list[str]]:
    """Collect what attention says of its choices within a `with` block, each once."""
    said: list[str] = []
    level, handler = attention_log.level, logging.Handler()
    handler.emit = lambda record: None if record.getMessage() in said else said.append(record.getMessage())
    attention_log.addHandler(handler)
    attention_log.setLevel(logging.INFO)
    try:
        yield said
    finally:
        attention_log.removeHandler(handler)
        attention_log.setLevel(level)


@frozen
class Job:
    """What is about to be measured, all of it checked."""

    facts: Facts
    make: Callable[[], dict[str, Program]]
    """Makes the programs; one is forgotten before the next is measured."""
    steps: int
    mesh: Mesh | None = None
    devices: int = 1

    @property
    def target(self) -> dict[str, Any]:
        """What results have in common that can be compared."""
        facts = {name: getattr(self.facts, name) for name in ("name", "dtype", "shape", "parameters")}
        return {**facts, "mesh": {} if self.mesh is None else dict(self.mesh.shape)}


def benchmark(
    target: str, size: Size, *, what: Sequence[str] = (), steps: int = 20, mesh: MeshConfig | None = None
) -> Record:
    """Measure the programs `what` of a target, by default all it has.

    Raises:
      RefusedError: for what cannot be measured, before anything is.
    """
    with exit_on_error():
        job = open_target(target, size, what=what, steps=steps, mesh=mesh)
    return run(job)


def measure(
    function: Callable,
    *arguments: Any,
    steps: int = 20,
    name: str | None = None,
    items: int | None = None,
    unit: str = "items",
    advance: Callable[[tuple, Any], tuple] | None = None,
    profile: Profile | None = None,
) -> Record:
    """Measure any function: seconds, FLOPs, utilisation, memory and recompilations.

    All of JAX's compiled programs in memory are forgotten.

    Args:
      function: of pytrees; jitted unless it is.
      arguments: what it is called with; a `jax.ShapeDtypeStruct` stands for random numbers, or zeros of integers.
      steps: calls that count.
      name: what the record calls it; its own by default.
      items: how many of whatever it is for it makes in a call, such as tokens or images.
      unit: what these are.
      advance: `advance(arguments, result)`, the next call's arguments. Without, an argument that the function donates
        is what it has returned in its place.
      profile: calls to trace once all is measured.

    Returns:
      A record: print it, `save` it as JSON, `compare` it with one.

    Raises:
      ValueError: steps below 1, or an argument that is donated and that nothing replaces.
    """
    program = make_program(function, *arguments, advance=advance)
    named = name or getattr(function, "__name__", type(function).__name__)
    return run(_of_program(program, program_facts(named, program, items, unit), check_steps(steps)), profile=profile)


def open_target(
    name: str,
    size: Size,
    *,
    what: Sequence[str] = (),
    steps: int = 20,
    mesh: MeshConfig | None = None,
    options: Sequence[str] = (),
) -> Job:
    """Find a target and check all that can be wrong with measuring it; `options` as `find_target`'s.

    Raises:
      ValueError: for a target, program, size or mesh that cannot be.
    """
    found, steps = find_target(name, size, options), check_steps(steps)
    if isinstance(found, Program):
        if mesh is not None or what:
            given = f"what is measured, {', '.join(what)}" if what else "a mesh"
            raise ValueError(f"{name} is a function and lays its own arguments out; it takes no options, got {given}")
        return _of_program(found, program_facts(name, found), steps)
    if unknown := [program for program in what if program not in found.programs]:
        raise ValueError(
            f"what is measured of {name} must be some of {', '.join(found.programs)}, got {listed(unknown)}"
        )
    what = [program for program in PROGRAMS if program in (what or found.programs)]
    devices = make_mesh(found.mesh if mesh is None else mesh)
    found.check_rows(devices.shape)
    on = devices if devices.size > 1 else None

    def make():
        return _prepare(found, what, on)

    return Job(facts=found.facts(what), make=make, steps=steps, mesh=on, devices=devices.size)


def run(job: Job, say: Callable[[str], None] = lambda text: None, profile: Profile | None = None) -> Record:
    """Measure what was opened.

    Args:
      profile: calls of each program that are traced, into a folder of its name.
    """
    facts, peak, measured = job.facts, device_peak(job.facts.dtype, job.devices), {}
    with nullcontext() if job.mesh is None else jax.set_mesh(job.mesh):
        programs = job.make()
        for name in list(programs):
            say(f"measuring {name} …")
            with attention_said() as notes:
                traced = profile and replace(profile, folder=profile.folder / name)
                found = time_program(programs.pop(name), job.steps, traced)
            flops, took = facts.flops[name], found.step.median
            measured[name] = {
                **asdict(found),
                "causes": list(found.causes),
                "peak_bytes": found.peak_bytes,
                "items": facts.items,
                "unit": facts.unit,
                "items_per_second": None if facts.items is None else facts.items / took,
                "flops": flops.model,
                "flops_again": flops.again,
                "notes": notes,
                "operations": [asdict(each) for each in operations(traced.folder)[:OPERATIONS]] if traced else [],
                "flops_modules": dict(flops.modules),
                "flops_notes": list(flops.notes),
                "flops_per_second": flops.model / took,
                "mfu": flops.model / took / peak.flops,
            }
    ordered = {name: measured[name] for name in facts.flops}
    return Record(target=job.target, environment=environment(), peak=asdict(peak), programs=ordered)


def _of_program(program: Program, facts: Facts, steps: int) -> Job:
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(program.arguments))
    devices = max((sharding.num_devices for sharding in shardings if sharding is not None), default=1)
    (name,) = facts.flops

    def make():
        return {name: Program(program.function, real(program.arguments), program.advance)}

    return Job(facts=facts, make=make, steps=steps, devices=devices)


def _prepare(workload: Workload, what: Sequence[str], mesh: Mesh | None) -> dict[str, Program]:
    """Make the programs asked for; training comes last, as it takes the state over."""
    training, train = "train" in what, workload.train
    optimizer = make_optimizer(workload.optimizer, train.steps) if training else optax.set_to_zero()
    ema = train.ema > 0 and training
    state = init_state(workload.init, optimizer, jax.random.key(0), ema=ema, carry=workload.carry, mesh=mesh)
    batch = jax.device_put(workload.batch, jax.devices()[0] if mesh is None else batch_sharding(mesh))
    programs = {}
    if "forward" in what:
        programs["forward"] = Program(jax.jit(workload.forward), (state.model, batch))
    if "decode" in what:
        programs["decode"] = Program(jax.jit(workload.decode), (ready(state.model), batch))
    if training:
        programs["train"] = Program(
            laid_out(workload.step, state, mesh),
            (state, batch),
            advance=lambda arguments, result: (result[0], arguments[1]),
            watch=lambda result: result[1],
            ahead=1,
        )
    return programs
