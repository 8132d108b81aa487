"""Texts about images: answers of models that read images among the tokens of a text."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.interleave import Message, interleaved_inputs, prompt_about
from flax_transformer.task.checkpoint import File, image_processor_of, positions_of, require_use, tokenizer_of
from flax_transformer.task.image_input import read_image

LONGEST = 256
"""Tokens of an answer at most, where nothing else is said."""
DESCRIBE = "Describe this image."
"""What is asked of an image, where nothing else is."""

Asked = tuple[Sequence[File | Any], str | Sequence[Message]]
"""Images, and a text about them or a conversation."""


def reads_among(pretrained: Pretrained) -> bool:
    """Return whether a checkpoint reads images among the tokens of a text."""
    return pretrained.architecture.inputs.interleaved


def respond(
    pretrained: Pretrained, asked: Sequence[Asked], *, max_new_tokens: int | None = None, **settings: Any
) -> list[str]:
    """Answer texts about images, one or several of each text, or none.

    Args:
      asked: for each answer images, files or Pillow's, and a text, which the checkpoint's chat template puts after
        them; or a conversation, whose messages have `{"type": "image"}` where the images are, in order.
      max_new_tokens: of an answer at most; 256 by default.
      settings: of generation, as `hub.generate` takes them; the checkpoint's own by default.

    Raises:
      ValueError: a checkpoint of another kind, without an image processor or a tokenizer; a file that is no image;
        texts with marks that are not as many as their images; an empty text.
    """
    require_use(pretrained, "text-generation", "images")
    if not reads_among(pretrained):
        name = pretrained.config["architectures"][0]
        raise ValueError(f"a {name} reads images before a text, not among its words: `captioning.caption` writes it")
    tokenizer, processor = tokenizer_of(pretrained), image_processor_of(pretrained)
    found: list[str] = []
    room = positions_of(pretrained.model.cfg)
    for images, text in asked:  # one by one, as their images are of any size
        if not text or (isinstance(text, str) and not text.strip()):
            raise ValueError("an image is asked about in words, got none")
        seen = [each if hasattr(each, "getbands") else read_image(pretrained, each) for each in images]
        inputs = interleaved_inputs(tokenizer, processor, [prompt_about(tokenizer, text, len(seen))], seen)
        before = inputs["input_ids"].shape[1]
        most = LONGEST if max_new_tokens is None else max_new_tokens
        most = most if room is None else max(min(most, room - before), 1)
        written = np.asarray(pretrained.generate(**inputs, max_new_tokens=most, **settings))
        found += [each.strip() for each in tokenizer.decode(written[:1, before:])]
    return found


def describe(pretrained: Pretrained, files: Sequence[File | Any], prompt: str = DESCRIBE, **settings: Any) -> list[str]:
    """Answer one text about each of several images; the rest as `respond`."""
    return respond(pretrained, [([each], prompt) for each in files], **settings)
