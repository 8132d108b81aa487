"""The command line: `flax-transformer translate | evaluate | show`.

Only this file and what it imports at its top is loaded for `--help`; a command imports what it needs when it runs.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import tyro

Folder = Annotated[str, tyro.conf.Positional]


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
    lines = _read_lines(input)
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
    from flax_transformer.data import read_parallel
    from flax_transformer.task.translation import evaluate_corpus

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


def show(workdir: Folder, /) -> None:
    """Print a run's configuration, its parameters by module, and its newest metrics.

    Args:
      workdir: Folder of any run.
    """
    from flax_transformer.task.show import describe

    describe(workdir)


def _read_lines(path: Path | None) -> list[str]:
    name = "standard input" if path is None else str(path)
    if path is not None and not path.is_file():
        raise FileNotFoundError(f"no file {path} to translate")
    data = sys.stdin.buffer.read() if path is None else path.read_bytes()
    lines = data.removesuffix(b"\n").split(b"\n") if data else []
    texts = []
    for number, line in enumerate(lines, start=1):
        try:
            texts.append(line.decode("utf-8").removesuffix("\r"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{name}, line {number}: not UTF-8 ({error.reason})") from error
    return texts


def _open(workdir: str, beam: int | None, length_penalty: float | None, n_best: int):
    """Open a run's translator, with its search changed where asked."""
    from dataclasses import replace

    from flax_transformer.task.translation import load_translator

    translator, experiment = load_translator(workdir)
    asked = {"beams": beam, "length_penalty": length_penalty, "n_best": n_best}
    return translator, replace(experiment.search, **{name: value for name, value in asked.items() if value is not None})


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0, or 1 after an error said in one sentence on standard error."""
    app = tyro.extras.SubcommandApp()
    for command in (translate, evaluate, show):
        app.command(command)
    try:
        app.cli(args=arguments, prog="flax-transformer", description="Transformers in JAX: use and look at runs.")
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
