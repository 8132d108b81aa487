"""Measure a target: make its model, compile its programs, time them, and put the numbers into one record."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import Mesh

from flax_transformer.bench.compare import compare, load
from flax_transformer.bench.device import device_peak
from flax_transformer.bench.environment import environment
from flax_transformer.bench.flops import FORMULA
from flax_transformer.bench.measure import Measurement, Program, measure
from flax_transformer.bench.report import render, save
from flax_transformer.bench.target import Size, Workload, find_target
from flax_transformer.parallel import MeshConfig, batch_sharding, make_mesh
from flax_transformer.train.carry import carry_of
from flax_transformer.train.optimizer import make_optimizer
from flax_transformer.train.state import init_state, parameter_count
from flax_transformer.train.step import laid_out, make_train_step

WHAT = ("forward", "train", "decode")


def bench(
    target: str,
    size: Size,
    *,
    what: tuple[str, ...] = WHAT,
    steps: int = 20,
    mesh: MeshConfig | None = None,
    to: Path | None = None,
    earlier: Path | None = None,
) -> None:
    """Measure, print, and where asked write JSON and compare with what an earlier run wrote.

    Raises:
      ValueError: for what cannot be measured or compared.
    """
    before = None if earlier is None else load(earlier)  # a wrong file should not cost the wait
    say = lambda text: print(text, flush=True) if jax.process_index() == 0 else None  # noqa: E731
    record = benchmark(target, size, what=what, steps=steps, mesh=mesh, say=say)
    if jax.process_index() != 0:
        return
    print(render(record))
    save(record, to)
    if before is not None:
        print(f"\n{compare(before, record)}")


def benchmark(
    target: str,
    size: Size,
    *,
    what: tuple[str, ...] = WHAT,
    steps: int = 20,
    mesh: MeshConfig | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure the programs `what` of a target; give everything JSON can hold about them."""
    if steps < 1:
        raise ValueError(f"steps must be a positive number, got {steps}")
    unknown = [name for name in what if name not in WHAT]
    if unknown or not what:
        raise ValueError(f"what is measured must be some of {', '.join(WHAT)}, got {', '.join(unknown) or 'nothing'}")
    workload = find_target(target, size)
    devices = make_mesh(workload.mesh if mesh is None else mesh)
    _check_rows(workload, devices)
    devices = devices if devices.size > 1 else None
    peak = device_peak(workload.dtype, 1 if devices is None else devices.size)
    with nullcontext() if devices is None else jax.set_mesh(devices):
        state, programs = prepare(workload, what, devices)
        parameters = parameter_count(state.model)
        counts = workload.count(state.model, workload.batch)
        del state
        measured = {}
        for name in list(programs):
            say(f"measuring {name} …")
            measured[name] = measure(programs.pop(name), steps)
    return {
        "target": {
            "name": target,
            "dtype": workload.dtype,
            "shape": workload.shape,
            "mesh": {} if devices is None else dict(devices.shape),
            "parameters": parameters,
        },
        "environment": environment(),
        "formula": FORMULA,
        "peak": asdict(peak),
        "programs": {
            name: {**asdict(m), "peak_bytes": m.peak_bytes, **_rates(m, counts.get(name), peak.flops)}
            for name, m in sorted(measured.items(), key=lambda item: what.index(item[0]))
        },
    }


def _check_rows(workload: Workload, mesh: Mesh) -> None:
    rows, parts = workload.shape["rows"], mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % (parts * workload.accumulate):
        raise ValueError(
            f"rows must be a multiple of data × fsdp × accumulate, got {rows} rows, "
            f"{mesh.shape['data']} × {mesh.shape['fsdp']} × {workload.accumulate}; --batch sets them"
        )


def _rates(m: Measurement, count: Any, peak: float | int) -> dict[str, float | int | None]:
    if count is None:
        return {"tokens": None, "flops": None, "tokens_per_second": None, "flops_per_second": None, "mfu": None}
    speed = count.flops / m.step.median
    return {
        **asdict(count),
        "tokens_per_second": count.tokens / m.step.median,
        "flops_per_second": speed,
        "mfu": speed / peak,
    }


def prepare(workload: Workload, what: tuple[str, ...], mesh: Mesh | None) -> tuple[Any, dict[str, Program]]:
    """Make the training state and the programs asked for; training comes last, as it takes the state over."""
    training = "train" in what
    optimizer = make_optimizer(workload.optimizer, workload.steps) if training else optax.set_to_zero()
    ema, carry = workload.ema > 0 and training, carry_of(workload.objective)
    state = init_state(workload.init, optimizer, jax.random.key(0), ema=ema, carry=carry, mesh=mesh)
    place = jax.devices()[0] if mesh is None else batch_sharding(mesh)
    batch = jax.device_put(workload.batch, place)
    programs = {}
    if "forward" in what:
        programs["forward"] = Program(jax.jit(workload.forward), (state.model, batch))
    if "decode" in what and workload.decode is not None:
        programs["decode"] = Program(jax.jit(workload.decode), (workload.ready(state.model), batch))
    if training:
        step = make_train_step(
            workload.objective, optimizer, accumulate=workload.accumulate, ema=workload.ema
        )  # fmt: skip
        programs["train"] = Program(
            laid_out(step, state, mesh),
            (state, batch),
            advance=lambda arguments, result: (result[0], arguments[1]),
            watch=lambda result: result[1],
            ahead=1,
        )
    return state, programs
