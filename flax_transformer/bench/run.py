"""Measure a target or any function: compile its programs, time them, and put the numbers into one record."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from flax_transformer.bench.compare import check_same, load
from flax_transformer.bench.device import Peak, device_peak
from flax_transformer.bench.environment import environment
from flax_transformer.bench.flops import Flops, count_flops
from flax_transformer.bench.record import Record
from flax_transformer.bench.report import check_file
from flax_transformer.bench.target import find_target
from flax_transformer.bench.timing import Measurement, Program, array_shape, make_program, real, time_program
from flax_transformer.bench.workload import PROGRAMS, Size, Workload, count_programs, train_step
from flax_transformer.frozen import frozen
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh
from flax_transformer.train.carry import carry_of
from flax_transformer.train.optimizer import make_optimizer
from flax_transformer.train.state import abstract_state, init_state, parameter_count
from flax_transformer.train.step import laid_out


class RefusedError(ValueError):
    """What was asked for cannot be, and nothing has been measured."""

    exit_code = 2


@contextmanager
def at_the_door() -> Iterator[None]:
    """Make refusals of errors in what was asked for, found before anything is measured."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise RefusedError(str(error)) from error


@frozen
class Job:
    """What is about to be measured, all of it checked."""

    target: dict[str, Any]
    """What results have in common that can be compared."""
    flops: dict[str, Flops]
    """By program."""
    make: Callable[[], dict[str, Program]]
    """Makes the programs; one is forgotten before the next is measured."""
    items: int | None
    unit: str
    mesh: Mesh | None = None
    devices: int = 1


def bench(
    target: str,
    size: Size,
    *,
    what: Sequence[str] = (),
    steps: int = 20,
    mesh: MeshConfig | None = None,
    to: Path | None = None,
    earlier: Path | None = None,
) -> None:
    """Measure, print, and where asked write JSON and compare with what an earlier run wrote.

    Raises:
      RefusedError: for what cannot be measured, written or compared; before anything is measured.
    """
    with at_the_door():
        before = None if earlier is None else load(earlier)
        check_file(to)
        job = open_target(target, size, what=what, steps=steps, mesh=mesh)
        if before is not None:
            check_same(before["target"], job.target)
    first = jax.process_index() == 0
    record = run(job, steps, say=lambda text: print(text, flush=True) if first else None)
    if not first:
        return
    print(record)
    record.save(to)
    if before is not None:
        print(f"\n{record.compare(before)}")


def benchmark(
    target: str, size: Size, *, what: Sequence[str] = (), steps: int = 20, mesh: MeshConfig | None = None
) -> Record:
    """Measure the programs `what` of a target, by default all it has.

    Raises:
      RefusedError: for what cannot be measured, before anything is.
    """
    with at_the_door():
        job = open_target(target, size, what=what, steps=steps, mesh=mesh)
    return run(job, steps)


def measure(
    function: Callable,
    *arguments: Any,
    steps: int = 20,
    name: str | None = None,
    items: int | None = None,
    unit: str = "items",
    advance: Callable[[tuple, Any], tuple] | None = None,
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

    Returns:
      A record: print it, `save` it as JSON, `compare` it with one.

    Raises:
      ValueError: steps below 1, or an argument that is donated and that nothing replaces.
    """
    program = make_program(function, *arguments, advance=advance)
    named = name or getattr(function, "__name__", type(function).__name__)
    return run(_of_program(named, program, items=items, unit=unit, steps=steps), steps)


def open_target(
    name: str, size: Size, *, what: Sequence[str] = (), steps: int = 20, mesh: MeshConfig | None = None
) -> Job:
    """Find a target and check all that can be wrong with measuring it.

    Raises:
      ValueError: for a target, program, size or mesh that cannot be.
    """
    found = find_target(name, size)
    if isinstance(found, Program):
        if mesh is not None or what:
            given = f"what is measured, {', '.join(what)}" if what else "a mesh"
            raise ValueError(f"{name} is a function and lays its own arguments out; it takes no options, got {given}")
        return _of_program(name, found, items=None, unit="items", steps=steps)
    unknown = [program for program in what if program not in found.programs]
    if unknown:
        raise ValueError(
            f"what is measured of {name} must be some of {', '.join(found.programs)}, got {', '.join(unknown)}"
        )
    _check_steps(steps)
    return _of_workload(found, [program for program in PROGRAMS if program in (what or found.programs)], mesh)


def run(job: Job, steps: int, say: Callable[[str], None] = lambda text: None) -> Record:
    """Measure what was opened."""
    peak = device_peak(job.target["dtype"], job.devices)
    with nullcontext() if job.mesh is None else jax.set_mesh(job.mesh):
        programs, measured = job.make(), {}
        for name in list(programs):
            say(f"measuring {name} …")
            measured[name] = time_program(programs.pop(name), steps)
    return Record(
        target=job.target,
        environment=environment(),
        peak=asdict(peak),
        programs={
            name: {
                **asdict(measured[name]),
                "peak_bytes": measured[name].peak_bytes,
                **_rates(measured[name], job.items, job.unit, flops, peak),
            }
            for name, flops in job.flops.items()
        },
    )


def _of_program(name: str, program: Program, *, items: int | None, unit: str, steps: int) -> Job:
    _check_steps(steps)
    flops = count_flops(program.function, *program.arguments)
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(program.arguments))
    devices = max((sharding.num_devices for sharding in shardings if sharding is not None), default=1)
    short = name.rpartition(":")[2]

    def make() -> dict[str, Program]:
        return {short: Program(program.function, real(program.arguments), program.advance)}

    shape = array_shape(program.arguments)
    target = {"name": name, "dtype": flops.dtype, "shape": shape, "mesh": {}, "parameters": None}
    return Job(target=target, flops={short: flops}, make=make, items=items, unit=unit, devices=devices)


def _of_workload(workload: Workload, what: list[str], mesh: MeshConfig | None) -> Job:
    devices = make_mesh(workload.mesh if mesh is None else mesh)
    _check_rows(workload, devices)
    devices = devices if devices.size > 1 else None
    optimizer = make_optimizer(workload.optimizer, workload.steps)
    state = abstract_state(workload.init, optimizer, ema=workload.ema > 0, carry=carry_of(workload.objective))
    flops = count_programs(workload, what, optimizer, state)
    target = {
        "name": workload.name,
        "dtype": workload.dtype or flops[what[-1]].dtype,
        "shape": workload.shape,
        "mesh": {} if devices is None else dict(devices.shape),
        "parameters": parameter_count(state.model),
    }
    return Job(
        target=target,
        flops=flops,
        make=lambda: _prepare(workload, what, devices),
        items=workload.items,
        unit=workload.unit,
        mesh=devices,
        devices=1 if devices is None else devices.size,
    )


def _check_steps(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"steps must be a positive number, got {steps}")


def _check_rows(workload: Workload, mesh: Mesh) -> None:
    rows, parts = workload.shape["rows"], mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % (parts * workload.accumulate):
        raise ValueError(
            f"rows must be a multiple of data × fsdp × accumulate, got {rows} rows, "
            f"{mesh.shape['data']} × {mesh.shape['fsdp']} × {workload.accumulate}; --batch sets them"
        )


def _rates(m: Measurement, items: int | None, unit: str, flops: Flops, peak: Peak) -> dict[str, Any]:
    speed = flops.model / m.step.median
    return {
        "items": items,
        "unit": unit,
        "items_per_second": None if items is None else items / m.step.median,
        "flops": flops.model,
        "flops_again": flops.again,
        "flops_notes": list(flops.notes),
        "flops_per_second": speed,
        "mfu": speed / peak.flops,
    }


def _prepare(workload: Workload, what: Sequence[str], mesh: Mesh | None) -> dict[str, Program]:
    """Make the programs asked for; training comes last, as it takes the state over."""
    training = "train" in what
    optimizer = make_optimizer(workload.optimizer, workload.steps) if training else optax.set_to_zero()
    ema, carry = workload.ema > 0 and training, carry_of(workload.objective)
    state = init_state(workload.init, optimizer, jax.random.key(0), ema=ema, carry=carry, mesh=mesh)
    place = jax.devices()[0] if mesh is None else batch_sharding(mesh)
    batch = jax.device_put(workload.batch, place)
    programs = {}
    if "forward" in what:
        programs["forward"] = Program(jax.jit(workload.forward), (state.model, batch))
    if "decode" in what:
        programs["decode"] = Program(jax.jit(workload.decode), (workload.ready(state.model), batch))
    if training:
        programs["train"] = Program(
            laid_out(train_step(workload, optimizer), state, mesh),
            (state, batch),
            advance=lambda arguments, result: (result[0], arguments[1]),
            watch=lambda result: result[1],
            ahead=1,
        )
    return programs
