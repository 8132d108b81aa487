"""Search the ways to train on chips that are not here for the fastest that fits: meshes × remat × batch × accumulation.

Before anything is compiled, a way has bounds: no step is faster than its arithmetic, or than the links carry what it
must send, and no device has less to hold than its part of the state. So the most promising ways are compiled first, and
the search ends when none that is left can be faster than the fastest found. Where bounds are far below what programs
take, as of a small model, which memory limits, they do not tell ways apart: then it ends when several in a row were not
faster.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh

from flax_transformer.bench.chip import Topology
from flax_transformer.bench.compile_ahead import Case, CompilerError
from flax_transformer.bench.device import known_peak
from flax_transformer.bench.experiment import option_changes, with_options
from flax_transformer.bench.minimum_bytes import minimum_bytes, splits
from flax_transformer.bench.plan import ESTIMATE, UNKNOWN, CompiledPlan, gib, plan, spell_mesh
from flax_transformer.bench.report import seconds
from flax_transformer.bench.target import find_experiment, find_workload
from flax_transformer.bench.workload import Size, Workload
from flax_transformer.frozen import frozen
from flax_transformer.parallel import AXES, MeshConfig, abstract_mesh, row_parts
from flax_transformer.task.command import split_target
from flax_transformer.text_table import align
from flax_transformer.train.state import state_shardings

KEPT = ("none", "dots", "attention", "full")
"""What the backward pass keeps, most first."""
SPLIT, PARTS = (1, 2, 4, 8), (1, 2, 4)
"""Sizes that are tried of the axes `tensor` and `expert`, and numbers of parts that a batch is taken in."""
TRIES = 24
"""Ways that are compiled at the most, if nothing else is said."""
FAR, PATIENCE, GAIN = 0.5, 4, 0.99
"""A bound below this part of the fastest is far from it; then the search ends after so many ways in a row that fit and
are not faster, by one in a hundred at least."""


@frozen
class Candidate:
    """One way to train, with what is known before it is compiled."""

    case: Case
    seconds: float
    """That a row takes at the least."""
    held: int
    """Bytes of the state that a device has."""
    load: int
    """Rows that a device computes at a time."""

    def harder(self, other: "Candidate") -> bool:
        """Whether it needs at least the memory that another needs."""
        mine, its = self.case.size["remat"], other.case.size["remat"]
        same = self.case.mesh == other.case.mesh
        return same and self.load >= other.load and KEPT.index(mine) <= KEPT.index(its)


Found = list[tuple[Candidate, CompiledPlan | str]]


def ways(case: Case) -> list[Candidate]:
    """List the ways to train a case, the most promising first.

    A preset is tried with twice its rows too. An experiment keeps its batch, which is part of what it teaches.

    Raises:
      ValueError: for what is no model with a training step.
    """
    experiment = split_target(case.target)[0].endswith(".py")
    size = {name: value for name, value in case.size.items() if name not in ("remat", "accumulate")}
    works = {remat: find_workload(case.target, Size(**size, remat=remat), case.options) for remat in KEPT}
    flops = {remat: work.facts(("train",)).flops["train"].hardware for remat, work in works.items()}
    rows = works["none"].rows
    made = []
    for place in _places(works["none"], Topology.of(case.topology)):
        for many in (rows,) if experiment else (rows, 2 * rows):
            batch = {} if experiment else {"batch": many}
            for remat in KEPT:
                tried = replace(case, mesh=place.config, size={**size, **batch, "remat": remat})
                made += _parts(tried, works[remat], place, many, flops[remat] / rows)
    return sorted(made, key=lambda way: (way.seconds, way.case.size["accumulate"], way.held))


@frozen
class _Place:
    """Where a mesh puts the state of training."""

    config: MeshConfig
    mesh: AbstractMesh
    model: Any
    shardings: Any
    learns: list[bool]
    """Of each parameter, whether it gets a gradient."""
    held: int
    """Bytes of the state that a device has."""

    def sent(self, shape: dict[str, int], dtype: str, gathers: int) -> int:
        """Count the bytes that a device must send in a step."""
        least = minimum_bytes(
            self.model, self.shardings, self.mesh, shape, dtype, gathers=gathers, learns=self.learns
        )  # fmt: skip
        return sum(least.values())


def _places(work: Workload, topology: Topology) -> Iterator[_Place]:
    state, count = work.state, topology.devices
    learns = work.learning(state.model)
    for expert, tensor, power in product(SPLIT, SPLIT, range(count.bit_length())):
        if count % (expert * tensor * 2**power):
            continue
        sizes = {"data": count // (expert * tensor * 2**power), "fsdp": 2**power, "tensor": tensor, "expert": expert}
        config = MeshConfig(**sizes)
        mesh = abstract_mesh(config, count)
        try:
            shardings = state_shardings(state, mesh)
        except ValueError:  # heads, experts or a width that this mesh cannot split
            continue
        each = jax.tree.leaves(shardings)
        if expert > 1 and not any(splits(sharding, "expert") for sharding in each):
            continue  # a model without experts
        leaves = zip(jax.tree.leaves(state), each, strict=True)
        held = sum(math.prod(sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf, sharding in leaves)
        yield _Place(
            config=config, mesh=mesh, model=state.model, shardings=shardings.model, learns=learns, held=held
        )  # fmt: skip


def _parts(case: Case, work: Workload, place: _Place, rows: int, flops: float) -> Iterator[Candidate]:
    """Return the ways to take a batch on one mesh, where it can be shared out; `flops` are of a row."""
    topology, dtype = Topology.of(case.topology), work.dtype or "float32"
    spec, parallel = topology.spec, row_parts(place.mesh.shape)
    peak = (known_peak(spec.kind, dtype) or known_peak(spec.kind, "bfloat16")) * topology.devices
    for parts in PARTS:
        if rows % (parallel * parts) == 0:
            sent = place.sent({**work.shape, "rows": rows}, dtype, parts)
            bound = max(flops / peak, sent * spec.devices / spec.links / rows)
            size = {**case.size, "accumulate": parts}
            yield Candidate(
                case=replace(case, size=size), seconds=bound, held=place.held, load=rows // (parallel * parts)
            )


def search(
    case: Case, say: Callable[[str], None] = lambda text: None, *, tries: int = TRIES, fresh: bool = False
) -> Found:
    """Find the fastest way that fits, by its bounds; what has been compiled comes in the order of how good it is.

    A search that is interrupted, by Ctrl-C, gives what it has found. What was compiled once is in the plans' cache, so
    that the next search goes on from there.

    Args:
      tries: ways that are compiled at the most.

    Raises:
      ValueError: as `ways`, or for less than one try.
      CompilerError: the compiler is missing.
    """
    if tries < 1:
        raise ValueError(f"tries must be at least 1, got {tries}")
    found: Found = []
    try:
        _compile_into(found, case, say, tries=tries, fresh=fresh)
    except KeyboardInterrupt:
        if not found:
            raise
        say(f"interrupted after {len(found)}: the best of them")
    return sorted(found, key=_rank)


def _compile_into(found: Found, case: Case, say: Callable[[str], None], *, tries: int, fresh: bool) -> None:
    """Compile the ways that may be the fastest, each as it comes into `found`, and say the best so far."""
    room, best, slower = Topology.of(case.topology).spec.room, math.inf, 0
    left = [way for way in ways(case) if way.held <= room]
    for way in left:
        if len(found) == tries or way.seconds >= 0.999 * best or (slower >= PATIENCE and way.seconds < FAR * best):
            break
        if any(
            isinstance(made, CompiledPlan) and not made.compiled.fits and way.harder(other) for other, made in found
        ):
            continue
        so_far = f"; {seconds(best)} a row so far" if best < math.inf else ""
        say(f"{len(found) + 1}: {spell_mesh(way.case)}, {_spell_size(way.case)}{so_far}")
        try:
            made = plan(way.case, fresh=fresh)
        except ValueError as error:
            made = str(error).splitlines()[0]
        except CompilerError as error:
            if not found:
                raise
            made = str(error).splitlines()[0]
        found.append((way, made))
        if isinstance(made, CompiledPlan) and made.compiled.fits:
            row = made.bounds.step / made.compiled.shape["rows"]
            slower = 0 if row < GAIN * best else slower + 1
            best = min(best, row)


def _rank(entry: tuple[Candidate, CompiledPlan | str]) -> tuple:
    made = entry[1]
    if isinstance(made, str):
        return (2,)
    if not made.compiled.fits:
        return (1, made.compiled.used)
    links = made.bounds.links / made.compiled.shape["rows"]
    return (0, made.bounds.step / made.compiled.shape["rows"], links, made.compiled.used)


def chosen(found: Found) -> CompiledPlan | None:
    """Return the fastest plan that fits; None where none does."""
    best = found[0][1] if found else None
    return best if isinstance(best, CompiledPlan) and best.compiled.fits else None


def render_search(found: Found, command: str | None = None) -> str:
    """Spell a search as a table, with the command that starts what it has found."""
    made = [made.compiled for _, made in found if isinstance(made, CompiledPlan)]
    memory = f"memory, of {gib(max(known.limit for known in made))}" if made else "memory"
    unit = made[0].unit if made else "items"
    heads = ["mesh", "remat", "rows", "parts", memory, "step, least", "bound by", f"{unit}/s, most", "MFU, most"]
    rows, notes = [], []
    for way, made in found:
        size = way.case.size
        row = [spell_mesh(way.case), size["remat"], "–", str(size["accumulate"])]
        if isinstance(made, str):
            notes.append(f"{spell_mesh(way.case)}, {_spell_size(way.case)}: {made}")
        else:
            known, items = made.compiled, made.items_per_second
            row[2] = str(known.shape["rows"])
            row.append(f"{gib(known.used)}{'' if known.fits else ', too much'}")
            if known.fits:
                speed = f"{items:,.0f}" if items else "–"
                row += [seconds(made.bounds.step), made.bounds.by, speed, f"{100 * made.utilisation:.0f} %"]
        rows.append([*row, *["–"] * (len(heads) - len(row))])
    gpus = any(Topology.of(way.case.topology).platform == "cuda" for way, _ in found)
    end = f"The fastest that fits:\n\n  {command}" if command else "Nothing that was tried fits."
    return "\n".join(
        [align([heads, *rows], "l"), *(["", *notes] if notes else []), "", end, "", (UNKNOWN, ESTIMATE)[gpus]]
    )


def _spell_size(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in case.size.items())


def command(found: CompiledPlan) -> str:
    """Write the command that starts training as planned; of a preset, which is no experiment, the one that measures it.

    On TPUs it launches the experiment, with a bucket of one's own to be filled in; on GPUs it is run on each host.
    """
    case, topology = found.case, found.topology
    file, which = split_target(case.target)
    if not file.endswith(".py"):
        changes = (*_axis_changes(MeshConfig(), case.mesh), *case.size.items())
        options = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes)
        return f"flax-transformer bench {case.target} --what train {options}"
    experiment = with_options(find_experiment(Path(file), which), case.options)
    changes = (*option_changes(experiment, Size(**case.size)), *_axis_changes(experiment.mesh, case.mesh))
    options = [*([which] if which else []), *case.options, *(f"--{name} {value}" for name, value in changes)]
    if topology.platform == "cuda":
        return f"python {file} {' '.join(options)} --workdir runs/mine"
    on = "gke" if topology.chip == "tpu7x" else "queued-resource"
    to = f"--on {on} --tpu {topology.name} --workdir gs://BUCKET/mine"
    return f"flax-transformer launch {file} {to} -- {' '.join(options)}"


def _axis_changes(before: MeshConfig, after: MeshConfig) -> list[tuple[str, int]]:
    """Name the options that make one mesh of another."""
    sizes = zip(AXES, before.sizes(), after.sizes(), strict=True)
    return [(f"mesh.{axis}", new) for axis, old, new in sizes if new != old]
