"""Texts of all lengths in batches of few shapes: each is a program to compile, and padding costs time.

Axes: B texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.call import Inputs, plain_call, read_texts
from flax_transformer.task.checkpoint import positions_of, read_length, tokenizer_of

WIDTHS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""How wide batches are; wider ones are multiples of 512."""
TOKENS = 2_048
"""Of a batch, padding included."""


def encode_texts(
    pretrained: Pretrained, texts: Sequence[str], pairs: Sequence[str] | None = None, *, cut: bool | str = True
) -> list[Any]:
    """Encode texts, or pairs of texts, each by itself; what is longer than the checkpoint reads is cut.

    Args:
      cut: of a pair which text is cut, `only_first` or `only_second`; True: the longer one.
    """
    room = read_length(pretrained)
    call = plain_call(pairs=pairs, max_length=room, truncate=cut if room is not None else False)
    inputs, call = read_texts(list(texts), call)
    return tokenizer_of(pretrained).encode_rows(inputs, call)


def padded_batches(pretrained: Pretrained, rows: Sequence[Any]) -> Iterator[tuple[Int[np.ndarray, " B"], Inputs]]:
    """Give what `encode_texts` gave as inputs of a model, texts of like length together: their numbers, and the inputs.

    The last batch may have a text several times, so that it has one of few shapes too. A tokenizer without a padding
    token pads with token 0, which the attention mask hides. No batch is wider than the model has positions.
    """
    tokenizer, room = tokenizer_of(pretrained), positions_of(pretrained.model.cfg)
    tokenizer = replace(tokenizer, pad=0) if tokenizer.pad is None else tokenizer
    for numbers, width in batches([len(row.ids) for row in rows], room=room):
        yield numbers, tokenizer.pad_rows([rows[i] for i in numbers], plain_call(padding=width))


def width_of(length: int) -> int:
    """Return the width of the batch that a text of so many tokens is in.

    >>> width_of(17), width_of(600)
    (24, 1024)
    """
    return next((width for width in WIDTHS if length <= width), -(-length // WIDTHS[-1]) * WIDTHS[-1])


def batches(
    lengths: Sequence[int], tokens: int = TOKENS, room: int | None = None
) -> Iterator[tuple[Int[np.ndarray, " B"], int]]:
    """Share texts out to batches, the shortest first: their numbers, and how wide each batch is.

    A batch of one width has as many rows as its tokens allow. Those that are left over of a width go to the next one;
    the last of all are as many rows as a power of two, of which the last text fills up what is empty.

    Args:
      room: no batch is wider; at least the longest text.

    >>> [(numbers.tolist(), width) for numbers, width in batches([3, 9, 5], tokens=16)]
    [([0, 2], 8), ([1], 16)]
    """
    order = np.argsort(lengths, kind="stable")
    widths = np.array([width_of(int(lengths[i])) for i in order], np.int32)
    widths = widths if room is None else np.minimum(widths, room)
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
