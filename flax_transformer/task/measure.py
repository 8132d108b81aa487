"""How good a checkpoint is on data of a folder or a file: the metric of what it does.

Axes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flax_transformer.data.audio.open import LINES as SPEECH
from flax_transformer.data.folder import open_folders
from flax_transformer.data.image.coco import find_coco, open_coco
from flax_transformer.data.image.open import IMAGE_FILES
from flax_transformer.data.image.text import LINES as CAPTIONS
from flax_transformer.data.json_line import open_json_lines
from flax_transformer.data.synthetic import AudioData
from flax_transformer.data.text.plain import read_text
from flax_transformer.data.video.folder import VIDEOS
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.detection import post_process_object_detection
from flax_transformer.hub.registration import USES
from flax_transformer.listing import listed
from flax_transformer.metric.average_precision import average_precision
from flax_transformer.metric.caption import caption_scores
from flax_transformer.metric.edit_distance import letter_edits, word_edits
from flax_transformer.task.audio_classification import classify_audio, read_audio
from flax_transformer.task.captioning import caption
from flax_transformer.task.checkpoint import Refuse, image_processor_of, positions_of, read_several, tokenizer_of
from flax_transformer.task.classification import Label, label_names
from flax_transformer.task.image_classification import classify_images
from flax_transformer.task.image_input import read_image
from flax_transformer.task.speech_recognition import transcribe
from flax_transformer.task.text_classification import classify
from flax_transformer.task.video_classification import classify_videos, read_video

Metrics = dict[str, float | int | str]


SPLITS = "test", "validation", "train"
"""The splits of a folder, the one that is taken before others first."""


def measure(pretrained: Pretrained, data: Path, split: str | None = None, refuse: Refuse | None = None) -> Metrics:
    """Measure a checkpoint by what it can do: accuracy, average precision, error rates, caption scores, perplexity.

    Args:
      data: a file or folder; see `flax-transformer evaluate --help`.
      split: of a folder; the first it has of test, validation and train by default.
      refuse: is told of files that cannot be read, which are left out; without it the first ends it.

    Raises:
      FileNotFoundError: no such file or folder.
      ValueError: data of another form, classes that the checkpoint does not know, or a checkpoint for which nothing is
        measured.
    """
    if not data.exists():
        raise FileNotFoundError(f"there is no file or folder {data}")
    if split not in (None, *SPLITS):
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    known, name = pretrained.architecture, pretrained.config["architectures"][0]
    reads, uses = known.inputs.reads, {*known.uses}
    if "object-detection" in uses:
        return _objects(pretrained, _folder(data), split, refuse)
    if "classification" in uses and "text" not in reads:
        return _class_folders(pretrained, _folder(data), split, refuse)
    if "audio" in reads and uses & {"automatic-speech-recognition", "text2text-generation"}:
        return _speech(pretrained, _folder(data), split, refuse)
    if "images" in reads and uses & {"text-generation", "text2text-generation"}:
        return _captions(pretrained, _folder(data), split, refuse)
    if reads == ("text",) and "classification" in uses:
        return _texts(pretrained, _file(data, split))
    if reads == ("text",) and "text-generation" in uses:
        return _perplexity(pretrained, _file(data, split))
    raise ValueError(f"nothing is measured of a {name}, which can {', '.join(USES[each] for each in known.uses)}")


def read_pairs(path: Path) -> tuple[list[str], list[str]]:
    """Read a file of source TAB target.

    Raises:
      FileNotFoundError, ValueError: no such file, or a line of other than two columns; names it.
    """
    rows = [line.removesuffix("\r").split("\t") for line in read_text(path).removesuffix("\n").split("\n")]
    wrong = next((number for number, row in enumerate(rows, start=1) if len(row) != 2), None)
    if wrong is not None:
        raise ValueError(f"{path}, line {wrong}: a line must be source TAB target, got {len(rows[wrong - 1])} columns")
    return [row[0] for row in rows], [row[1] for row in rows]


def _folder(data: Path) -> Path:
    if not data.is_dir():
        raise ValueError(f"{data} must be a folder, it is a file")
    return data


def _file(data: Path, split: str | None) -> Path:
    """Return a file of texts: itself, or that of a folder's split."""
    if not data.is_dir():
        return data
    names = {"test": ("test",), "validation": ("validation", "dev"), "train": ("train",)}
    wanted = [name for each in SPLITS if split in (None, each) for name in names[each]]
    found = next((path for name in wanted for path in sorted(data.glob(f"{name}.t[sx][vt]"))), None)
    if found is None:
        raise ValueError(f"{data} must have a file {' or '.join(f'{name}.tsv' for name in wanted)}, it has none")
    return found


def _split(found: Mapping[str, Any], data: Path, split: str | None) -> tuple[str, Any]:
    """Choose a split of those that there are; one of all that is in a folder is called all."""
    chosen = split or next(each for each in SPLITS if each in found)
    if chosen not in found:
        raise ValueError(f"{data} must have a split {chosen}, it has {', '.join(found)}")
    return "all" if split is None and len(found) == 1 else chosen, found[chosen]


def _numbers(pretrained: Pretrained, classes: Sequence[str], count: int) -> list[int]:
    """Find the checkpoint's number of each class: by its name, or as a number itself.

    Raises:
      ValueError: one that it does not know.
    """
    names = label_names(pretrained, count)
    known = {name.casefold(): number for number, name in enumerate(names)}
    known |= {f"label_{number}": number for number in range(count)}
    found = [
        known.get(name.casefold(), int(name) if name.isdecimal() and int(name) < count else -1) for name in classes
    ]
    if strange := [name for name, number in zip(classes, found, strict=True) if number < 0]:
        raise ValueError(
            f"the data have classes that the checkpoint does not know, {listed(strange)}; it knows {listed(names)}"
        )
    return found


def _classes(pretrained: Pretrained) -> int:
    names = pretrained.config.get("id2label")
    count = len(names) if names else pretrained.config.integer("num_labels", 2)
    problem = pretrained.config.get("problem_type") or ("regression" if count == 1 else None)
    if problem in ("regression", "multi_label_classification"):
        raise ValueError(f"one class of each row is measured, the checkpoint's problem_type is {problem}")
    return count


def _accuracy(pretrained: Pretrained, predicted: Sequence[Sequence[Label]], truth: Sequence[int]) -> Metrics:
    """Compute the accuracy in per cent, and the mean of -log of the right class's probability."""
    if not truth:
        raise ValueError("there must be at least one row that can be read, got none")
    names = label_names(pretrained, len(predicted[0]))
    right = [labels[0].name == names[number] for labels, number in zip(predicted, truth, strict=True)]
    probabilities = [
        next(each.probability for each in labels if each.name == names[number])
        for labels, number in zip(predicted, truth, strict=True)
    ]
    loss = float(-np.log(np.maximum(probabilities, np.finfo(np.float32).tiny)).mean())
    return {"accuracy": 100 * sum(right) / len(right), "loss": loss, "rows": len(right)}


def _texts(pretrained: Pretrained, path: Path) -> Metrics:
    rows = read_pairs(path)
    classes = list(dict.fromkeys(rows[1]))
    if len(classes) == len(rows[1]) > 2:
        raise ValueError(
            f"{path} must have text TAB label a line, but its {len(classes):,} labels all differ, as ids do"
        )
    number_of = dict(zip(classes, _numbers(pretrained, classes, _classes(pretrained)), strict=True))
    return _accuracy(pretrained, classify(pretrained, rows[0]), [number_of[label] for label in rows[1]])


def _class_folders(pretrained: Pretrained, data: Path, split: str | None, refuse: Refuse | None) -> Metrics:
    reads = pretrained.architecture.inputs.reads
    if "audio" in reads:
        sets, classes = AudioData(root=str(data)).found()
        found = {name: (each["audio"].root, each["audio"].names, each["label"]) for name, each in sets.items()}
        read, run = read_audio, classify_audio
    else:
        sets, classes = open_folders(data, VIDEOS if "videos" in reads else IMAGE_FILES)
        found = {name: tuple(each) for name, each in sets.items()}
        read, run = (read_video, classify_videos) if "videos" in reads else (read_image, classify_images)
    chosen, (root, names, labels) = _split(found, data, split)
    numbers = _numbers(pretrained, classes, _classes(pretrained))
    truth_of = {root / name: numbers[label] for name, label in zip(names, labels.tolist(), strict=True)}
    predicted, truth = [], []
    for files, things in read_several(truth_of, partial(read, pretrained), refuse):
        predicted += run(pretrained, things)
        truth += [truth_of[file] for file in files]
    return {**_accuracy(pretrained, predicted, truth), "split": chosen}


def _lines(data: Path, kind: Any, split: str | None) -> tuple[str, dict[Path, tuple[str, ...]]]:
    chosen, lines = _split(open_json_lines(data, kind), data, split)
    return chosen, {lines.root / name: said for name, said in zip(lines.names, lines.texts, strict=True)}


def _written(
    pretrained: Pretrained, files: Any, read: Callable, write: Callable, refuse: Refuse | None
) -> Iterator[tuple[Path, str]]:
    for names, things in read_several(files, partial(read, pretrained), refuse):
        yield from zip(names, write(things), strict=True)


def _speech(pretrained: Pretrained, data: Path, split: str | None, refuse: Refuse | None) -> Metrics:
    chosen, said = _lines(data, SPEECH, split)

    def write(audio):
        return [each.text for each in transcribe(pretrained, audio)]

    found = dict(_written(pretrained, said, read_audio, write, refuse))
    references, transcripts = [said[file][0] for file in found], [*found.values()]
    if not found:
        raise ValueError(f"{data} must have a recording that can be read, got none")
    same = sum(one == other for one, other in zip(references, transcripts, strict=True))
    rates = {
        "wer": 100 * word_edits(references, transcripts).rate,
        "cer": 100 * letter_edits(references, transcripts).rate,
    }
    return {**rates, "exact_match": 100 * same / len(transcripts), "recordings": len(transcripts), "split": chosen}


def _captions(pretrained: Pretrained, data: Path, split: str | None, refuse: Refuse | None) -> Metrics:
    chosen, said = _lines(data, CAPTIONS, split)
    found = dict(_written(pretrained, said, read_image, partial(caption, pretrained), refuse))
    if not found:
        raise ValueError(f"{data} must have an image that can be read, got none")
    scores = caption_scores([*found.values()], [said[file] for file in found])
    return {**scores, "images": len(found), "split": chosen}


def _objects(pretrained: Pretrained, data: Path, split: str | None, refuse: Refuse | None) -> Metrics:
    annotations = find_coco(data)
    if not annotations:
        raise ValueError(f"{data} must have COCO's json with images, annotations and categories, it has none")
    splits, classes, _ = open_coco(data, annotations)
    chosen, scenes = _split(splits, data, split)
    numbers = np.array(_numbers(pretrained, classes, pretrained.model.cfg.classes))
    files = scenes["image"]
    objects = {files.root / name: each for name, each in zip(files.names, scenes["objects"], strict=True)}
    processor, found, truth = image_processor_of(pretrained), [], []
    for (file,), (image,) in read_several(objects, partial(read_image, pretrained), refuse, rows=1):
        output = pretrained(**processor(image))
        logits, boxes = (np.asarray(each, np.float32) for each in (output.logits, output.pred_boxes))
        found += post_process_object_detection(logits, boxes, [(image.height, image.width)], threshold=0.0)
        there = objects[file].truth()
        truth.append({**there, "labels": numbers[there["labels"]]})
    precision = {name: 100 * value for name, value in average_precision(found, truth).items()}
    return {**precision, "images": len(found), "split": chosen}


def _perplexity(pretrained: Pretrained, path: Path) -> Metrics:
    """Compute the perplexity of a text, cut into pieces of as many tokens as the model has positions, 512 at most."""
    tokenizer = tokenizer_of(pretrained)
    ids = np.asarray(tokenizer.encode([read_text(path)])[0], np.int32)
    if len(ids) < 2:
        raise ValueError(f"{path} must have at least two tokens, got {len(ids)}")
    width, total = min(positions_of(pretrained.model.cfg) or 512, 512, len(ids)), 0.0
    starts = range(0, len(ids) - 1, width - 1)
    for start in starts:
        part = ids[start : start + width]
        given = np.pad(part, (0, width - len(part)))[None]
        mask = (np.arange(width) < len(part)).astype(np.int32)[None]
        logits = pretrained(input_ids=given, attention_mask=mask).logits[0, : len(part) - 1].astype(np.float32)
        total -= float(np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), part[1:, None], axis=1).sum())
    return {"perplexity": float(np.exp(total / (len(ids) - 1))), "loss": total / (len(ids) - 1), "tokens": len(ids)}
