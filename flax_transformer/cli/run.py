"""Commands on runs: `translate | evaluate | distil | show | report | compare | attention`."""

import contextlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from flax_transformer.cli.read import Folder, read_lines
from flax_transformer.cli.unreadable import Refused


@dataclass(frozen=True)
class Translating:
    """How to translate; what is not given is the run's or checkpoint's own setting."""

    beam: int | None = None
    """Hypotheses kept at each step, 1 for greedy; the lengths tried by a model that writes all tokens at once."""
    length_penalty: float | None = None
    """Exponent of the length that scores are divided by."""
    iterations: int | None = None
    """Passes of a model that writes all tokens at once."""
    cache: Literal["int8", "float8_e4m3fn"] | None = None
    """What keys and values of sources and earlier tokens are rounded to."""
    rescore: str | None = None
    """Folder of another translation run, whose model chooses among the hypotheses of a run."""
    source_lang: str | None = None
    """Language of the sentences, for a checkpoint with tokens of languages (en_XX of mBART, eng_Latn of NLLB, en of
    M2M-100), or one (T5) whose config.json has a prefix for each pair."""
    target_lang: str | None = None
    """Language to translate into."""
    prefix: str | None = None
    """Text put before every sentence, in place of the one that config.json has."""


How = Annotated[Translating, tyro.conf.arg(name="")]


def translate(
    workdir: Folder,
    sentences: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    /,
    input: Path | None = None,
    output: Path | None = None,
    n_best: int = 1,
    how: How = Translating(),
    jsonl: bool = False,
) -> None:
    """Translate sentences, one a line, with the model of a run or a checkpoint.

    Args:
      workdir: Folder of a translation run, or a Hugging Face folder or hub id of a model that answers texts.
      sentences: What to translate, each alone; without them, lines of a file.
      input: File to read; standard input by default.
      output: File to write; standard output by default.
      n_best: Translations printed for each sentence; more than one are printed as line number, score and text,
        separated by tabs.
      how: Settings.
      jsonl: Print a JSON object for each sentence instead: source, and hypotheses with their scores.
    """
    if sentences and input is not None:
        raise ValueError(f"sentences are arguments or lines of --input, got {len(sentences)} and {input}")
    lines = list(sentences) or read_lines(input)
    if output is not None and output.is_dir():
        raise ValueError(f"the output must be a file, {output} is a folder")
    translator, search = _open(workdir, how, n_best=n_best)
    results = translator(lines, search)
    with contextlib.nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as out:
        for number, (line, hypotheses) in enumerate(zip(lines, results, strict=True), start=1):
            if jsonl:
                several = [{"text": each.text, "score": each.score} for each in hypotheses]
                out.write(json.dumps({"source": line, "hypotheses": several}, ensure_ascii=False) + "\n")
                continue
            for hypothesis in hypotheses:
                head = f"{number}\t{hypothesis.score:.4f}\t" if n_best > 1 else ""
                out.write(f"{head}{hypothesis.text}\n")


def evaluate(
    checkpoint: Folder,
    data: Annotated[Path | None, tyro.conf.Positional] = None,
    /,
    source: Path | None = None,
    reference: Path | None = None,
    split: str | None = None,
    how: How = Translating(),
    columns: tuple[str, ...] = (),
    revision: str | None = None,
) -> None:
    """Measure any run or checkpoint on data of yours; prints one JSON object.

    Translations: --source and --reference, or DATA of two columns. Summaries: DATA of JSON lines, as {"document": …,
    "summary": …}, or with the fields of the run. Classes: DATA a file of text TAB label, or a folder
    of class folders of images, videos or recordings. Objects: a folder with COCO's json. Captions, questions, speech: a
    folder with JSON lines, as {"image": …, "captions": […]}, {"image": …, "question": …, "answers": […]} and
    {"audio": …, "text": …}. Images matched with texts: class folders, or captions. Words: a file as CoNLL has them, a
    word and its label a line. Answers in passages: a file as SQuAD has them; to choose from: as RACE and DREAM have
    them. A model that continues texts, or fills in masks: a file. Texts of any kind: CSV, JSON lines, Parquet and Arrow
    files, and folders that `datasets` wrote.

    Args:
      checkpoint: Run folder, Hugging Face folder or hub id.
      data: File or folder.
      source: Sentences to translate, one a line.
      reference: Their translations, as many lines.
      split: Split of the folder: test, validation or train; by default the first of these that it has, and all of a
        folder without splits.
      how: Settings of a translation.
      columns: Names of the columns that are read, as sentence label, where records of texts have names of their own.
      revision: Branch, tag or commit of a hub id.
    """
    if (source is None) != (reference is None) or (source is None) == (data is None):
        given = {"DATA": data, "--source": source, "--reference": reference}
        got = ", ".join(name for name, path in given.items() if path is not None) or "neither"
        raise ValueError(f"a model is measured on DATA, or on --source and --reference together, got {got}")
    if source is not None:
        from flax_transformer.data.text import read_parallel

        result = _evaluate_pairs(checkpoint, read_parallel(source, reference, strict=True), how)
    else:
        with Refused() as refuse:
            found = score(checkpoint, data, split, how, refuse, columns=columns, revision=revision)
            print(json.dumps(found, indent=2))
        return
    print(json.dumps(result, indent=2))


def score(
    checkpoint: str, data: Path, split: str | None, how: Translating, refuse: Refused, *,
    columns: tuple[str, ...] = (), revision: str | None = None,
) -> dict:  # fmt: skip
    """Measure a checkpoint or run on data of any form that `evaluate` takes."""
    from flax_transformer.cli.programs import keep_programs
    from flax_transformer.data.text.annotated import read_pairs
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.measure import TABLES, measure, split_file
    from flax_transformer.task.summariser import are_documents, measure_summaries, summarises
    from flax_transformer.task.translation import translates

    keep_programs()
    if summarises(Path(checkpoint)):
        return measure_summaries(checkpoint, data, split)
    pretrained = None if translates(Path(checkpoint)) else open_checkpoint(checkpoint, revision=revision)
    known = None if pretrained is None else pretrained.architecture
    writes = known is None or ("text2text-generation" in known.uses and known.inputs.reads == ("text",))
    if known is not None and writes and data.exists() and not columns and are_documents(data):
        return measure_summaries(checkpoint, data, split, revision=revision)
    if writes:
        return _evaluate_pairs(checkpoint, read_pairs(split_file(data, split, TABLES), columns), how)
    return measure(pretrained, data, split, refuse, columns)


def _evaluate_pairs(checkpoint: str, pairs: Any, how: Translating) -> dict:
    """Translate a corpus, a table of sources and targets, and score it."""
    from flax_transformer.task.translation import evaluate_corpus

    translator, search = _open(checkpoint, how)
    scores, hypotheses, seconds = evaluate_corpus(translator, list(pairs["source"]), list(pairs["target"]), search)
    return {
        **scores.metrics(),
        "signature": scores.signature,
        "sentences": len(hypotheses),
        "sentences_per_second": len(hypotheses) / seconds,
        "beam": search.beams,
        "length_penalty": search.length_penalty,
        **({"iterations": search.iterations} if hasattr(search, "iterations") else {}),
        **({} if how.rescore is None else {"rescored_by": how.rescore}),
    }


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
    from flax_transformer.task.sequence_distillation import distil as run

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
    from flax_transformer.task.description import describe

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
      image: File of an image or a video, or a folder of frames, to look at in place of a text or with one.
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
        from flax_transformer.task.text_attention import draw_text

        paths = write_attention(*draw_text(checkpoint, text), output, **about)
    else:
        from flax_transformer.task.image_attention import draw_file

        paths = write_image_attention(*draw_file(checkpoint, image, text or ""), output, **about, scale=scale)
    for path in paths:
        print(path)


def _open(workdir: str, how: Translating, **search):
    """Open a translator, with its search changed where asked, perhaps with another run as a judge."""
    from flax_transformer.cli.programs import keep_programs
    from flax_transformer.task.run import open_translator
    from flax_transformer.task.translation import open_any_translator
    from flax_transformer.task.translator import Rescored, Translator

    keep_programs()
    translator, own = open_any_translator(workdir, prefix=how.prefix, source=how.source_lang, target=how.target_lang)
    if how.iterations is not None and not hasattr(own, "iterations"):
        raise ValueError(f"iterations are of a model that writes all tokens at once, {workdir} writes one by one")
    asked = {"beams": how.beam, "length_penalty": how.length_penalty, "iterations": how.iterations, "cache": how.cache}
    asked |= search
    own = replace(own, **{name: value for name, value in asked.items() if value is not None})
    if how.rescore is None:
        return translator, own
    if not isinstance(translator, Translator):
        raise ValueError(f"a run's hypotheses are rescored by another, {workdir} is a checkpoint")
    return Rescored(translator, open_translator(how.rescore)[0]), own
