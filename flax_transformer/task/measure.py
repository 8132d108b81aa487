"""How good a checkpoint is on data of a folder or a file: the metric of what it does.

Axes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.data.audio.open import LINES as SPEECH
from flax_transformer.data.folder import open_folders
from flax_transformer.data.image.coco import find_coco, open_coco
from flax_transformer.data.image.image_set import Files
from flax_transformer.data.image.open import image_splits
from flax_transformer.data.image.text import LINES as CAPTIONS
from flax_transformer.data.image.text import open_questions
from flax_transformer.data.json_line import SUFFIXES, open_json_lines
from flax_transformer.data.record import find_split, holds_tables, named_records
from flax_transformer.data.synthetic import AudioData
from flax_transformer.data.video.folder import VIDEOS
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.detection import post_process_object_detection
from flax_transformer.hub.registration import USES
from flax_transformer.metric.average_precision import average_precision
from flax_transformer.metric.caption import caption_scores
from flax_transformer.metric.edit_distance import letter_edits, word_edits
from flax_transformer.task import measure_text
from flax_transformer.task.audio_classification import classify_audio, read_audio
from flax_transformer.task.captioning import caption
from flax_transformer.task.checkpoint import Refuse, image_processor_of, read_several
from flax_transformer.task.classification import Metrics, accuracy, class_count, class_numbers
from flax_transformer.task.embedding import choose, embed, embed_images, unit
from flax_transformer.task.image_classification import classify_images
from flax_transformer.task.image_input import read_image
from flax_transformer.task.retrieval import TOP, best_ranks
from flax_transformer.task.speech_recognition import transcribe
from flax_transformer.task.video_classification import classify_videos, read_video
from flax_transformer.task.visual_question_answering import ask

TABLES, SQUAD, CHOICES = ("tsv", "txt"), ("json", "json.gz"), ("json", "jsonl", "txt", "")
CONLL, TEXT = ("conll", "txt", "tsv", "bio"), ("txt", "txt.gz")
TEXTS: dict[str, tuple[tuple[str, ...], Callable[[Pretrained, Path, Sequence[str]], Metrics]]] = {
    "classification": (TABLES, measure_text.classes),
    "token-classification": (CONLL, measure_text.words),
    "question-answering": (SQUAD, measure_text.answers),
    "multiple-choice": (CHOICES, measure_text.choices),
    "text-generation": (TEXT, measure_text.perplexity),
    "fill-mask": (TEXT, measure_text.masked),
}
"""What a model of texts alone is measured by: how the file of a folder's split may end besides the forms of records,
"" where it may be a folder itself, and the measure."""


SPLITS = "test", "validation", "train"
"""The splits of a folder, the one that is taken before others first."""


def measure(
    pretrained: Pretrained, data: Path, split: str | None = None, refuse: Refuse | None = None,
    columns: Sequence[str] = (),
) -> Metrics:  # fmt: skip
    """Measure a checkpoint by what it can do: accuracy, average precision, error rates, caption scores, perplexity.

    Args:
      data: a file or folder; see `flax-transformer evaluate --help`.
      split: of a folder; the first it has of test, validation and train by default.
      refuse: is told of files that cannot be read, which are left out; without it the first ends it.
      columns: names of those that are read, where records of texts have other names than the usual.

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
    if "visual-question-answering" in uses:
        return _questions(pretrained, _folder(data), split, refuse)
    if "retrieval" in uses:
        return _matches(pretrained, _folder(data), split, refuse)
    if reads == ("text",) and (use := next((each for each in TEXTS if each in uses), None)):
        suffixes, run = TEXTS[use]
        return run(pretrained, split_file(data, split, suffixes), columns)
    raise ValueError(f"nothing is measured of a {name}, which can {', '.join(USES[each] for each in known.uses)}")


def _folder(data: Path) -> Path:
    if not data.is_dir():
        raise ValueError(f"{data} must be a folder, it is a file")
    return data


def split_file(data: Path, split: str | None, suffixes: Sequence[str]) -> Path:
    """Return a file of texts: itself, or that of a folder's split; or a folder of records, or the first of its shards.

    Raises:
      ValueError: a folder without one.
    """
    if not data.is_dir() or (split is None and holds_tables(data) and not named_records(data)):
        return data
    names = {"test": ("test",), "validation": ("validation", "dev"), "train": ("train",)}
    wanted = [name for each in SPLITS if split in (None, each) for name in names[each]]
    for name in wanted:
        files = [data / (f"{name}.{suffix}" if suffix else name) for suffix in suffixes]
        found = next((file for file in files if file.is_file() or (not file.suffix and file.is_dir())), None)
        found = find_split(data, name) if found is None else found
        if found is not None:
            return found
    names = " or ".join(f"{name}.{suffixes[0]}" for name in wanted)
    raise ValueError(f"{data} must have a file {names}, it has none")


def _split(found: Mapping[str, Any], data: Path, split: str | None) -> tuple[str, Any]:
    """Choose a split of those that there are; one of all that is in a folder is called all."""
    chosen = split or next(each for each in SPLITS if each in found)
    if chosen not in found:
        raise ValueError(f"{data} must have a split {chosen}, it has {', '.join(found)}")
    return "all" if split is None and [*found] == ["train"] else chosen, found[chosen]


def _class_folders(pretrained: Pretrained, data: Path, split: str | None, refuse: Refuse | None) -> Metrics:
    reads = pretrained.architecture.inputs.reads
    if "images" in reads:
        chosen, classes, truth_of = _labelled_images(data, split)
        read, run = partial(_image, pretrained), classify_images
    elif "audio" in reads:
        sets, classes = AudioData(root=str(data)).found()
        chosen, table = _split(sets, data, split)
        files = table["audio"]
        truth_of = _by_file(files.root, files.names, table["label"])
        read, run = partial(read_audio, pretrained), classify_audio
    else:
        sets, classes = open_folders(data, VIDEOS)
        chosen, files = _split(sets, data, split)
        truth_of = _by_file(*files)
        read, run = partial(read_video, pretrained), classify_videos
    numbers = class_numbers(pretrained, classes, class_count(pretrained))
    predicted, truth = [], []
    for keys, things in read_several(truth_of, read, refuse):
        predicted += run(pretrained, things)
        truth += [numbers[truth_of[key]] for key in keys]
    return {**accuracy(pretrained, predicted, truth), "split": chosen}


def _by_file(root: Path, names: Sequence[Any], labels: Any) -> dict[Any, int]:
    return {root / name: label for name, label in zip(names, labels.tolist(), strict=True)}


@dataclass(frozen=True)
class _Row:
    """An image of a table that has no file of its own."""

    table: Any
    number: int

    def __fspath__(self) -> str:
        return self.table.name(self.number)


def _labelled_images(data: Path, split: str | None) -> tuple[str, tuple[str, ...], dict[Any, int]]:
    """Find the labelled images of a split in any form, its classes, and the class of each."""
    found = image_splits(data)
    if found.kind != "classes":
        raise ValueError(f"{data} must have images with classes, it has images with {found.kind}")
    chosen, table = _split(found.splits, data, split)
    images = table["image"]
    if isinstance(images, Files):
        return chosen, found.classes, _by_file(images.root, images.names, table["label"])
    return chosen, found.classes, {_Row(images, i): int(label) for i, label in enumerate(table["label"])}


def _image(pretrained: Pretrained, file: Any) -> Any:
    return file.table[file.number] if isinstance(file, _Row) else read_image(pretrained, file)


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


def _questions(pretrained: Pretrained, data: Path, split: str | None, refuse: Refuse | None) -> Metrics:
    """Compute how many questions about images are answered rightly: by one of the answers that lines say are right."""
    chosen, asked = _split(open_questions(data), data, split)
    files, of = asked["image"].source, asked["image"].of
    number_of = {files.root / name: number for number, name in enumerate(files.names)}
    right = []
    for (file,), (image,) in read_several(number_of, partial(read_image, pretrained), refuse, rows=1):
        rows = np.flatnonzero(of == number_of[file]).tolist()
        found = ask(pretrained, image, [asked["question"][row] for row in rows])
        right += [labels[0].name in asked["answers"][row] for labels, row in zip(found, rows, strict=True)]
    if not right:
        raise ValueError(f"{data} must have an image that can be read, got none")
    return {"accuracy": 100 * sum(right) / len(right), "questions": len(right), "split": chosen}


def _matches(pretrained: Pretrained, data: Path, split: str | None, refuse: Refuse | None) -> Metrics:
    """Compute the recall of images by their captions and the other way; of class folders the zero-shot accuracy."""
    if any(path.suffix in SUFFIXES for path in data.glob("*")):
        chosen, said = _lines(data, CAPTIONS, split)
        found = dict(_written(pretrained, said, read_image, partial(embed_images, pretrained), refuse))
        if not found:
            raise ValueError(f"{data} must have an image that can be read, got none")
        texts = [text for file in found for text in said[file]]
        belong = np.repeat(np.arange(len(found)), [len(said[file]) for file in found])
        right = belong[:, None] == np.arange(len(found))
        scores = embed(pretrained, texts) @ unit(np.stack([*found.values()])).T
        ranks = {"texts": best_ranks(scores, right), "images": best_ranks(scores.T, right.T)}
        recalls = {f"{side}_r{k}": 100 * float((of < k).mean()) for side, of in ranks.items() for k in TOP}
        return {**recalls, "images": len(found), "texts": len(texts), "split": chosen}
    chosen, classes, truth_of = _labelled_images(data, split)
    prompts, right = [*map(prompt, classes)], []
    for files, images in read_several(truth_of, partial(_image, pretrained), refuse):
        best = choose(pretrained, images, prompts)
        right += [labels[0].name == prompts[truth_of[file]] for file, labels in zip(files, best, strict=True)]
    if not right:
        raise ValueError(f"{data} must have an image that can be read, got none")
    return {"accuracy": 100 * sum(right) / len(right), "rows": len(right), "split": chosen}


def prompt(name: str) -> str:
    """Return the text that stands for a class in zero-shot classification (Radford et al. 2021).

    >>> prompt("golden_retriever")
    'a photo of a golden retriever.'
    """
    return f"a photo of a {name.replace('_', ' ')}."


def _objects(pretrained: Pretrained, data: Path, split: str | None, refuse: Refuse | None) -> Metrics:
    annotations = find_coco(data)
    if not annotations:
        raise ValueError(f"{data} must have COCO's json with images, annotations and categories, it has none")
    splits, classes, _ = open_coco(data, annotations)
    chosen, scenes = _split(splits, data, split)
    numbers = np.array(class_numbers(pretrained, classes, pretrained.model.cfg.classes))
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
