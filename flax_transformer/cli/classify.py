"""The command `classify`, for texts and for files."""

from dataclasses import asdict
from functools import partial
from typing import Annotated

import tyro

from flax_transformer.cli.programs import keep_programs
from flax_transformer.cli.read import Folder, put, read_lines
from flax_transformer.cli.unreadable import Refused

Texts = Annotated[tuple[str, ...], tyro.conf.Positional]


def classify(
    checkpoint: Folder,
    texts: Texts = (),
    /,
    pair: bool = False,
    among: tuple[str, ...] = (),
    template: str | None = None,
    several: bool = False,
    jsonl: bool = False,
    revision: str | None = None,
) -> None:
    """Classify texts, the words of texts, images, videos or recordings, whichever the checkpoint does.

    One is answered with all classes and their probabilities; several with the best of each, one a line.

    Args:
      checkpoint: Hugging Face folder, hub id, Orbax folder, or run folder.
      texts: Texts to classify, or files of images, videos (folders of frames, or video files) or recordings; without
        them every line of standard input is one.
      pair: Whether two texts are classified together: arguments two by two, or lines with a tab between them.
      among: Texts to choose among in place of classes: for images by a checkpoint that matches images and texts, for
        texts by a sentence encoder, or by a classifier with a class called entailment.
      template: What a class of texts is put into, with {} where it stands: "This example is {}." by default.
      several: Whether a text may be of several of those: each has a probability of its own, by entailment.
      jsonl: Print a JSON object for each instead: the text or file, and all labels, or words with theirs.
      revision: Branch, tag or commit of a hub id.
    """
    from flax_transformer.task.checkpoint import open_checkpoint
    from flax_transformer.task.text_classification import classify as run
    from flax_transformer.task.text_classification import label_words

    keep_programs()
    lines = list(texts) or read_lines()
    if not lines:
        return
    lines, seconds = _pairs(lines, by_tabs=not texts) if pair else (lines, None)
    pretrained = open_checkpoint(checkpoint, revision=revision)
    reads = pretrained.architecture.inputs.reads
    if (template is not None or several) and not (among and reads == ("text",)):
        raise ValueError("template and several are of texts that are classified by --among")
    if among and reads == ("text",):
        if pair:
            raise ValueError("texts are chosen for one by one, got pair and among")
        return _choose_for_texts(pretrained, lines, among, template, several=several, jsonl=jsonl)
    if among or {"images", "videos", "audio"} & {*reads}:
        if pair:
            raise ValueError(f"pairs are of texts, the checkpoint reads {' and '.join(reads)}")
        return _classify_files(pretrained, lines, among, jsonl=jsonl)
    if "token-classification" in pretrained.architecture.uses and not pair:
        for i, line in enumerate(lines):
            words = label_words(pretrained, line)
            rows = [f"{word.probability:.4f}\t{word.label}\t{word.text}" for word in words]
            record = {"text": line, "words": list(map(asdict, words))}
            put(record, *[""] * (i > 0), *rows, jsonl=jsonl)
        return
    results = run(pretrained, lines, seconds)
    for i, (line, labels) in enumerate(zip(lines, results, strict=True)):
        both = {} if seconds is None else {"pair": seconds[i]}
        _put_labels({"text": line, **both}, labels, alone=len(lines) == 1, jsonl=jsonl)


def _pairs(lines: list[str], *, by_tabs: bool) -> tuple[list[str], list[str]]:
    """Take texts two by two, or at the tab in each."""
    split = [line.split("\t") for line in lines] if by_tabs else [lines[i : i + 2] for i in range(0, len(lines), 2)]
    wrong = next((parts for parts in split if len(parts) != 2), None)
    if wrong is not None:
        raise ValueError(f"a pair must be two texts, got {len(wrong)}: {' '.join(wrong)[:60]!r}")
    firsts, seconds = ([parts[i] for parts in split] for i in (0, 1))
    return firsts, seconds


def _choose_for_texts(
    pretrained, lines: list[str], among: tuple[str, ...], template: str | None, *, several: bool, jsonl: bool
) -> None:
    """Classify texts into classes that are given."""
    from flax_transformer.task.zero_shot import TEMPLATE, choose_among

    results = choose_among(
        pretrained, lines, among, template=TEMPLATE if template is None else template, several=several
    )
    for line, labels in zip(lines, results, strict=True):
        _put_labels({"text": line}, labels, alone=len(lines) == 1, jsonl=jsonl)


def _classify_files(pretrained, names: list[str], among: tuple[str, ...], *, jsonl: bool) -> None:
    """Classify the files of images, videos or recordings; those that are damaged are named, others gone on with."""
    from flax_transformer.task.audio_classification import classify_audio, read_audio
    from flax_transformer.task.checkpoint import read_several
    from flax_transformer.task.embedding import choose
    from flax_transformer.task.image_classification import classify_images
    from flax_transformer.task.image_input import read_image
    from flax_transformer.task.video_classification import classify_videos, read_video

    known = {
        "images": (read_image, classify_images),
        "videos": (read_video, classify_videos),
        "audio": (read_audio, classify_audio),
    }
    read, run = next((known[each] for each in known if each in pretrained.architecture.inputs.reads), known["images"])
    run = (lambda model, things: choose(model, things, among)) if among else run
    run(pretrained, [])  # refuses what cannot classify
    with Refused() as refuse:
        for files, things in read_several(names, partial(read, pretrained), refuse):
            for name, labels in zip(files, run(pretrained, things), strict=True):
                _put_labels({"file": name}, labels, alone=len(names) == 1, jsonl=jsonl)


def _put_labels(record: dict, labels: list, *, alone: bool, jsonl: bool) -> None:
    rows = [f"{each.probability:.4f}\t{each.name}" for each in labels]
    lines = rows if alone else [f"{rows[0]}\t{next(iter(record.values()))}"]
    put({**record, "labels": list(map(asdict, labels))}, *lines, jsonl=jsonl)
