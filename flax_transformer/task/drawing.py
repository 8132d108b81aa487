"""What the report of a run draws: what its finished model attends to in some of the samples."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flax_transformer.data.image import decode_image
from flax_transformer.hub import Pretrained
from flax_transformer.report import ImageAttention, Picture
from flax_transformer.report.sample import from_sheet
from flax_transformer.task.attention import LONGEST
from flax_transformer.task.checkpoint import image_processor_of
from flax_transformer.task.image_attention import draw_clip, draw_image, layout_of, reads_both
from flax_transformer.task.text_attention import draw_texts

COUNT = 3
"""Samples that are drawn."""


def draw_samples(
    pretrained: Pretrained, samples: Sequence[dict[str, Any]]
) -> tuple[list[Picture] | None, list[ImageAttention] | None, list[str]]:
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
        if "clips" in pretrained.architecture.inputs.reads:
            films = [each for each in samples if each.get("picture") and each.get("frames")]
            drawn = [_draw_clip(pretrained, each) for each in _spread(films)] if pretrained.processor else []
            images, notes = [image for image, _ in drawn], list(dict.fromkeys(n for _, said in drawn for n in said))
        elif "images" in pretrained.architecture.inputs.reads:
            if layout_of(pretrained) is not None and pretrained.processor is not None:
                drawn = [_draw(pretrained, sample) for sample in _spread([s for s in samples if s.get("picture")])]
                images, notes = [image for image, _ in drawn], list(dict.fromkeys(n for _, said in drawn for n in said))
        elif _reads_alone(pretrained):
            length = lambda text: len(pretrained.tokenizer([text])["input_ids"][0])  # noqa: E731
            sources = [sample["source"] for sample in samples if isinstance(sample.get("source"), str)]
            fitting = [text for text in sources if text.strip() and 0 < length(text) <= LONGEST]
            texts = draw_texts(pretrained, _spread(fitting)) if fitting else None
    except ValueError as error:
        notes.append(f"No attention is shown: {error}.")
    return texts, images or None, notes


def _reads_alone(pretrained: Pretrained) -> bool:
    """Return whether a model reads one text at a time, and writes it on if it writes."""
    known = pretrained.architecture
    two = "decoder_input_ids" in known.inputs.takes or "choose" in known.uses
    return "text" in known.inputs.reads and pretrained.tokenizer is not None and not two


def _draw(pretrained: Pretrained, sample: dict[str, Any]) -> tuple[ImageAttention, list[str]]:
    image = _decoded(pretrained, sample.get("whole", sample["picture"]))
    said = str(sample.get("source", ""))
    return draw_image(_as_it_is(pretrained, image), image, said, said if reads_both(pretrained) else "")


def _draw_clip(pretrained: Pretrained, sample: dict[str, Any]) -> tuple[ImageAttention, list[str]]:
    frames = from_sheet(_decoded(pretrained, sample["picture"]), sample["frames"])
    return draw_clip(_as_it_is(pretrained, frames[0]), frames, str(sample.get("source", "")))


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
