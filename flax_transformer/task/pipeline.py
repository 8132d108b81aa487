"""One call for what a checkpoint can do, by the tag that the hub has for it; results have the hub's keys.

>>> pipe = pipeline("fill-mask", "bert-base-uncased")  # doctest: +SKIP
>>> pipe("Paris is the [MASK] of France.")  # doctest: +SKIP
[{'score': 0.99, 'token_str': 'capital', 'sequence': 'paris is the capital of france.'}, …]
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.task.audio_classification import classify_audio
from flax_transformer.task.captioning import caption
from flax_transformer.task.checkpoint import open_checkpoint
from flax_transformer.task.classification import Label
from flax_transformer.task.detection import detect
from flax_transformer.task.embedding import choose, embed
from flax_transformer.task.fill_mask import fill_mask
from flax_transformer.task.image_classification import classify_images
from flax_transformer.task.image_text import respond
from flax_transformer.task.question_answering import answer
from flax_transformer.task.segmentation import Subtask, segment
from flax_transformer.task.speech_recognition import transcribe
from flax_transformer.task.summariser import open_summariser
from flax_transformer.task.text_classification import classify, label_words
from flax_transformer.task.text_generation import TextGenerator, WriterConfig
from flax_transformer.task.translation import open_any_translator
from flax_transformer.task.video_classification import classify_videos
from flax_transformer.task.zero_shot import TEMPLATE, choose_among

Record = dict[str, Any]
BATCH = 32
"""Inputs that are handed over together, where there are many."""


@dataclass(frozen=True, eq=False)
class Pipeline:
    """`pipe(input)` gives the result of one input, `pipe(list)` a list of them, and `pipe(iterator)` an iterator.

    It reads no further than the batch that it answers, so that what is read may be longer than memory.
    """

    task: str
    """The tag."""
    run: Callable[..., list[Any]]
    """`run(inputs, **options)`, of a list."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What calls have where they say nothing else."""
    batch: int = BATCH
    """Inputs that are handed over together."""

    def __call__(self, inputs: Any, **options: Any) -> Any:
        """Answer one input, a list of them, or every one of an iterator, as a generator is.

        Args:
          inputs: texts; for images, videos and recordings files of this machine, or what the task's function takes; for
            "question-answering" mappings of `question` and `context`, for "image-text-to-text" of `text`, which may be
            the messages of a conversation, and `images`, one or a list.
          options: of the task, as `TASKS` lists them.

        Raises:
          TypeError: an option that the task does not have.
          ValueError: an address in place of a file, and what the task's function refuses.
        """
        options = {**self.options, **options}
        if isinstance(inputs, list):
            return list(self._each(inputs, options))
        if isinstance(inputs, Iterator):
            return self._each(inputs, options)
        (found,) = self._each([inputs], options)
        return found

    def _each(self, inputs: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Any]:
        rest = iter(inputs)
        while part := list(itertools.islice(rest, self.batch)):
            for each in part:
                if self.task in FILES and isinstance(each, str) and each.startswith(("http://", "https://")):
                    raise ValueError(f"files are read from this machine, download {each!r:.200} first")
            yield from self.run(part, **options)


def pipeline(task: str, checkpoint: str | os.PathLike | Pretrained, *, batch: int = BATCH, **options: Any) -> Pipeline:
    """Open a checkpoint for a task.

    Args:
      task: a tag of the hub, one of `TASKS`.
      checkpoint: folder, hub id, run folder, or what `hub.load` has returned; for "translation" and "summarization" the
        first three.
      batch: inputs that are handed over together.
      options: what calls have where they say nothing else.

    Raises:
      ValueError: an unknown tag, a batch below 1, or a checkpoint that cannot do this.
      FileNotFoundError: no such checkpoint.
    """
    if task not in TASKS:
        raise ValueError(f"a task must be one of {', '.join(TASKS)}, got {task!r}")
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    return Pipeline(task, TASKS[task](checkpoint), options, batch)


def _on(run: Callable[..., list[Any]]) -> Callable[[Any], Callable[..., list[Any]]]:
    """Open a checkpoint for a function `run(pretrained, inputs, **options)`."""

    def begin(checkpoint: Any) -> Callable[..., list[Any]]:
        known = checkpoint if isinstance(checkpoint, Pretrained) else open_checkpoint(os.fspath(checkpoint))
        return lambda inputs, **options: run(known, inputs, **options)

    return begin


def _scored(rows: Iterable[Sequence[Label]], top_k: int | None) -> list[list[Record]]:
    return [[{"label": each.name, "score": each.probability} for each in row[:top_k]] for row in rows]


def _texts(pretrained: Pretrained, texts: list[str], *, top_k: int | None = 1) -> list[Any]:
    rows = _scored(classify(pretrained, texts), top_k)
    return [row[0] for row in rows] if top_k == 1 else rows


def _ranked(run: Callable[..., Any]) -> Callable[..., list[Any]]:
    return lambda pretrained, files, *, top_k=5: _scored(run(pretrained, files), top_k)


def _words(pretrained: Pretrained, texts: list[str]) -> list[list[Record]]:
    return [
        [
            {"entity": word.label, "score": word.probability, "word": word.text, "start": word.start, "end": word.end}
            for word in label_words(pretrained, text)
        ]
        for text in texts
    ]


def _answers(pretrained: Pretrained, asked: list[Mapping[str, str]]) -> list[Record]:
    found = []
    for each in asked:
        if not isinstance(each, Mapping) or {*each} != {"question", "context"}:
            raise ValueError(f"a question must be a mapping of question and context, got {each!r:.200}")
        best = answer(pretrained, each["question"], each["context"])[0]
        found.append({"score": best.probability, "start": best.start, "end": best.end, "answer": best.text})
    return found


def _filled(pretrained: Pretrained, texts: list[str], *, top_k: int = 5) -> list[Any]:
    found = []
    for text in texts:
        masks = [
            [{"score": each.probability, "token_str": each.token, "sequence": each.text} for each in guesses]
            for guesses in fill_mask(pretrained, text, top_k)
        ]
        found.append(masks[0] if len(masks) == 1 else masks)
    return found


def _among(
    pretrained: Pretrained, texts: list[str], *, candidate_labels: Sequence[str], multi_label: bool = False,
    hypothesis_template: str = TEMPLATE,
) -> list[Record]:  # fmt: skip
    rows = choose_among(pretrained, texts, candidate_labels, template=hypothesis_template, several=multi_label)
    return [
        {"sequence": text, "labels": [each.name for each in row], "scores": [each.probability for each in row]}
        for text, row in zip(texts, rows, strict=True)
    ]


def _images_among(
    pretrained: Pretrained, files: list[Any], *, candidate_labels: Sequence[str],
    hypothesis_template: str = "This is a photo of {}.",
) -> list[list[Record]]:  # fmt: skip
    said = {hypothesis_template.replace("{}", each): each for each in candidate_labels}
    rows = choose(pretrained, files, list(said))
    return [[{"score": each.probability, "label": said[each.name]} for each in row] for row in rows]


def _written(
    pretrained: Pretrained, prompts: list[str], *, return_full_text: bool = True, stop: Sequence[str] = (),
    seed: int = 0, **settings: Any,
) -> list[list[Record]]:  # fmt: skip
    writer = TextGenerator(pretrained, WriterConfig(settings=tuple(settings.items()), stop=tuple(stop), seed=seed))
    before = prompts if return_full_text and writer.continues else [""] * len(prompts)
    rows = writer(prompts)
    return [[{"generated_text": start + text} for text in row] for start, row in zip(before, rows, strict=True)]


def _captions(pretrained: Pretrained, files: list[Any], **settings: Any) -> list[list[Record]]:
    return [[{"generated_text": text}] for text in caption(pretrained, files, **settings)]


def _about_images(pretrained: Pretrained, asked: list[Mapping[str, Any]], **settings: Any) -> list[list[Record]]:
    found = []
    for each in asked:
        if not isinstance(each, Mapping) or not {"text"} <= {*each} <= {"text", "images"}:
            raise ValueError(f"what is asked must be a mapping of text and perhaps images, got {each!r:.200}")
        images = each.get("images", ())
        found.append((list(images) if isinstance(images, list | tuple) else [images], each["text"]))
    return [[{"generated_text": text}] for text in respond(pretrained, found, **settings)]


def _objects(pretrained: Pretrained, images: list[Any], *, threshold: float = 0.5) -> list[list[Record]]:
    sides = ("xmin", "ymin", "xmax", "ymax")
    return [
        [
            {"score": each.probability, "label": each.label, "box": dict(zip(sides, map(int, each.box), strict=True))}
            for each in found
        ]
        for found in detect(pretrained, images, threshold)
    ]


def _regions(
    pretrained: Pretrained, images: list[Any], *, threshold: float = 0.5, subtask: Subtask | None = None
) -> list[list[Record]]:
    import PIL.Image

    rows = []
    for found in segment(pretrained, images, threshold, subtask):
        masks = [PIL.Image.fromarray(np.uint8(255 * (found.numbers == each.number))) for each in found.regions]
        rows.append([
            {"score": each.probability, "label": each.label, "mask": mask}
            for each, mask in zip(found.regions, masks, strict=True)
        ])  # fmt: skip
    return rows


def _speech(
    pretrained: Pretrained, audio: list[Any], *, return_timestamps: bool = False, **options: Any
) -> list[Record]:
    found = []
    for each in transcribe(pretrained, audio, timestamps=return_timestamps, **options):
        pieces = [{"timestamp": (piece.start, piece.end), "text": piece.text} for piece in each.segments]
        found.append({"text": each.text, **({"chunks": pieces} if return_timestamps else {})})
    return found


def _summaries(checkpoint: Any) -> Callable[..., list[Record]]:
    run = open_summariser(_name(checkpoint))
    return lambda texts, **options: [{"summary_text": each.text} for each in run(texts, **options)]


def _translations(checkpoint: Any) -> Callable[..., list[Record]]:
    name, known = _name(checkpoint), {}

    def run(texts: list[str], *, src_lang: str | None = None, tgt_lang: str | None = None) -> list[Record]:
        if (src_lang, tgt_lang) not in known:
            known[src_lang, tgt_lang] = open_any_translator(name, source=src_lang, target=tgt_lang)
        translator, search = known[src_lang, tgt_lang]
        return [{"translation_text": best[0].text} for best in translator(texts, search)]

    return run


def _name(checkpoint: Any) -> str:
    if isinstance(checkpoint, Pretrained):
        raise ValueError("to summarise and to translate takes a folder or hub id, which says more than the model")
    return os.fspath(checkpoint)


TASKS: Mapping[str, Callable[[Any], Callable[..., list[Any]]]] = {
    "text-classification": _on(_texts),
    "token-classification": _on(_words),
    "question-answering": _on(_answers),
    "fill-mask": _on(_filled),
    "zero-shot-classification": _on(_among),
    "feature-extraction": _on(lambda pretrained, texts, **options: list(embed(pretrained, texts, **options))),
    "summarization": _summaries,
    "translation": _translations,
    "text-generation": _on(_written),
    "text2text-generation": _on(_written),
    "image-classification": _on(_ranked(classify_images)),
    "zero-shot-image-classification": _on(_images_among),
    "object-detection": _on(_objects),
    "image-segmentation": _on(_regions),
    "image-to-text": _on(_captions),
    "image-text-to-text": _on(_about_images),
    "video-classification": _on(_ranked(classify_videos)),
    "audio-classification": _on(_ranked(classify_audio)),
    "automatic-speech-recognition": _on(_speech),
}
"""By the hub's tag what opens a checkpoint for it: `run(inputs, **options)`."""

FILES = (
    "image-classification", "zero-shot-image-classification", "object-detection", "image-segmentation",
    "image-to-text", "video-classification", "audio-classification", "automatic-speech-recognition",
)  # fmt: skip
"""Tasks whose inputs are files."""
