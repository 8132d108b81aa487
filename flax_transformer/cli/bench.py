"""Commands that measure models, on a mesh or none: `presets | sharding | bench | bench-attention | bench-variants |
bench-data | explain-attention`.
"""

import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flax_transformer.cli.mesh import Mesh, asked_mesh
from flax_transformer.cli.read import Folder, Options, read_lines


def presets() -> None:
    """List the presets, family by family: name, parameters, and what it is."""
    from flax_transformer.task.description import list_presets

    list_presets()


@dataclass(frozen=True)
class BenchSize:
    """What a benchmark runs on; the target decides what is not given."""

    batch: int | None = None
    """Rows; 32 for a preset."""
    length: int | None = None
    """Tokens a row, on each side of a translation; 32 for a preset."""
    vocab: int | None = None
    """Tokens in the vocabulary."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """What matrices are multiplied in."""
    params: Literal["float32", "bfloat16", "float16"] | None = None
    """What parameters are kept in, float32 for a preset; those of 16 bits are not trained."""
    remat: Literal["none", "full", "attention", "dots", "offload"] | None = None
    """What the backward pass computes again rather than keeps."""
    documents: int | None = None
    """Packed in each row, of decoder-only presets."""
    dropout: float | None = None
    """Every rate of it; attention with dropout of its weights is not fused."""
    accumulate: int | None = None
    """Parts that a training step takes its batch in, one after the other."""
    weights: Literal["int8", "int4", "nf4", "float8_e4m3fn"] | None = None
    """What kernels are rounded to; for forward and decode."""
    group: int | None = None
    """Inputs of a kernel that share a scale; 64 with 4 bits, else all of an output's."""
    activations: Literal["int8", "float8_e4m3fn"] | None = None
    """What the inputs of products with such kernels are rounded to, row by row."""
    cache: Literal["int8", "float8_e4m3fn"] | None = None
    """What keys and values are rounded to while decoding."""
    capacity: float | None = None
    """Tokens that an expert takes, as a multiple of its even share; without it, all that choose it."""


def sharding(
    experiment: Folder,
    options: Options = (),
    /,
    mesh: Mesh = Mesh(),
    devices: int | None = None,
    size: Annotated[BenchSize, tyro.conf.arg(name="")] = BenchSize(),
) -> None:
    """Print how every parameter lies on a mesh, and what a device keeps; nothing is allocated, no device is needed.

    Args:
      experiment: An experiment file, FILE:NAME for one of several in it, or a preset such as transformer_base.
      options: Of several experiments the NAME, if not said yet; and arguments of the experiment, after --.
      mesh: Devices to spread over; the experiment's own by default.
      devices: How many there are; by default as many as the axes with a number make.
      size: Types, and few bits of kernels; the target's own by default.
    """
    from flax_transformer.bench.target import find_workload
    from flax_transformer.bench.workload import Size as Shapes
    from flax_transformer.parallel import abstract_mesh
    from flax_transformer.task.command import spelled
    from flax_transformer.task.sharding import sharding_table

    experiment, options = spelled(experiment, options)
    target = find_workload(experiment, Shapes(**asdict(size)), options)
    config = asked_mesh(mesh) or target.mesh
    print(sharding_table(target.state, abstract_mesh(config, devices)))


def bench(
    target: Folder,
    options: Options = (),
    /,
    size: Annotated[BenchSize, tyro.conf.arg(name="")] = BenchSize(),
    what: tuple[Literal["forward", "train", "decode"], ...] = (),
    steps: int = 20,
    mesh: Mesh = Mesh(),
    json: Path | None = None,
    compare: Path | None = None,
    profile: str = "",
) -> None:
    """Measure compiling and running a model or function: seconds, FLOPs, utilisation, memory, recompilations.

    Args:
      target: A preset such as transformer_tiny; an experiment file, FILE:NAME for one of several in it; a Hugging Face
        folder or hub id, of which config.json is read; FILE.py:FUNCTION that returns a function and a tuple of its
        arguments; or attention for its kernels (see bench-attention --help).
      options: Of several experiments the NAME, if not said yet; and arguments of the experiment, after --.
      size: Shapes and type.
      what: Programs to measure; all that there are by default.
      steps: Runs that count, of each program.
      mesh: Devices to spread over; the experiment's own, or all, by default.
      json: File to write the numbers to.
      compare: File written by --json earlier; ratios are printed, and what is slower beyond the spread.
      profile: Calls to trace once all is measured, FROM:TO, into profile/PROGRAM, for xprof; its longest operations
        are printed.
    """
    import jax

    from flax_transformer.bench.record import check_file, check_same, load
    from flax_transformer.bench.run import RecompiledError, exit_on_error, open_target, run
    from flax_transformer.bench.workload import Size as Checked
    from flax_transformer.task.command import spelled
    from flax_transformer.train.large_pages import large_pages_hint
    from flax_transformer.train.profile import Profile

    with exit_on_error():
        before = None if compare is None else load(compare)
        check_file(json)
        traced = Profile.of(profile, Path("profile")) if profile else None
        devices = asked_mesh(mesh)
        target, options = spelled(target, options)
        job = open_target(target, Checked(**asdict(size)), what=what, steps=steps, mesh=devices, options=options)
        if before is not None:
            check_same(before["target"], job.target)
    say = (lambda text: print(text, flush=True)) if jax.process_index() == 0 else lambda text: None
    if hint := large_pages_hint():
        say(hint)
    record = run(job, say, traced)
    say(str(record))
    if jax.process_index() == 0:
        record.save(json)
    if before is not None:
        say(f"\n{record.compare(before)}")
    if record.faults:
        raise RecompiledError("; ".join(record.faults))


def explain_attention(
    target: Folder,
    options: Options = (),
    /,
    size: Annotated[BenchSize, tyro.conf.arg(name="")] = BenchSize(),
    what: Literal["forward", "train", "decode"] = "forward",
    mesh: Mesh = Mesh(),
) -> None:
    """Say which kernel serves each attention of a model on the devices here, and why others cannot; nothing runs.

    Args:
      target: What bench takes.
      options: Of several experiments the NAME, if not said yet; and arguments of the experiment, after --.
      size: Shapes and type.
      what: The program.
      mesh: Devices to spread over; the experiment's own, or all, by default.
    """
    from flax_transformer.bench.attention_choice import attention_choices, render_choices
    from flax_transformer.bench.run import exit_on_error
    from flax_transformer.bench.workload import Size as Checked
    from flax_transformer.task.command import spelled

    with exit_on_error():
        devices = asked_mesh(mesh)
        target, options = spelled(target, options)
        choices = attention_choices(target, Checked(**asdict(size)), what, devices, options)
    print(render_choices(choices))


def bench_data(
    experiment: Folder,
    options: Options = (),
    /,
    workers: tuple[int, ...] = (0, 1, 2, 4),
    batches: int = 50,
    json: Path | None = None,
) -> None:
    """Measure how many batches a second an experiment's data give, by threads and by worker processes; nothing trains.

    Args:
      experiment: An experiment file, FILE:NAME for one of several in it.
      options: Of several experiments the NAME, if not said yet; and arguments of the experiment, after --.
      workers: Numbers of processes, one after the other; 0 for threads. Training takes the best one as --workers.
      batches: Batches that are timed.
      json: File to write the numbers to.
    """
    from flax_transformer.bench import batches as measure
    from flax_transformer.bench.record import check_file, save
    from flax_transformer.bench.run import exit_on_error
    from flax_transformer.task.command import spelled

    with exit_on_error():
        check_file(json)
        experiment, options = spelled(experiment, options)
        record = measure.bench_data(experiment, workers, count=batches, options=options)
    print(measure.render_data(record))
    save(record, json)


@dataclass(frozen=True)
class AttentionShape:
    """What attention is measured on."""

    batch: int = 1
    """Rows."""
    heads: int = 4
    """Of queries, keys and values."""
    width: int = 64
    """Of a head."""
    causal: bool = False
    """Whether queries see only earlier keys."""


def bench_attention(
    lengths: tuple[int, ...] = (128, 512, 2048),
    batch: int = 1,
    heads: int = 8,
    kv_heads: int | None = None,
    width: int = 64,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    causal: bool = False,
    json: Path | None = None,
) -> None:
    """Time every attention backend that can serve a shape, forward and backward; say why others cannot.

    Args:
      lengths: Positions, queries and keys alike.
      batch: Rows.
      heads: Query heads.
      kv_heads: Key/value heads; as many by default.
      width: Of a head.
      dtype: Of queries, keys and values.
      causal: Whether queries see only earlier keys.
      json: File to write the numbers to.
    """
    from flax_transformer.bench.attention import bench_attention as run
    from flax_transformer.bench.attention import render_attention
    from flax_transformer.bench.record import check_file, save
    from flax_transformer.bench.run import exit_on_error

    options = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "width": width, "dtype": dtype, "causal": causal}
    with exit_on_error():
        check_file(json)
        record = run(lengths, **options)
    print(render_attention(record))
    save(record, json)


def bench_variants(
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
    variants: tuple[str, ...] = (),
    size: Annotated[AttentionShape, tyro.conf.arg(name="")] = AttentionShape(),
    room: float = 8.0,
    patience: float = 5.0,
    run: Folder | None = None,
    text: Path | None = None,
    json: Path | None = None,
    figure: Path | None = None,
) -> None:
    """Measure attention variants beside exact attention: error, memory and time by length, forward and backward.

    Args:
      lengths: Positions, queries and keys alike.
      variants: Which of them; all, and exact attention, by default.
      size: Of queries, keys and values, which are random.
      room: Gigabytes that a program may take; what needs more is compiled, and not run.
      patience: Seconds that a call may take; what would take more is not run.
      run: Run folder, Hugging Face folder or hub id of a model that reads text: errors on its trained heads; of a
        decoder with --causal.
      text: File that it reads, as much of it as the longest of its positions.
      json: File to write the numbers to.
      figure: File to draw them in, PNG or SVG.
    """
    from flax_transformer.bench import variants as measure
    from flax_transformer.bench.record import check_file, save
    from flax_transformer.bench.run import exit_on_error
    from flax_transformer.bench.variants_figure import save_figure

    with exit_on_error():
        check_file(json)
        check_file(figure)
        if (run is None) != (text is None):
            raise ValueError("trained heads are those of a --run that reads a --text, got one of the two")
        trained = None
        if run is not None:
            from flax_transformer.bench.heads import trained_heads

            trained = trained_heads(run, "\n".join(read_lines(text)))
        names = variants or (*measure.EXACT, *measure.VARIANTS)

        say = partial(print, file=sys.stderr, flush=True)
        limits = measure.Limits(room * 1e9, patience)
        sizes = measure.HeadCounts(**asdict(size))
        record = measure.bench_variants(lengths, names=names, size=sizes, limits=limits, trained=trained, say=say)
    print(measure.render_variants(record))
    save(record, json)
    save_figure(record, figure)
