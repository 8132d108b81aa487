"""Vectors of texts by a sentence encoder: prompts, texts cut to its length, batches of few shapes.

Axes: B texts, T positions, E width of vectors.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.call import Call, read_call
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.sentence_folder import lengths_of, prompts_of
from flax_transformer.listing import listed
from flax_transformer.task.checkpoint import positions_of, tokenizer_of

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""How wide batches are; wider ones are multiples of 512."""
TOKENS = 2_048
"""Of a batch, padding included."""
CHUNK = 16_384
"""Texts that are tokenised, and sorted by their lengths, at a time."""


def is_sentence_encoder(pretrained: Pretrained) -> bool:
    """Return whether a checkpoint gives vectors of texts by itself."""
    return "sentence-similarity" in pretrained.architecture.uses


def resolve_prompt(pretrained: Pretrained, prompt: str | None) -> str:
    """Return the text that is put before others: the checkpoint's of that name, its default, or the text that is given.

    Raises:
      ValueError: a word that is no name of a prompt, of a checkpoint that has some.
    """
    prompts, default = prompts_of(pretrained.config)
    if prompt is None:
        return "" if default is None else prompts[default]
    if prompt in prompts:
        return prompts[prompt]
    if any(prompts.values()) and re.fullmatch(r"\w+", prompt):
        raise ValueError(
            f"a prompt must be the name of one, {listed(prompts)}, or a text with a space or a colon at its end, got "
            f"{prompt!r}"
        )
    return prompt


def embed_sentences(
    pretrained: Pretrained, texts: Sequence[str], prompt: str | None = None
) -> Float[np.ndarray, "B E"]:
    """Return the vector of each text, as `SentenceTransformer.encode` of sentence-transformers gives it.

    Texts longer than the checkpoint's max_seq_length are cut. They are sorted by their lengths, so that there is little
    padding, and put into batches of few shapes, each compiled once.

    Args:
      prompt: put before each text: the name of one of the checkpoint's prompts, or a text; its default if None.

    Raises:
      ValueError: as `resolve_prompt`; a checkpoint without a tokenizer.
    """
    tokenizer, before = tokenizer_of(pretrained, *texts), resolve_prompt(pretrained, prompt)
    lengths = lengths_of(pretrained.config)
    tokenizer = replace(tokenizer, pad=0) if tokenizer.pad is None else tokenizer
    limits = [lengths.most or tokenizer.model_max_length, positions_of(pretrained.model.cfg)]
    room = min((limit for limit in limits if limit), default=None)
    call = _call(max_length=room, truncate=room is not None)
    texts = [text.lower() if lengths.lower else text for text in (before + text for text in texts)]
    given = {}
    if before and not pretrained.model.cfg.head.include_prompt:
        given["prompt_length"] = np.int32(_count_prompt(tokenizer, before.lower() if lengths.lower else before, call))
    vectors = np.empty((len(texts), pretrained.model.cfg.head.width), np.float32)
    for start in range(0, len(texts), CHUNK):
        rows = tokenizer.encode_rows(texts[start : start + CHUNK], call)
        for numbers, width in batches([len(row.ids) for row in rows]):
            inputs = tokenizer.pad_rows([rows[i] for i in numbers], _call(padding=width))
            pretrained.check_ids("input_ids", inputs["input_ids"])
            found = _vectors(pretrained, {**inputs, **given})
            kept = np.unique(numbers, return_index=True)
            vectors[start + kept[0]] = np.asarray(found)[kept[1]]
    return vectors


@jax.jit
def _vectors(pretrained: Pretrained, inputs: Mapping[str, Any]) -> jax.Array:
    return pretrained(**inputs).sentence_embedding.astype(np.float32)


def _call(**given: Any) -> Call:
    usual = {"pairs": None, "max_length": None, "padding": "longest", "side": None, "truncate": False}
    return read_call({**usual, **given}, {}, None)


def _count_prompt(tokenizer: HubTokenizer, prompt: str, call: Call) -> int:
    """Count the tokens of a prompt with the marks before it, but not the mark that ends a text."""
    (row,) = tokenizer.encode_rows([prompt], call)
    return len(row.ids) - bool(row.special_tokens_mask[-1])


def width_of(length: int) -> int:
    """Return the width of the batch that a text of so many tokens is in.

    >>> width_of(17), width_of(600)
    (24, 1024)
    """
    return next((width for width in WIDTHS if length <= width), -(-length // WIDTHS[-1]) * WIDTHS[-1])


def batches(
    lengths: Sequence[int] | Int[np.ndarray, " N"], tokens: int = TOKENS
) -> Iterator[tuple[Int[np.ndarray, " B"], int]]:
    """Share texts out to batches, the shortest first: their numbers, and how wide each batch is.

    A batch of one width has as many rows as its tokens allow. Those that are left over of a width go to the next one;
    the last of all are as many rows as a power of two, of which the last text fills up what is empty.

    >>> [(numbers.tolist(), width) for numbers, width in batches([3, 9, 5], tokens=16)]
    [([0, 2], 8), ([1], 16)]
    """
    order = np.argsort(lengths, kind="stable")
    widths = np.array([width_of(int(lengths[i])) for i in order], np.int32)
    at = 0
    while at < len(order):
        width = int(widths[at])
        rows = max(tokens // width, 1)
        if widths[min(at + rows, len(order)) - 1] > width:  # fewer are left: they go with the next
            following = widths[widths > width]
            width = int(following[0])
            rows = max(tokens // width, 1)
            if widths[min(at + rows, len(order)) - 1] > width:
                widths[widths < width] = width
                continue
        taken = order[at : at + rows]
        at += len(taken)
        full = rows if len(taken) == rows else min(1 << (len(taken) - 1).bit_length(), rows)
        yield np.pad(taken, (0, full - len(taken)), mode="edge"), width
