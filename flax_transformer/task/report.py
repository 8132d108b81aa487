"""The report of a translation run: what its folder says, with readable tokens and pictures of attention."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flax_transformer.report import Picture, Report, read_run, save_attention, write_page
from flax_transformer.task.attention import LONGEST, draw, draw_sentence, spell, token_ids
from flax_transformer.task.translator import Search, Translator
from flax_transformer.train.folder import RunFolder
from flax_transformer.train.state import parameter_count

PICTURES = 3
"""Sentences whose attention a report shows."""

DRAWN = 40
"""Tokens a side that such a sentence has at most, so that its picture fits a page."""


def write_report(
    folder: RunFolder, translator: Translator, samples: Sequence[dict] | None = None, notes: Sequence[str] = ()
) -> Path:
    """Write report.html of a run.

    Args:
      translator: the run's model.
      samples: in place of those in the run's folder.
      notes: what the reader must know besides.

    Raises:
      FolderError: when it is no run folder.
      OSError: when the page cannot be written.
    """
    report = read_run(folder)
    samples = report.samples if samples is None else samples
    pictures, reasons = _pictures(translator, samples or ())
    tokenizer = translator.tokenizer
    readable = [
        {**sample, "tokens": spell(tokenizer, token_ids(tokenizer, sample["tokens"]))}
        if _has_tokens(sample)
        else {**sample, "tokens": ()}
        for sample in samples or ()
    ]
    facts = {
        "parameters": f"{parameter_count(translator.model):,}",
        "vocabulary": f"{tokenizer.vocab_size:,}",
    }
    report = replace(
        report, facts={**report.facts, **facts}, notes=(*report.notes, *notes, *reasons), samples=readable,
        pictures=pictures,
    )  # fmt: skip
    return write_page(folder.report, report)


def write_plain_report(folder: RunFolder, notes: Sequence[str] = ()) -> Path:
    """Write report.html of any run: its numbers and configuration.

    Raises:
      FolderError: when it is no run folder.
      OSError: when the page cannot be written.
    """
    report = read_run(folder)
    return write_page(folder.report, replace(report, samples=None, notes=(*report.notes, *notes)))


def write_text_report(folder: RunFolder) -> Path:
    """Write report.html of a run on text: numbers, samples as they are, configuration.

    Raises:
      FolderError: when it is no run folder.
      OSError: when the page cannot be written.
    """
    return write_page(folder.report, read_run(folder))


def write_attention(
    translator: Translator, sentence: str, search: Search, output: Path, *, run: str = "", layer: int | None = None
) -> list[Path]:
    """Write the attention of one sentence: a page of every layer, and PNGs of one.

    Args:
      output: folder to write to, made if need be.
      run: name of the run, for the page.
      layer: counted from 1; the last one by default.

    Returns:
      The paths, the page first.

    Raises:
      ValueError: when the sentence is empty or too long, or there is no such layer.
    """
    picture, sample = draw_sentence(translator, sentence, search)
    deepest = max(maps.weights.shape[0] for maps in picture.maps)
    if layer is not None and not 1 <= layer <= deepest:
        raise ValueError(f"layer must be between 1 and {deepest}, got {layer}")
    notes = () if len(sample["tokens"]) <= LONGEST else (f"Only the first {LONGEST} tokens written are drawn.",)
    output.mkdir(parents=True, exist_ok=True)
    report = Report(
        title="Attention", facts={"run": run} if run else {}, notes=notes, samples=[sample], pictures=[picture]
    )
    paths = [write_page(output / "attention.html", report)]
    for maps in picture.maps:
        if layer is None or layer <= maps.weights.shape[0]:  # encoder and decoder may differ in depth
            paths.append(output / f"{maps.name.replace(' ', '-')}.png")
            save_attention(maps, paths[-1], layer=-1 if layer is None else layer - 1)
    return paths


def _has_tokens(sample: dict) -> bool:
    tokens = sample.get("tokens")
    return isinstance(tokens, list | tuple) and all(isinstance(token, str) for token in tokens)


def _pictures(translator: Translator, samples: Sequence[dict]) -> tuple[list[Picture], list[str]]:
    """Draw a few samples, evenly spread over those that fit; say so where none can be drawn."""
    fitting = [
        sample
        for sample in samples
        if _has_tokens(sample)
        and 0 < len(sample["tokens"]) <= DRAWN
        and isinstance(sample.get("source"), str)
        and len(translator.tokenizer.encode([sample["source"]])[0]) < DRAWN
    ]
    if samples and not fitting:
        return [], [f"No sample is short enough for a picture of its attention, {DRAWN} tokens a side."]
    every = max(len(fitting) // PICTURES, 1)
    try:
        return [draw(translator, s["source"], s["tokens"]) for s in fitting[::every][:PICTURES]], []
    except ValueError as error:
        return [], [f"There are no attention pictures: {error}."]
