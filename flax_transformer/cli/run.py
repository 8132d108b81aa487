"""Commands on runs, and benchmarks.

`translate | evaluate | show | presets | report | compare | attention | sharding | bench`.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from flax_transformer.cli.read import Folder, read_lines


def translate(
    workdir: Folder,
    /,
    input: Path | None = None,
    output: Path | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    n_best: int = 1,
) -> None:
    """Translate sentences, one a line, with the model of a run.

    Args:
      workdir: Folder of a translation run.
      input: File to read; standard input by default.
      output: File to write; standard output by default.
      beam: Hypotheses kept at each step, 1 for greedy; the run's own setting by default.
      length_penalty: Exponent of the length that scores are divided by; the run's own by default.
      n_best: Translations printed for each sentence; more than one are printed as line number, score and text,
        separated by tabs.
    """
    lines = read_lines(input)
    translator, search = _open(workdir, beam, length_penalty, n_best)
    results = translator(lines, search)
    out = sys.stdout if output is None else output.open("w", encoding="utf-8")
    for number, hypotheses in enumerate(results, start=1):
        for hypothesis in hypotheses:
            head = f"{number}\t{hypothesis.score:.4f}\t" if n_best > 1 else ""
            out.write(f"{head}{hypothesis.text}\n")
    if output is not None:
        out.close()


def evaluate(
    workdir: Folder,
    /,
    source: Path,
    reference: Path,
    beam: int | None = None,
    length_penalty: float | None = None,
) -> None:
    """Translate a file and score it against references; prints one JSON object.

    Args:
      workdir: Folder of a translation run.
      source: Sentences to translate, one a line.
      reference: Their translations, as many lines.
      beam: Hypotheses kept at each step, 1 for greedy; the run's own setting by default.
      length_penalty: Exponent of the length that scores are divided by; the run's own by default.
    """
    from flax_transformer.data.text import read_parallel
    from flax_transformer.task.evaluator.translate import evaluate_corpus

    pairs = read_parallel(source, reference, strict=True)
    translator, search = _open(workdir, beam, length_penalty, 1)
    scores, hypotheses, seconds = evaluate_corpus(translator, list(pairs.sources), list(pairs.targets), search)
    result = {
        **scores.metrics(),
        "signature": scores.signature,
        "sentences": len(hypotheses),
        "sentences_per_second": len(hypotheses) / seconds,
        "beam": search.beams,
        "length_penalty": search.length_penalty,
    }
    print(json.dumps(result, indent=2))


def show(target: Folder, /) -> None:
    """Print configuration and parameters by module of a run or a preset, and a run's newest metrics.

    Args:
      target: Folder of any run, or the name of a preset as transformer_base.
    """
    from flax_transformer.task.show import describe

    describe(target)


def presets() -> None:
    """List the presets, family by family: name, parameters, and what it is."""
    from flax_transformer.task.show import list_presets

    list_presets()


@dataclass(frozen=True)
class Size:
    """What a benchmark runs on; the target decides what is not given."""

    batch: int | None = None
    """Rows; 32 for a preset."""
    length: int | None = None
    """Tokens a row, on each side of a translation; 32 for a preset."""
    vocab: int | None = None
    """Tokens in the vocabulary."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """What matrices are multiplied in."""
    remat: Literal["none", "full", "attention", "dots", "offload"] | None = None
    """What the backward pass computes again rather than keeps."""
    documents: int | None = None
    """Packed in each row, of decoder-only presets."""
    dropout: float | None = None
    """Every rate of it; attention with dropout of its weights is not fused."""
    accumulate: int | None = None
    """Parts that a training step takes its batch in, one after the other."""


@dataclass(frozen=True)
class Mesh:
    """`parallel.MeshConfig`, spelled again so that `--help` needs no JAX."""

    data: int = -1
    """Devices along each axis; one may be -1, which takes all that are left."""
    pipeline: int = 1
    """Stages that the layers of a stack are shared out to."""
    fsdp: int = 1
    expert: int = 1
    """Groups that the experts of a mixture are shared out to."""
    tensor: int = 1
    sequence: int = 1
    slices: int = 1
    """Groups of devices with a fast network inside and a slow one between; `data` is a multiple of it, and nothing but
    data parallelism crosses from one to another."""


def sharding(experiment: Folder, /, mesh: Mesh = Mesh(), devices: int | None = None) -> None:
    """Print how every parameter lies on a mesh, and what a device keeps; nothing is allocated, no device is needed.

    Args:
      experiment: An experiment file, FILE:NAME for one of several in it, or a preset such as transformer_base.
      mesh: Devices to spread over; the experiment's own by default.
      devices: How many there are; by default as many as the axes with a number make.
    """
    from flax_transformer.bench.target import find_workload
    from flax_transformer.bench.workload import Size as Shapes
    from flax_transformer.parallel import MeshConfig, abstract_mesh
    from flax_transformer.task.sharding import sharding_table

    target = find_workload(experiment, Shapes())
    config = target.mesh if mesh == Mesh() else MeshConfig(**asdict(mesh))
    print(sharding_table(target.state, abstract_mesh(config, devices)))


def bench(
    target: Folder,
    /,
    size: Annotated[Size, tyro.conf.arg(name="")] = Size(),
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
    from flax_transformer.bench.run import RecompiledError, at_the_door, open_target, run
    from flax_transformer.bench.workload import Size as Checked
    from flax_transformer.parallel import MeshConfig
    from flax_transformer.train.profile import Profile

    with at_the_door():
        before = None if compare is None else load(compare)
        check_file(json)
        traced = Profile.of(profile, Path("profile")) if profile else None
        devices = None if mesh == Mesh() else MeshConfig(**asdict(mesh))
        job = open_target(target, Checked(**asdict(size)), what=what, steps=steps, mesh=devices)
        if before is not None:
            check_same(before["target"], job.target)
    say = (lambda text: print(text, flush=True)) if jax.process_index() == 0 else lambda text: None
    record = run(job, say, traced)
    say(str(record))
    if jax.process_index() == 0:
        record.save(json)
    if before is not None:
        say(f"\n{record.compare(before)}")
    if record.faults:
        raise RecompiledError("; ".join(record.faults))


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
    from flax_transformer.bench.run import at_the_door

    options = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "width": width, "dtype": dtype, "causal": causal}
    with at_the_door():
        check_file(json)
        record = run(lengths, **options)
    print(render_attention(record))
    save(record, json)


def report(workdir: Folder, /) -> None:
    """Write report.html into a run's folder: curves, metrics, samples, attention, configuration. Prints its path.

    Args:
      workdir: Folder of any run, finished or not.
    """
    from flax_transformer.task.report import remake_report

    print(remake_report(workdir))


def compare(
    workdirs: Annotated[tuple[str, ...], tyro.conf.Positional],
    /,
    out: Path = Path("comparison.html"),
    metric: str | None = None,
) -> None:
    """Show several runs on one page: curves, scores, cost, the same samples, attention, settings in which they differ.

    Prints the scores as a table, and the page's path. Runs that differ in nothing but the seed are joined.

    Args:
      workdirs: Folders of runs, finished or not, of any experiments.
      out: File to write the page to.
      metric: What they are compared by first, as bleu or accuracy; by default what they end with, or have in common.
    """
    from flax_transformer.bench.comparison import compare as run
    from flax_transformer.report.comparison_page import comparison_table

    comparison, path = run(workdirs, out, metric)
    print(f"{comparison_table(comparison)}\n\n{path}")


def attention(
    checkpoint: Annotated[str, tyro.conf.Positional],
    text: Annotated[str | None, tyro.conf.Positional] = None,
    /,
    image: Path | None = None,
    output: Path | None = None,
    layer: int | None = None,
) -> None:
    """Draw what every head looks at while a model reads a text or sees a picture, as a page and PNGs. Prints the paths.

    Args:
      checkpoint: Run folder, Hugging Face folder or hub id; a translation run translates the text.
      text: Text to read; with an --image only for a model that reads both.
      image: File of a picture, or a clip (a folder of frames, or a video), to look at in place of a text or with one.
      output: Folder to write to; "attention" in the checkpoint's folder by default, or here for a hub id.
      layer: Layer that the PNGs show, counted from 1; the last one by default.
    """
    from flax_transformer.task.report import write_attention, write_image_attention

    if text is None and image is None:
        raise ValueError("attention is drawn of a text, of an --image or of both, got neither")
    own = Path(checkpoint) if Path(checkpoint).is_dir() else Path()
    about = {"run": Path(checkpoint).resolve().name, "layer": layer}
    output = output or own / "attention"
    if image is None:
        from flax_transformer.task.use.attention import draw_text

        paths = write_attention(*draw_text(checkpoint, text), output, **about)
    else:
        from flax_transformer.task.use.image_attention import draw_file

        paths = write_image_attention(*draw_file(checkpoint, image, text or ""), output, **about)
    for path in paths:
        print(path)


def _open(workdir: str, beam: int | None, length_penalty: float | None, n_best: int):
    """Open a run's translator, with its search changed where asked."""
    from dataclasses import replace

    from flax_transformer.cli.programs import keep_programs
    from flax_transformer.task.run import open_translator

    keep_programs()
    translator, search = open_translator(workdir)
    asked = {"beams": beam, "length_penalty": length_penalty, "n_best": n_best}
    return translator, replace(search, **{name: value for name, value in asked.items() if value is not None})
