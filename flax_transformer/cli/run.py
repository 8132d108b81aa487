"""Commands on runs: `translate | evaluate | distil | show | report | compare | attention`."""

import json
import sys
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
    iterations: int | None = None,
    rescore: str | None = None,
) -> None:
    """Translate sentences, one a line, with the model of a run.

    Args:
      workdir: Folder of a translation run.
      input: File to read; standard input by default.
      output: File to write; standard output by default.
      beam: Hypotheses kept at each step, 1 for greedy; the lengths tried by a model that writes all tokens at once. The
        run's own setting by default.
      length_penalty: Exponent of the length that scores are divided by; the run's own by default.
      n_best: Translations printed for each sentence; more than one are printed as line number, score and text,
        separated by tabs.
      iterations: Passes of a model that writes all tokens at once; the run's own by default.
      rescore: Folder of another translation run, whose model chooses among the hypotheses.
    """
    lines = read_lines(input)
    asked = {"beams": beam, "length_penalty": length_penalty, "n_best": n_best, "iterations": iterations}
    translator, search = _open(workdir, asked, rescore)
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
    iterations: int | None = None,
    rescore: str | None = None,
) -> None:
    """Translate a file and score it against references; prints one JSON object.

    Args:
      workdir: Folder of a translation run.
      source: Sentences to translate, one a line.
      reference: Their translations, as many lines.
      beam: Hypotheses kept at each step, 1 for greedy; the lengths tried by a model that writes all tokens at once. The
        run's own setting by default.
      length_penalty: Exponent of the length that scores are divided by; the run's own by default.
      iterations: Passes of a model that writes all tokens at once; the run's own by default.
      rescore: Folder of another translation run, whose model chooses among the hypotheses.
    """
    from flax_transformer.data.text import read_parallel
    from flax_transformer.task.evaluator.translate import evaluate_corpus

    pairs = read_parallel(source, reference, strict=True)
    asked = {"beams": beam, "length_penalty": length_penalty, "iterations": iterations}
    translator, search = _open(workdir, asked, rescore)
    scores, hypotheses, seconds = evaluate_corpus(translator, list(pairs.sources), list(pairs.targets), search)
    result = {
        **scores.metrics(),
        "signature": scores.signature,
        "sentences": len(hypotheses),
        "sentences_per_second": len(hypotheses) / seconds,
        "beam": search.beams,
        "length_penalty": search.length_penalty,
    }
    result |= {"iterations": search.iterations} if hasattr(search, "iterations") else {}
    result |= {} if rescore is None else {"rescored_by": rescore}
    print(json.dumps(result, indent=2))


def distil(
    workdir: Folder,
    output: Folder,
    /,
    beam: int | None = None,
    length_penalty: float | None = None,
) -> None:
    """Write the corpus a run was trained on, with the run's own translations as targets, to train another run on.

    What was interrupted goes on with the same command. Validation and test sentences stay as they are.

    Args:
      workdir: Folder of a translation run, the teacher.
      output: Folder to write; files are train, validation and test with the languages behind.
      beam: Hypotheses kept at each step, 1 for greedy; the run's own setting by default.
      length_penalty: Exponent of the length that scores are divided by; the run's own by default.
    """
    from flax_transformer.cli.programs import keep_programs
    from flax_transformer.task.distil import distil as run

    keep_programs()
    asked = {"beams": beam, "length_penalty": length_penalty}
    said = {name: value for name, value in asked.items() if value is not None}
    out = run(workdir, output, lambda text: print(text, file=sys.stderr, flush=True), **said)
    print(f"--data.root {out} --data.train train --data.validation validation --data.test test")


def show(target: Folder, /) -> None:
    """Print configuration and parameters by module of a run or a preset, and a run's newest metrics.

    Args:
      target: Folder of any run, or the name of a preset as transformer_base.
    """
    from flax_transformer.task.show import describe

    describe(target)


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
    scale: Literal["min-max", "absolute"] = "min-max",
) -> None:
    """Draw the attention weights of every head over a text or an image, as a page and PNGs. Prints the paths.

    Args:
      checkpoint: Run folder, Hugging Face folder or hub id; a translation run translates the text.
      text: Text to read; with an --image only for a model that reads both.
      image: File of a picture, or a clip (a folder of frames, or a video), to look at in place of a text or with one.
      output: Folder to write to; "attention" in the checkpoint's folder by default, or here for a hub id.
      layer: Layer that the PNGs show, counted from 1; the last one by default.
      scale: Colours of the PNG of an image: each panel from its smallest to its largest weight, or all from 0.
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

        paths = write_image_attention(*draw_file(checkpoint, image, text or ""), output, **about, scale=scale)
    for path in paths:
        print(path)


def _open(workdir: str, asked: dict, rescore: str | None = None):
    """Open a run's translator, with its search changed where asked, perhaps with another run as a judge."""
    from dataclasses import replace

    from flax_transformer.cli.programs import keep_programs
    from flax_transformer.task.rescore import Rescored
    from flax_transformer.task.run import open_translator

    keep_programs()
    translator, search = open_translator(workdir)
    if asked.get("iterations") is not None and not hasattr(search, "iterations"):
        raise ValueError(f"iterations are of a model that writes all tokens at once, {workdir} writes one by one")
    search = replace(search, **{name: value for name, value in asked.items() if value is not None})
    return translator if rescore is None else Rescored(translator, open_translator(rescore)[0]), search
