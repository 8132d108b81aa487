"""Texts with a teacher: what another checkpoint says of every training batch, of its layers too.

Axes: B rows, T positions, M masked tokens a row, E classes, V vocabulary, D width, N heads, H head width.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax

from flax_transformer import hub
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.objective import LayerLoss
from flax_transformer.objective.distil import Asked
from flax_transformer.objective.layer import layer_values, width_of
from flax_transformer.objective.layer_term import take_layer
from flax_transformer.objective.token import looked_at
from flax_transformer.task.checkpoint import require_use, tokenizer_of
from flax_transformer.task.distillation import TaughtStream, check_classes
from flax_transformer.task.fill_mask import MaskedTexts, TextLines
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.spec import longest
from flax_transformer.task.text_classification import LabelledTexts

MARKS = ("pad", "cls", "sep", "mask", "unk")
"""Special tokens that student and teacher must have alike."""


@frozen
class TaughtTexts(LabelledTexts):
    """Lay out labelled texts as `LabelledTexts` does; a training batch has what the objective asks of a teacher too.

    It is `teacher` in the batch: `logits` [B, E], and of layers what `LayerLoss` says. A new student has the teacher's
    tokenizer. Words that are hidden are hidden from the teacher too.
    """

    teacher: str = ""
    """Checkpoint of a classifier of the same classes, a folder or hub id, such as a run's `export`; empty: none."""

    def open(self, data: Any, context: Context) -> Opened:
        """Open the texts and the teacher.

        Raises:
          ValueError: a teacher that does not classify, or has other classes, another tokenizer, too few positions, or
            not the layers that are asked for.
        """
        found = super().open(data, _with_tokenizer(context, self.teacher))
        return _taught(found, self.teacher, context, self.positions, "classification")


@frozen
class TaughtMaskedTexts(MaskedTexts):
    """Mask tokens as `MaskedTexts` does; a training batch has what the objective asks of a teacher too.

    It is `teacher` in the batch: `logits` of the masked tokens [B, M, V], and of layers what `LayerLoss` says. A new
    student has the teacher's tokenizer.
    """

    teacher: str = ""
    """Checkpoint of a masked language model, a folder or hub id, such as a run's `export`; empty: none."""

    def open(self, data: TextLines, context: Context) -> Opened:
        """Open the text and the teacher.

        Raises:
          ValueError: as `TaughtTexts.open`, of a teacher that must predict masked tokens.
        """
        found = super().open(data, _with_tokenizer(context, self.teacher))
        return _taught(found, self.teacher, context, self.positions, "fill-mask")


def _with_tokenizer(context: Context, teacher: str) -> Context:
    """Let a new student have the tokenizer of its teacher."""
    return replace(context, init=context.init or teacher)


def _taught(found: Opened, name: str, context: Context, length: int, use: str) -> Opened:
    """Return open data with a teacher's answers in the batches of training."""
    if not name:
        print("no teacher: the labels alone are learned", flush=True)
        return found
    teacher = hub.load(name)
    require_use(teacher, use, "text")
    if use == "classification":
        check_classes(name, teacher, found.spec)
    _check_tokenizer(name, tokenizer_of(teacher), found.tokenizer)
    if (room := longest(teacher.model.cfg)) is not None and length > room:
        raise ValueError(f"a teacher must have the positions of a row, {length}, {name} has {room}")
    asked = getattr(context.objective, "asked", ())
    if not asked:
        raise ValueError(
            f"with a teacher the objective must ask something of it, got {type(context.objective).__name__}"
        )
    answer = _answers(asked)
    try:
        jax.eval_shape(answer, teacher.model, found.batches.make(0))
    except ValueError as error:
        raise ValueError(f"teacher {name}: {error}") from error
    objective = dict(found.objective)
    if isinstance(context.objective, LayerLoss) and any(what == "hidden_states" for what, _ in asked):
        objective["width"] = width_of(teacher.model.cfg)
    return replace(found, batches=TaughtStream(found.batches, name, teacher, answer), objective=objective)


def _answers(asked: Asked) -> Callable[[Any, Mapping[str, Any]], dict[str, Any]]:
    """Return what computes a teacher's answers to a batch: of logits an array, of layers one for each that is asked."""
    names = tuple(dict.fromkeys(name for name, _ in asked if name != "logits"))

    def answer(model: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
        hidden, values = layer_values(model, batch["inputs"], names)
        said: dict[str, Any] = {name: {} for name in names}
        for name, number in asked:
            if name == "logits":
                output = model.output(looked_at(hidden, batch))
                said["logits"] = output.logits() if hasattr(output, "logits") else output
            else:
                said[name][str(number)] = take_layer(values[name], number, name)
        return said

    return answer


def _check_tokenizer(name: str, teacher: HubTokenizer, student: HubTokenizer) -> None:
    """Refuse a teacher that reads other tokens than the student.

    Raises:
      ValueError: names the first token, or special token, that differs.
    """
    ours, theirs = (each.engine.get_vocab(with_added_tokens=True) for each in (student, teacher))
    rule = f"student and teacher must have one tokenizer, {name}"
    if ours != theirs:
        token = min(set(ours.items()) ^ set(theirs.items()), key=lambda item: item[1])[0]
        raise ValueError(
            f"{rule} has {len(theirs):,} tokens, the student {len(ours):,}; the first that differs is {token!r}: "
            f"{theirs.get(token, 'none')} and {ours.get(token, 'none')}"
        )
    for mark in MARKS:
        if getattr(student, mark) != getattr(teacher, mark):
            raise ValueError(
                f"{rule} has {getattr(teacher, mark)} as {mark}_token, the student {getattr(student, mark)}"
            )
