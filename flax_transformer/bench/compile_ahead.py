"""Compile a training step, or any function, for TPUs or GPUs that are not here, and read what the compiler says of it.

The compiler of TPUs runs on any machine that has `libtpu`, that of GPUs on any that has JAX's plug-in for CUDA. A
target that has a name is compiled in a process of its own, which is given a `Case` as JSON and answers in JSON: the
libraries are loud, and a compiler that dies should take nobody along, as that of GPUs does when a kernel is for another
card. A program that is there already is compiled here, by `compile_program`.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from flax_transformer.atomic import write_file
from flax_transformer.bench import product
from flax_transformer.bench.chip import GIB, Topology
from flax_transformer.bench.inference import inference
from flax_transformer.bench.kernel import kernels, workspace
from flax_transformer.bench.minimum_bytes import minimum_bytes
from flax_transformer.bench.target import find_target
from flax_transformer.bench.timing import Program
from flax_transformer.bench.workload import Facts, Size, Workload, program_facts
from flax_transformer.frozen import frozen
from flax_transformer.ops import watch_attention
from flax_transformer.parallel import batch_sharding, collectives, hlo, make_mesh
from flax_transformer.parallel.mesh import MeshConfig
from flax_transformer.task.command import split_target
from flax_transformer.train.compiled_step import COMPILERS, digest, installed, program_file, save_program
from flax_transformer.train.state import state_shardings
from flax_transformer.train.step import laid_out

ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
REMATERIALIZATION = "nvoluntary full rematerialization"


class CompilerError(RuntimeError):
    """The compiler failed for another reason than memory; the message has its last words."""


@frozen
class Case:
    """One training step, or function, on one slice."""

    target: str
    """What `bench.target.find_target` finds."""
    topology: str
    mesh: MeshConfig | None = None
    """The experiment's own by default."""
    size: dict[str, Any] = field(default_factory=dict)
    """Fields of `bench.target.Size`."""
    options: tuple[str, ...] = ()
    """Of the experiment, as on its own command line."""
    programs: str = ""
    """A folder to keep the compiled step in, for the experiment's own `--programs`."""
    what: str = "train"
    """The program, one of `workload.PROGRAMS`; a step of it where it has steps."""


@frozen
class Compiled:
    """What is known of a step once it is compiled; bytes are of one device."""

    parameters: int | None
    """Of a model; None of a function."""
    shape: dict[str, int]
    dtype: str
    items: int | None
    """A step; None where nothing says what counts."""
    unit: str = "items"
    """What the items are."""
    flops: int
    """A step, of the model, on all devices."""
    again: int = 0
    """FLOPs a step that the backward pass spends on what it has not kept."""
    minimum: dict[str, int]
    """What each mesh axis must carry, by `minimum_bytes`; nothing is said of a function."""
    usual: dict[str, int] = field(default_factory=dict)
    """What it carries where kernels are gathered for the backward pass too."""
    seconds: float
    """That compiling took."""
    arguments: int = 0
    outputs: int = 0
    """Those that take no argument's place."""
    temporaries: int = 0
    weights: int = 0
    """Of the model, where the program is not training."""
    looked_up: int = 0
    """Of it, tables of which few rows are read."""
    cache: int = 0
    """What a step of decoding is given of earlier ones."""
    products: tuple[dict[str, Any], ...] = ()
    """`product.Products` as dictionaries."""
    kernels: int = 0
    """Written in Pallas, as those of splash attention, or cuDNN's."""
    attention: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of each kind of call that is written into the program, what each backend says: see `ops.watch_attention`."""
    workspace: int = 0
    """What cuDNN will ask for beside, by `kernel.workspace`; none on TPUs."""
    collectives: tuple[dict[str, Any], ...] = ()
    """`parallel.collectives.Collective`s as dictionaries."""
    used: int = 0
    """Memory needed at once, at least."""
    limit: int = 0
    """Memory there is for programs, by the compiler where it has told."""
    rematerialized: int = 0
    """Tensors that the compiler could only move by making them whole on every device."""
    program: str = field(default="", compare=False)
    """The file that the compiled step is kept in, if it is."""
    earlier: bool = field(default=False, compare=False)
    """Whether an earlier call compiled it."""

    @property
    def fits(self) -> bool:
        """Whether the step can run."""
        return self.used <= self.limit


def compile_case(case: Case, kept: Path | None = None, *, fresh: bool = False) -> Compiled:
    """Compile in a process of its own.

    Args:
      kept: a folder of what compilers have told earlier, by what they were given: the program, for which devices, with
        what flags, in which version. What is there is traced, but not compiled.
      fresh: compile it nevertheless, and keep the answer.

    Raises:
      ValueError: the case cannot be: the mesh, the rows, the target.
      CompilerError: the compiler is missing or failed.
    """
    job = {**asdict(case), "kept": kept and str(kept), "fresh": fresh}
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import main; main()"], input=json.dumps(job), capture_output=True,
        text=True, env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = [line for line in done.stderr.splitlines() if line.strip()][-8:]
        raise CompilerError("the compiler's process ended without an answer:\n  " + "\n  ".join(last))
    answer = json.loads(lines[-1])
    if "invalid" in answer:
        raise ValueError(answer["invalid"])
    if "failed" in answer:
        raise CompilerError(answer["failed"])
    if not answer["earlier"]:
        answer["measured"]["rematerialized"] = sum(REMATERIALIZATION in line for line in done.stderr.splitlines())
    return _kept(answer)


def _kept(answer: Mapping[str, Any]) -> Compiled:
    """Keep what the compiler has told just now: at once or not at all, as others may look."""
    measured = answer["measured"]
    if answer["file"] and not answer["earlier"]:
        Path(answer["file"]).parent.mkdir(parents=True, exist_ok=True)
        write_file(answer["file"], json.dumps(measured))
    measured |= {name: tuple(measured.get(name, ())) for name in ("collectives", "products")}
    return Compiled(**answer["known"], **measured, earlier=answer["earlier"])


def _read(file: Path | None) -> dict[str, Any] | None:
    """Read what was told earlier; None where there is nothing, or nothing whole."""
    try:
        return None if file is None else json.loads(file.read_text())
    except (OSError, ValueError):
        return None


def _name(program: str, devices: Mapping[str, Any]) -> str:
    """Name all that what the compiler tells depends on, and what we read of it."""
    ours = [Path(module.__file__).read_text() for module in (sys.modules[__name__], collectives, hlo, product)]
    return f"{digest(program, {**devices, 'read by': ours})}.json"


def topology_devices(topology: Topology) -> list[Any]:
    """Return the devices of a slice, for shardings to name; nothing runs on them.

    Raises:
      CompilerError: without the compiler, or where it knows no such slice.
    """
    extra, packages = ("gpu", COMPILERS[1:]) if topology.platform == "cuda" else ("tpu", COMPILERS[:1])
    if not any(map(installed, packages)):
        raise CompilerError(
            f"a plan for {topology.name} needs a compiler that is not here, {' or '.join(packages)}; "
            f"pip install 'flax_transformer[{extra}]' brings it"
        )
    name = "" if topology.platform == "cuda" else topology.name
    try:
        return list(topologies.get_topology_desc(name, platform=topology.platform, **topology.options).devices)
    except Exception as error:
        raise CompilerError(f"the compiler knows no {topology.name}: {str(error).splitlines()[0]}") from error


def compile_program(
    name: str, program: Program, topology: Topology, kept: Path | None = None, *, fresh: bool = False
) -> Compiled:
    """Compile any program in this process; arguments as `compile_case`'s.

    Raises:
      ValueError: arguments on several meshes, or on one of another size than the slice.
      CompilerError: the compiler is missing or failed.
    """
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    return _kept(_answer(*_lower_program(name, program, topology), topology, kept, fresh=fresh))


def _compile(case: Case, kept: Path | None = None, *, fresh: bool = False) -> dict[str, Any]:
    """Return what is known of a step, what the compiler told of it, and the file for that."""
    topology = Topology.of(case.topology)
    if case.programs and (topology.devices == 1 or not split_target(case.target)[0].endswith(".py")):
        raise ValueError(
            "compiled steps are kept of experiments on several devices, which load them by --programs; got "
            f"{case.target} on {topology.name}"
        )
    found = find_target(case.target, Size(**case.size), case.options)
    if case.what != "train" and (case.programs or isinstance(found, Program)):
        kind = "a function is one program" if isinstance(found, Program) else "training steps alone are kept"
        raise ValueError(f"{kind}, got {case.what} of {case.target}")
    with watch_attention() as attention:
        if isinstance(found, Program):
            known, lowered, mesh = _lower_program(case.target, found, topology, case.mesh)
        elif case.what == "train":
            known, lowered, mesh = _lower_training(found, topology, case.mesh)
        else:
            known, lowered, mesh = _lower_inference(found, case.what, topology, case.mesh)
    known |= {"attention": attention}
    return _answer(known, lowered, mesh, topology, kept, fresh=fresh, programs=case.programs)


def _lower_training(
    workload: Workload, topology: Topology, mesh: MeshConfig | None
) -> tuple[dict[str, Any], Any, Mesh]:
    """Return what is known of a model's training step, the step for the slice, and the mesh it is split over."""
    if workload.objective is None:
        raise ValueError(
            f"a plan is of a training step, and nothing says what {workload.name} is trained on; --what forward, or "
            "decode, is of another"
        )
    mesh = make_mesh(mesh or workload.mesh, topology_devices(topology))
    workload.check_rows(mesh.shape)
    state, place = workload.state, batch_sharding(mesh)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), workload.batch)
    facts, places = workload.facts(("train",), state), state_shardings(state, mesh).model
    learns = workload.learning(state.model)
    least = partial(minimum_bytes, state.model, places, mesh, facts.shape, facts.dtype, learns=learns)
    with jax.set_mesh(mesh):
        traced = laid_out(workload.step, state, mesh).trace(state, batch)
        return _known(facts, least(), least(gathers=2)), traced.lower(lowering_platforms=(topology.platform,)), mesh


def _lower_inference(
    workload: Workload, what: str, topology: Topology, mesh: MeshConfig | None
) -> tuple[dict[str, Any], Any, Mesh]:
    """Return what is known of a forward pass or a step of decoding, the program, and the mesh it is split over."""
    mesh = make_mesh(mesh or workload.mesh, topology_devices(topology))
    made = inference(workload, what, mesh)
    with jax.set_mesh(mesh):
        lowered = made.function.trace(*made.arguments).lower(lowering_platforms=(topology.platform,))
    sizes = {name: getattr(made, name) for name in ("weights", "looked_up", "cache")}
    return {**_known(made.facts), **sizes}, lowered, mesh


def _lower_program(
    name: str, program: Program, topology: Topology, mesh: MeshConfig | None = None
) -> tuple[dict[str, Any], Any, Mesh]:
    """Return what is known of any program, the program for the slice, and the mesh it is split over."""
    devices, meant = topology_devices(topology), mesh_of(program.arguments)
    if meant is not None and meant.size != len(devices):
        raise ValueError(f"the arguments lie on {meant.size} devices, {topology.name} has {len(devices)}")
    if meant is None:
        mesh = make_mesh(mesh or MeshConfig(), devices)
    else:
        mesh = jax.make_mesh(meant.axis_sizes, meant.axis_names, axis_types=meant.axis_types, devices=devices)
    arguments = jax.tree.map(lambda leaf: _placed(leaf, mesh), program.arguments)
    known = _known(program_facts(name, program))
    with jax.set_mesh(mesh):
        return known, program.function.trace(*arguments).lower(lowering_platforms=(topology.platform,)), mesh


def _known(facts: Facts, *sent: dict[str, int]) -> dict[str, Any]:
    known = {name: getattr(facts, name) for name in ("parameters", "shape", "dtype", "items", "unit")}
    (flops,), (minimum, usual) = facts.flops.values(), sent or ({}, {})
    return {**known, "flops": flops.model, "again": flops.again, "minimum": minimum, "usual": usual}


def mesh_of(arguments: tuple) -> Mesh | AbstractMesh | None:
    """Find the mesh by which arguments are split; None where none is.

    Raises:
      ValueError: when there are several.
    """
    shardings = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(arguments))
    found = {one.mesh.abstract_mesh for one in shardings if isinstance(one, NamedSharding)}
    if len(found) > 1:
        raise ValueError(f"arguments are split over one mesh, got {', '.join(str(dict(one.shape)) for one in found)}")
    return next(iter(found), None)


def _placed(leaf: Any, mesh: Mesh) -> Any:
    """Return where an argument lies on a mesh: as its sharding says of another, else whole on every device."""
    if not hasattr(leaf, "shape"):
        return leaf
    sharding = getattr(leaf, "sharding", None)
    spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))


def _answer(
    known: dict[str, Any], lowered: Any, mesh: Mesh, topology: Topology, kept: Path | None, *, fresh: bool,
    programs: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Add what the compiler tells of a program, now or earlier, to what is known of it, and the file for that."""
    order = list(mesh.devices.flat)
    devices = {"slice": topology.name, "mesh": dict(mesh.shape), "order": [device.id for device in order]}
    file = kept and kept / _name(lowered.as_text(), devices)
    program = program_file(Path(programs), lowered, order) if programs else None
    earlier = None if fresh or (program and not program.exists()) else _read(file)
    answer = {
        "file": file and str(file),
        "earlier": earlier is not None,
        "measured": earlier or _tell(lowered, topology, program),
    }
    return {**answer, "known": {**known, "program": str(program) if program and program.exists() else ""}}


def _tell(lowered: Any, topology: Topology, program: Path | None = None) -> dict[str, Any]:
    """Compile, read what the compiler says, and write the program where it is to be kept."""
    began = time.perf_counter()
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        used, limit = _overflow(str(error))
        return {"seconds": time.perf_counter() - began, "used": used, "limit": limit}
    if program:
        save_program(program, compiled)
    memory, text = compiled.memory_analysis(), compiled.as_text()
    arguments, temporaries = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    beside = workspace(text)
    return {
        "seconds": time.perf_counter() - began,
        "arguments": arguments,
        "outputs": outputs,
        "temporaries": temporaries,
        "workspace": beside,
        "used": arguments + outputs + temporaries + beside,
        "limit": topology.spec.room,
        "kernels": sum(kernels(text).values()),
        "collectives": [asdict(each) for each in collectives.collectives_of(text)],
        "products": [asdict(each) for each in product.products_of(text)],
    }


_UNITS = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}


def _overflow(message: str) -> tuple[int, int]:
    """Read how much memory the compiler wanted and how much there is; any other failure is raised."""
    number = r"([\d.]+)([KMGT])"
    patterns = (rf"Used {number} of {number} hbm", rf"\({number}\) exceeds available HBM \({number}\)")
    found = next(filter(None, (re.search(pattern, message) for pattern in patterns)), None)
    if not found:
        raise CompilerError(" ".join(message.split())[:600])
    used, unit, limit, limit_unit = found.groups()
    return int(float(used) * _UNITS[unit]), int(float(limit) * _UNITS[limit_unit])


def main() -> None:
    """Read a case from standard input, and print what became of it."""
    data = json.load(sys.stdin)
    kept, fresh = data.pop("kept"), data.pop("fresh")
    mesh = data["mesh"] and MeshConfig(**data["mesh"])
    case = Case(**{**data, "mesh": mesh, "options": tuple(data["options"])})
    try:
        answer = _compile(case, kept and Path(kept), fresh=fresh)
    except (ValueError, OSError) as error:
        answer = {"invalid": str(error)}
    except CompilerError as error:
        answer = {"failed": str(error)}
    print(json.dumps(answer), flush=True)
