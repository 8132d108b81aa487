"""Answer questions by spans of a passage, however long it is."""

from dataclasses import replace

import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.task.answer_span import Answer, AnswerConfig, find_answers
from flax_transformer.task.use.require import positions_of, require_use, tokenizer_of

WINDOW, STRIDE = 384, 128
"""Tokens of a window, and of its overlap with the next, that BERT has for SQuAD."""
ROWS = 8
"""Windows that are read together."""


def answer(
    pretrained: Pretrained,
    question: str,
    context: str,
    config: AnswerConfig = AnswerConfig(),
    *,
    max_length: int | None = None,
    stride: int | None = None,
) -> list[Answer]:
    """Find the answers to a question in a passage, the best first.

    Args:
      pretrained: a model that scores tokens as ends of an answer.
      question: what is asked.
      context: the passage; one longer than a window is read in overlapping windows.
      config: how answers are chosen.
      max_length: tokens of a window, question and special tokens included; 384, or what the model has.
      stride: tokens that neighbouring windows share; 128, or a quarter of a window.

    Raises:
      ValueError: a checkpoint of another kind, an empty question or passage, or a question that fills the window.
    """
    require_use(pretrained, "span")
    tokenizer = tokenizer_of(pretrained, question, context)
    if not question.strip() or not context.strip():
        raise ValueError("a question and a passage must not be empty")
    limits = [limit for limit in (tokenizer.model_max_length, positions_of(pretrained.model.cfg)) if limit]
    width = min([WINDOW, *limits]) if max_length is None else max_length
    windows = tokenizer.encode_windows(question, context, width, min(STRIDE, width // 4) if stride is None else stride)
    starts, ends = [], []
    count = len(windows.inside)
    for i in range(0, count, ROWS):
        output = pretrained(**{name: value[i : i + ROWS] for name, value in windows.inputs.items()})
        starts.append(np.asarray(output.start_logits.astype(np.float32)))
        ends.append(np.asarray(output.end_logits.astype(np.float32)))
    first = windows.inputs["attention_mask"].argmax(1)
    found = find_answers(
        context, np.concatenate(starts), np.concatenate(ends), windows.offsets, windows.inside, config, first
    )
    return list(map(_trimmed, found))


def _trimmed(found: Answer) -> Answer:
    """Leave out spaces around an answer, which tokens of bytes have as their own."""
    text = found.text.strip()
    start = found.start + len(found.text) - len(found.text.lstrip())
    return replace(found, text=text, start=start, end=start + len(text))
