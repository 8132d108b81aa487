"""The report of a run: what its folder says, with readable tokens and what its evaluators draw."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax_transformer.data.image import decode_image
from flax_transformer.hub import Pretrained
from flax_transformer.listing import without_folders
from flax_transformer.report import (
    ImageAttention,
    Report,
    Scale,
    TextAttention,
    image_attention_figure,
    read_run,
    save_attention,
    write_page,
)
from flax_transformer.report.sample import from_sheet
from flax_transformer.task.attention import LONGEST, spell, token_ids
from flax_transformer.task.checkpoint import image_processor_of, open_checkpoint
from flax_transformer.task.image_attention import draw_image, draw_video, layout_of, reads_both
from flax_transformer.task.run import EXPORT, open_run
from flax_transformer.task.text_attention import draw_texts
from flax_transformer.task.translation import has_tokens
from flax_transformer.train import own_code
from flax_transformer.train.checkpoint import CheckpointError
from flax_transformer.train.folder import FolderError, RunFolder, read_config, read_experiment
from flax_transformer.train.state import parameter_count


def write_report(
    folder: RunFolder,
    evaluators: Sequence[Any] = (),
    model: Any = None,
    tokenizer: Any = None,
    samples: Sequence[dict] | None = None,
    notes: Sequence[str] = (),
    pretrained: Pretrained | None = None,
) -> Path:
    """Write report.html of a run: its numbers, configuration and samples, and what its evaluators draw.

    Args:
      evaluators: of the run's recipe.
      model: the run's; without it evaluators draw nothing.
      tokenizer: the run's, if it has one.
      samples: in place of those in the run's folder; an empty list shows none.
      notes: what the reader must know besides.
      pretrained: the finished model, whose attention is drawn where no evaluator does.

    Raises:
      FolderError: when it is no run folder.
      OSError: when the page cannot be written.
    """
    report = read_run(folder)
    samples = report.samples if samples is None else samples
    facts, text_attention, images, reasons = {}, None, None, []
    if model is not None:
        facts = {"parameters": f"{parameter_count(model):,}"}
        facts |= {} if tokenizer is None else {"vocabulary": f"{tokenizer.vocab_size:,}"}
        for evaluator in evaluators:
            if evaluator.draws:
                drawn, why = evaluator.text_attention(model, tokenizer, samples or ())
                text_attention, reasons = [*(text_attention or ()), *drawn], [*reasons, *why]
    if pretrained is not None and text_attention is None:
        text_attention, images, reasons = draw_samples(pretrained, samples or ())
    tested = [record for record in report.records or () if record["split"] == "test"]
    said = [note for evaluator in evaluators for note in (evaluator.notes(tested[-1]) if tested else ())]
    folders = _folders(folder, report.config)
    readable = [_readable(sample, tokenizer) for sample in samples] if samples else None
    report = replace(
        report, facts={**report.facts, **facts},
        notes=without_folders((*report.notes, *notes, *reasons, *said), folders),
        samples=without_folders(readable, folders), text_attention=text_attention, images=images,
        headline=next((each.metric for each in evaluators if each.metric), report.headline),
    )  # fmt: skip
    return write_page(folder.report, report)


def _folders(folder: RunFolder, config: Any) -> list[Path | str]:
    """List the folders that a page need not name: the data's, the current one, and the run's parent."""
    root = config.get("data", {}).get("root") if isinstance(config.get("data"), dict) else None
    known = [Path(root).expanduser()] if isinstance(root, str) and root else []
    known += [Path.cwd(), folder.root.resolve().parent]
    return sorted((each for each in known if each.is_absolute() and each.parts[1:]), key=lambda each: -len(each.parts))


def remake_report(workdir: str | Path) -> Path:
    """Write report.html of a run as it stands: finished or not, of a recipe or of anything else.

    A run without samples gets some of its newest checkpoint, where an evaluator can make them on the spot.

    Raises:
      FolderError: when it is no run folder.
      OSError: when the page cannot be written.
    """
    folder = RunFolder(Path(workdir))
    read_config(folder)
    try:
        evaluators = read_experiment(folder).evaluators
    except (FolderError, AttributeError) as error:  # its numbers can be shown all the same
        own = (folder.root / own_code.FILE).is_file()
        notes = [f"There are no samples and no images of attention: {error}."] if own else []
        return write_report(folder, samples=[], notes=notes)
    if not any(each.draws for each in evaluators):
        return write_report(folder, evaluators, **_finished(folder))
    try:
        run = open_run(workdir)
    except (FolderError, CheckpointError, ValueError) as error:
        return write_report(folder, samples=[], notes=[f"There are no samples and no attention: {error}."])
    if read_run(folder).samples:
        return write_report(folder, evaluators, run.model, run.tokenizer)
    samples, notes = [], []
    try:
        for evaluator in evaluators:
            made, note = evaluator.preview(run.recipe.data, run.model, run.tokenizer)
            samples, notes = [*samples, *made], [*notes, *([note] if note else [])]
    except (ValueError, RuntimeError, OSError) as error:
        notes = [f"There are no samples: {error}."]
    return write_report(folder, evaluators, run.model, run.tokenizer, samples, notes)


def _finished(folder: RunFolder) -> dict[str, Any]:
    """Open what a run ended with, where that is a checkpoint and it has samples to be drawn."""
    if not any((folder.root / EXPORT).glob("*.safetensors")) or not read_run(folder).samples:
        return {}
    try:
        pretrained = open_checkpoint(str(folder.root))
    except (ValueError, OSError) as error:
        return {"notes": [f"No attention is shown: {error}."]}
    return {"model": pretrained.model, "tokenizer": pretrained.tokenizer, "pretrained": pretrained}


def write_attention(
    drawing: TextAttention, sample: dict, output: Path, *, run: str = "", layer: int | None = None
) -> list[Path]:
    """Write the attention of one sentence: a page of every layer, and PNGs of one.

    Args:
      image: the attention.
      sample: the sentence, and what was written.
      output: folder to write to, made if need be.
      run: name of the run, for the page.
      layer: counted from 1; the last one by default.

    Returns:
      The paths, the page first.

    Raises:
      ValueError: when there is no such layer.
    """
    deepest = max(maps.weights.shape[0] for maps in drawing.maps)
    if layer is not None and not 1 <= layer <= deepest:
        raise ValueError(f"layer must be between 1 and {deepest}, got {layer}")
    notes = (
        () if len(sample.get("tokens", ())) <= LONGEST else (f"Only the first {LONGEST} generated tokens are drawn.",)
    )
    output.mkdir(parents=True, exist_ok=True)
    report = Report(
        title="Attention", facts={"run": run} if run else {}, notes=notes, samples=[sample], text_attention=[drawing]
    )
    paths = [write_page(output / "attention.html", report)]
    for maps in drawing.maps:
        if layer is None or layer <= maps.weights.shape[0]:  # encoder and decoder may differ in depth
            paths.append(output / f"{maps.name.replace(' ', '-')}.png")
            save_attention(maps, paths[-1], layer=-1 if layer is None else layer - 1)
    return paths


def write_image_attention(
    attention: ImageAttention,
    notes: Sequence[str],
    output: Path,
    *,
    run: str = "",
    layer: int | None = None,
    scale: Scale = "min-max",
) -> list[Path]:
    """Write the attention over an image: a page of every layer, and a PNG of one.

    Args:
      attention: the weights, and the image.
      notes: what the reader must know.
      output: folder to write to, made if need be.
      run: name of the run, for the page.
      layer: counted from 1; the last one by default.
      scale: of the PNG's colours, as `image_attention_figure` has it; the page has a switch.

    Returns:
      The paths, the page first.

    Raises:
      ValueError: when there is no such layer.
    """
    if layer is not None and layer < 1:
        raise ValueError(f"layer must be at least 1, got {layer}")
    figure = image_attention_figure(attention, layer=-1 if layer is None else layer, scale=scale)
    output.mkdir(parents=True, exist_ok=True)
    report = Report(title="Attention", facts={"run": run} if run else {}, notes=tuple(notes), images=[attention])
    paths = [write_page(output / "attention.html", report), output / "attention.png"]
    figure.savefig(paths[1])
    return paths


def _readable(sample: dict, tokenizer: Any) -> dict:
    """Spell a sample's tokens for people, where it has any and it is known how."""
    if "tokens" not in sample:
        return sample
    if tokenizer is None or not has_tokens(sample):
        return {**sample, "tokens": ()}
    return {**sample, "tokens": spell(tokenizer, token_ids(tokenizer, sample["tokens"]))}


COUNT = 3
"""Samples that are drawn."""


def draw_samples(
    pretrained: Pretrained, samples: Sequence[dict[str, Any]]
) -> tuple[list[TextAttention] | None, list[ImageAttention] | None, list[str]]:
    """Draw the attention of a few samples, evenly spread over those that fit.

    Args:
      pretrained: the finished model.
      samples: of the run; texts as `source`, images as data URLs, `whole` where `picture` is a page of several.

    Returns:
      That over texts, that over images, each None where the model reads no such thing; and what the reader must know.
    """
    texts = images = None
    notes: list[str] = []
    try:
        if "videos" in pretrained.architecture.inputs.reads:
            films = [each for each in samples if each.get("picture") and each.get("frames")]
            drawn = [_draw_video(pretrained, each) for each in _spread(films)] if pretrained.processor else []
            images, notes = [image for image, _ in drawn], list(dict.fromkeys(n for _, said in drawn for n in said))
        elif "images" in pretrained.architecture.inputs.reads:
            if layout_of(pretrained) is not None and pretrained.processor is not None:
                drawn = [_draw(pretrained, sample) for sample in _spread([s for s in samples if _of_one_image(s)])]
                images, notes = [image for image, _ in drawn], list(dict.fromkeys(n for _, said in drawn for n in said))
        elif _reads_alone(pretrained):

            def length(text):
                return len(pretrained.tokenizer([text])["input_ids"][0])

            sources = [sample["source"] for sample in samples if isinstance(sample.get("source"), str)]
            fitting = [text for text in sources if text.strip() and 0 < length(text) <= LONGEST]
            texts = draw_texts(pretrained, _spread(fitting)) if fitting else None
    except ValueError as error:
        notes.append(f"No attention is shown: {error}.")
    return texts, images or None, notes


def _of_one_image(sample: dict[str, Any]) -> bool:
    """Return whether a sample shows an image that a model can see, and no drawing of many."""
    return bool(sample.get("picture")) and not sample.get("drawing")


def _reads_alone(pretrained: Pretrained) -> bool:
    """Return whether a model reads one text at a time, and writes it on if it writes."""
    known = pretrained.architecture
    two = "decoder_input_ids" in known.inputs.takes or "multiple-choice" in known.uses
    return "text" in known.inputs.reads and pretrained.tokenizer is not None and not two


def _draw(pretrained: Pretrained, sample: dict[str, Any]) -> tuple[ImageAttention, list[str]]:
    image = _decoded(pretrained, sample.get("whole", sample["picture"]))
    said = str(sample.get("source", ""))
    return draw_image(_as_it_is(pretrained, image), image, said, said if reads_both(pretrained) else "")


def _draw_video(pretrained: Pretrained, sample: dict[str, Any]) -> tuple[ImageAttention, list[str]]:
    frames = from_sheet(_decoded(pretrained, sample["picture"]), sample["frames"])
    return draw_video(_as_it_is(pretrained, frames[0]), frames, str(sample.get("source", "")))


def _decoded(pretrained: Pretrained, url: str) -> Any:
    file = base64.b64decode(url.partition(",")[2])
    return decode_image(file, channels=pretrained.config.get("num_channels", 3))


def _as_it_is(pretrained: Pretrained, image: Any) -> Pretrained:
    """Leave the size of an image that is as the model sees it: resized and cropped already."""
    processor = image_processor_of(pretrained)
    if processor.shown(image).shape[1::-1] != image.size:
        return pretrained
    return replace(pretrained, processor=processor.updated(do_resize=False, do_center_crop=False))


def _spread(values: list[Any]) -> list[Any]:
    return values[:: max(-(-len(values) // COUNT), 1)][:COUNT]
