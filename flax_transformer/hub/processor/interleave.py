"""Texts with images among their words: prompts with a mark for each image, and as many tokens in its place as a model
has outputs for it.

Axes: B texts, T tokens, N images of all texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

BEGIN, PAD, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
"""The marks of Qwen2-VL: around an image, and in the place of each of its outputs."""

Message = Mapping[str, Any]


def expand_images(texts: Sequence[str], grids: Int[np.ndarray, "N 3"], *, merge: int = 2, pad: str = PAD) -> list[str]:
    """Repeat the mark of each image, text by text, once for each square of patches that the model merges.

    Args:
      grids: times, rows and columns of patches of each image, as `image_grid_thw` of an image processor.
      merge: patches on each side of a square.

    Raises:
      ValueError: texts with more or fewer marks than there are images.

    >>> expand_images(["a <|image_pad|> b"], np.array([[1, 2, 6]]))
    ['a <|image_pad|><|image_pad|><|image_pad|> b']
    """
    marks = sum(text.count(pad) for text in texts)
    if marks != len(grids):
        raise ValueError(f"a text must have {pad} once for each image, got {marks} for {len(grids)} images")
    counts, found = iter(np.asarray(grids).prod(-1) // merge**2), []
    for text in texts:
        first, *rest = text.split(pad)
        found.append(first + "".join(pad * int(next(counts)) + part for part in rest))
    return found


def interleaved_inputs(
    tokenizer: Any, processor: Any, texts: Sequence[str], images: Sequence[Any], *, side: str = "left"
) -> dict[str, np.ndarray]:
    """Make a model's inputs of texts, each with `<|image_pad|>` once for each image, and of their images in order.

    Args:
      tokenizer: a `HubTokenizer` that has the marks among its tokens.
      processor: an `ImageProcessor` that packs patches.
      side: where shorter texts are padded.

    Raises:
      ValueError: marks that are not as many as the images, or that the tokenizer does not have.
    """
    seen: dict[str, np.ndarray] = {}
    if images:
        seen = processor(list(images))
        if tokenizer.engine.token_to_id(PAD) is None:
            raise ValueError(f"an image stands where {PAD} is, which the tokenizer does not have")
    grids = seen.get("image_grid_thw", np.zeros((0, 3), np.int32))
    whole = expand_images(texts, grids, merge=processor.batch.merge if images else 1)
    return {**tokenizer(whole, side=side, add_special_tokens=False), **seen}


def prompt_about(tokenizer: Any, text: str | Sequence[Message], images: int) -> str:
    """Write a text about so many images, or a conversation, as the checkpoint's chat template has it.

    Without a template a text stands after its images, each between its marks. A text with marks of its own is taken as
    it is.

    Args:
      text: a question; or messages, objects with role and content, of which a content is a list of `{"type": "image"}`
        and `{"type": "text", "text": …}`.

    Raises:
      ValueError: a conversation without a chat template.
    """
    if isinstance(text, str):
        if PAD in text:
            return text
        if not tokenizer.chat_templates:
            return f"{BEGIN}{PAD}{END}" * images + text
        content = [*({"type": "image"} for _ in range(images)), {"type": "text", "text": text}]
        text = [{"role": "user", "content": content}]
    return tokenizer.apply_chat_template(text, tokenize=False, add_generation_prompt=True)
