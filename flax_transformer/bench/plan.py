"""Preflight: whether a program fits TPUs or GPUs, what bounds its speed and what a run costs, before one is paid.

Every number is the compiler's or follows from a formula by the chip's data sheet; no step has run.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flax_transformer.bench.chip import GIB, Topology
from flax_transformer.bench.compile_ahead import Case, Compiled, compile_case, compile_program
from flax_transformer.bench.device import known_peak
from flax_transformer.bench.record import save
from flax_transformer.bench.report import amount, seconds, three
from flax_transformer.bench.timing import make_program
from flax_transformer.frozen import frozen
from flax_transformer.nn.quantized import ACTIVATIONS
from flax_transformer.parallel.collectives import KINDS, Collective, collective_bytes
from flax_transformer.parallel.mesh import AXES
from flax_transformer.text_table import align

UNKNOWN = """What this cannot know: how much of communication and memory traffic hides behind arithmetic, how long the
host takes to bring batches, what happens on other slices, and how fast the chips really run."""

ESTIMATE = """An estimate, made without a GPU. The compiler has tried no kernel, so no speed follows from the program:
the times are what the data sheets allow. Too much memory is not refused by this compiler but compared here, with the
75 % of a card that JAX takes; cuDNN's workspace is reckoned, NCCL's buffers and the network between hosts are not."""

WIRE = {"all-reduce": 2.0}
"""How often a collective's bytes leave a device, at least; once, but an all-reduce is a reduce-scatter and a gather."""


@frozen
class Bounds:
    """Seconds a step takes at the least, by what it waits for."""

    compute: float
    memory: float
    links: float

    @property
    def step(self) -> float:
        """The longest of them."""
        return max(self.compute, self.memory, self.links)

    @property
    def by(self) -> str:
        """Which that is."""
        return {self.links: "links", self.memory: "memory", self.compute: "arithmetic"}[self.step]


@frozen
class CompiledPlan:
    """A case, and what compiling it told."""

    case: Case
    compiled: Compiled

    @property
    def topology(self) -> Topology:
        """The slice."""
        return Topology.of(self.case.topology)

    @property
    def peak(self) -> float:
        """FLOP/s of the whole slice, in the type of the model."""
        return self.peak_of(self.compiled.dtype)

    @property
    def bounds(self) -> Bounds:
        """What each resource takes for a step by itself, at its full speed."""
        spec, known = self.topology.spec, self.compiled
        # What comes in is read, what goes out is written, and every temporary byte is written and read.
        traffic = self.read + known.outputs + 2 * known.temporaries
        return Bounds(
            compute=(known.flops + known.again) / self.peak * self.slowness,
            memory=traffic * spec.devices / spec.bandwidth,
            links=sum(self.wire.values()) * spec.devices / spec.links,
        )

    @property
    def read(self) -> int:
        """Bytes that a device reads of what comes in: of tables in which rows are looked up next to nothing."""
        return self.compiled.arguments - self.compiled.looked_up

    @property
    def read_each(self) -> float | None:
        """Bytes that all devices together read for each token, row or whatever counts."""
        return None if not self.compiled.items else self.read * self.topology.devices / self.compiled.items

    def peak_of(self, kind: str) -> float:
        """FLOP/s of the whole slice for products of a kind; of types the data sheets do not name, as of bfloat16."""
        chip = self.topology.spec.kind
        own = kind if kind in ACTIVATIONS or self.compiled.dtype in ACTIVATIONS else self.compiled.dtype
        return (known_peak(chip, own) or known_peak(chip, "bfloat16")) * self.topology.devices

    @property
    def slowness(self) -> float:
        """How long the products take beside those of floats alone, by the shares of each kind in the program."""
        products = self.compiled.products
        took = sum(each["flops"] * self.peak / self.peak_of(each["kind"]) for each in products)
        return took / sum(each["flops"] for each in products) if took else 1.0

    @property
    def wire(self) -> dict[str, float]:
        """Bytes that leave a device in a step, by kind of collective."""
        found = collective_bytes([Collective(**each) for each in self.compiled.collectives])
        return {kind: found[kind] * WIRE.get(kind, 1.0) for kind in KINDS}

    @property
    def items_per_second(self) -> float | None:
        """At most, of the whole slice; None where nothing says what counts."""
        return None if self.compiled.items is None else self.compiled.items / self.bounds.step

    @property
    def utilisation(self) -> float:
        """Model FLOPs utilisation, at most: the part of the time that arithmetic takes at its full speed."""
        return self.compiled.flops / self.peak * self.slowness / self.bounds.step

    @property
    def record(self) -> dict[str, Any]:
        """All of it as a dictionary: the case, what the compiler told, and the bounds in seconds."""
        bounds = {**asdict(self.bounds), "step": self.bounds.step, "by": self.bounds.by} if self.compiled.fits else None
        read = {} if self.case.what == "train" else {"read_each": self.read_each}
        return {"case": asdict(self.case), "compiled": asdict(self.compiled), "bounds": bounds, **read}

    def __str__(self) -> str:
        return render(self)

    def save(self, path: Path | str) -> None:
        """Write it as JSON."""
        save(self.record, Path(path))


def plan(case: Case, say: Callable[[str], None] = lambda text: None, *, fresh: bool = False) -> CompiledPlan:
    """Compile a case, or take what the compiler told of the same program, for the same devices, in an earlier call.

    Args:
      fresh: compile it in any case.

    Raises:
      ValueError, CompilerError: as `compile_case`.
    """
    Topology.of(case.topology)
    say(f"compiling {case.target} for {case.topology}, if it has not been …")
    return CompiledPlan(case=case, compiled=compile_case(case, cache_folder(), fresh=fresh))


def compile(
    function: Callable, *arguments: Any, topology: str, name: str | None = None, fresh: bool = False
) -> CompiledPlan:
    """Compile any function for TPUs or GPUs that are not here, in this process; print the plan to read it.

    A Pallas Mosaic kernel that is for another GPU than the one asked for ends the process; `flax-transformer plan` of a
    function in a file has a process of its own.

    Args:
      function: of pytrees; jitted unless it is.
      arguments: arrays or `jax.ShapeDtypeStruct`s. One with a `NamedSharding`, of any mesh with as many devices as the
        slice has, `jax.sharding.AbstractMesh` among them, is split in the same way; others are whole on every device.
      topology: GENERATION:AxB or AxBxC chips, as `v5e:4x4`; GPU:N or GPU:HOSTSxN, as `h100:8`.
      name: what the plan calls it; the function's own by default.
      fresh: compile it even if an earlier call has compiled the same program.

    Raises:
      ValueError: another slice than there is, or arguments on another number of devices.
      CompilerError: the compiler, `pip install 'flax_transformer[tpu]'` or `[gpu]`, is missing or failed.
    """
    case = Case(target=name or getattr(function, "__name__", type(function).__name__), topology=topology)
    program, there = make_program(function, *arguments), Topology.of(topology)
    return CompiledPlan(case=case, compiled=compile_program(case.target, program, there, cache_folder(), fresh=fresh))


def cache_folder() -> Path:
    """Return the folder of what was compiled."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flax_transformer" / "plan"


def render(found: CompiledPlan, *, tokens: float = 0.0, price: float = 0.0) -> str:
    """Spell a plan.

    Args:
      tokens: that a run is to train on in all, or whatever the items are; 0 leaves the cost out.
      price: of one chip for an hour, in whatever currency.
    """
    known, topology = found.compiled, found.topology
    gpus = topology.platform == "cuda"
    shape = ", ".join(f"{name} {size:,}" for name, size in known.shape.items())
    parameters = "" if known.parameters is None else f"{known.parameters:,} parameters, "
    spare = known.limit - known.used
    rest = f"{gib(spare)} to spare" if known.fits else f"{gib(-spare)} too much"
    verdict = f"{'fits' if known.fits else 'DOES NOT FIT'}{', by estimate' if gpus else ''}"
    rows = [
        ("target", f"{found.case.target}: {parameters}{known.dtype}, {shape}"),
        ("GPUs" if gpus else "slice", f"{topology.name}: {topology}, {spell_mesh(found.case)}"),
        ("compiled", f"in {seconds(known.seconds)}{', earlier' if known.earlier else ''}"),
        *([("  kept in", known.program)] if known.program else []),
        ("", ""),
        ("memory", f"{verdict}: {gib(known.used)} of {gib(known.limit)} a device, {rest}"),
    ]
    if known.fits or gpus:
        rows += [
            ("  arguments", gib(known.arguments)),
            *([("    weights", gib(known.weights))] if known.weights else []),
            *([("    cache", gib(known.cache))] if known.cache else []),
            ("  temporaries", gib(known.temporaries)),
            ("  outputs", f"{gib(known.outputs)} beyond those in the arguments' place"),
            *([("  workspace", f"{gib(known.workspace)} of cuDNN, reckoned")] if known.workspace else []),
        ]
    if known.fits:
        kernels = [] if found.case.what == "decode" else [_kernels(found)]
        rows += [("", ""), *_communication(found), ("", ""), *kernels, *_products(found), *_speed(found)]
        rows += _cost(found, tokens, price)
    note = ESTIMATE if gpus else UNKNOWN
    return f"{align(rows, 'l')}\n\n{note}" if known.fits or gpus else align(rows, "l")


def spell_mesh(case: Case) -> str:
    """Spell the mesh of a case."""
    if case.mesh is None:
        return "its own mesh"
    sizes = zip(AXES, case.mesh.shape(Topology.of(case.topology).devices), strict=True)
    return " × ".join(f"{axis} {size}" for axis, size in sizes if size > 1) or "one device"


def gib(count: int) -> str:
    """Spell an amount of memory."""
    return f"{count / GIB:.2f} GiB"


def _products(found: CompiledPlan) -> Iterator[tuple[str, str]]:
    """Say what is multiplied, where any of it has few bits or the program is not training."""
    products = found.compiled.products
    if found.case.what == "train" and not any(each["kind"] in ACTIVATIONS for each in products):
        return
    for number, each in enumerate(products):
        times = f"{each['count']} product{'s' if each['count'] > 1 else ''} of {each['kind']}"
        peak = found.peak_of(each["kind"]) / found.topology.devices
        yield "" if number else "arithmetic", f"{times}: {amount(each['flops'])} a device, at {amount(peak, 'FLOP/s')}"


def _speed(found: CompiledPlan) -> Iterator[tuple[str, str]]:
    known, bounds, spec = found.compiled, found.bounds, found.topology.spec
    each = "GPU" if found.topology.platform == "cuda" else "chip"
    yield "model FLOPs", f"{amount(known.flops)} a step"
    if known.again:
        yield "  done again", f"{amount(known.again)}, to save memory"
    peak = amount(found.peak / found.slowness, "FLOP/s")
    yield "  arithmetic", f"{seconds(bounds.compute)} at the least, at {peak}"
    yield "  memory", f"{seconds(bounds.memory)} at the least, at {amount(spec.bandwidth, 'B/s')} a {each}"
    yield "  links", f"{seconds(bounds.links)} at the least, at {amount(spec.links, 'B/s')} a {each}"
    yield "step", f"{seconds(bounds.step)} or more, bound by {bounds.by}"
    yield "MFU", f"{100 * found.utilisation:.0f} % at the most"
    if found.case.what == "decode" and found.read_each is not None:
        yield f"read a {known.unit.removesuffix('s')}", amount(found.read_each, "B")
    if found.items_per_second is not None:
        yield f"{known.unit} a second", f"{found.items_per_second:,.0f} at the most"


def _cost(found: CompiledPlan, tokens: float, price: float) -> Iterator[tuple[str, str]]:
    if tokens and found.items_per_second:
        hours = tokens / found.items_per_second / 3600
        all_hours = hours * found.topology.chips
        cost = f", {all_hours * price:,.2f} at {price:g} each" if price else ""
        each = "GPU" if found.topology.platform == "cuda" else "chip"
        yield (
            f"{amount(tokens)} {found.compiled.unit}",
            f"{three(hours)} hours, {three(all_hours)} {each}-hours{cost}, or more",
        )


def _communication(found: CompiledPlan) -> Iterator[tuple[str, str]]:
    known = found.compiled
    each = [Collective(**entry) for entry in known.collectives]
    total = collective_bytes(each)
    sent = sum(total.values())
    yield "communication", f"{amount(sent, 'B')} a device and step"
    for kind in KINDS:
        if total[kind]:
            times = sum(one.times for one in each if one.kind == kind)
            yield f"  {kind}", f"{amount(total[kind], 'B')} in {times:,}"
    if sent:
        beside = sum(one.bytes * one.times for one in each if one.asynchronous)
        yield "  asynchronous", f"{100 * beside / sent:.0f} % of it is begun before it is needed"
    for axis, least in known.minimum.items():
        usual = known.usual.get(axis, least)
        again = "" if usual == least else f", {amount(usual, 'B')} where kernels are gathered for the backward pass too"
        yield f"  {axis} needs", f"{amount(least, 'B')} at the least{again}"
    if advice := all_reduced(found):
        yield "  mind", advice
    if known.rematerialized:
        yield "  moved whole", f"{known.rematerialized} tensors, for want of a better way: mind the layout"


def all_reduced(found: CompiledPlan) -> str | None:
    """Warn of gradients that fsdp should scatter, and the compiler sums whole; None where it does not.

    An all-reduce sends its bytes twice. What `data` and `tensor` must sum is no fault.
    """
    known, case = found.compiled, found.case
    if case.mesh is None or "fsdp" not in known.minimum:
        return None
    sizes = dict(zip(AXES, case.mesh.shape(found.topology.devices), strict=True))
    reduced = collective_bytes([Collective(**each) for each in known.collectives])["all-reduce"]
    over = reduced - sum(least for axis, least in known.minimum.items() if axis != "fsdp")
    if over < known.minimum["fsdp"] / 10:
        return None
    said = f"{amount(over, 'B')} of fsdp's gradients are summed by all-reduces, which send them twice"
    part = next((size for size in (16, 8, 4) if size < sizes["fsdp"] and sizes["fsdp"] % size == 0), None)
    if part is None:
        return said
    return f"{said}; try --mesh.data {sizes['data'] * sizes['fsdp'] // part} --mesh.fsdp {part}"


def _kernels(found: CompiledPlan) -> tuple[str, str]:
    """Return whether a model's attention is fused, or how many kernels a function has."""
    known, gpus = found.compiled, found.topology.platform == "cuda"
    if known.parameters is None:
        return "kernels", f"{known.kernels} in Pallas{' or of cuDNN' if gpus else ''}"
    name = "cudnn" if gpus else "splash"
    if known.kernels:
        return "attention", f"{'cuDNN' if gpus else name}, {known.kernels} kernels"
    reasons = dict.fromkeys(verdicts[name].removeprefix("cannot: ") for verdicts in known.attention.values())
    return "attention", f"not fused by {'cuDNN' if gpus else name}: {'; '.join(reasons) or 'there is none'}"
