"""How good a checkpoint of texts is on a file: classes, entities, answers, masked tokens, tokens that come next.

Axes: B rows, T tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float, Int, Shaped

from flax_transformer.data.text.annotated import read_questions, read_words
from flax_transformer.data.text.choice import read_choices
from flax_transformer.data.text.labelled import read_labels
from flax_transformer.data.text.plain import read_running
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.listing import listed
from flax_transformer.metric.entity import entity_scores, is_entity_scheme
from flax_transformer.task.checkpoint import positions_of, tokenizer_of
from flax_transformer.task.classification import Metrics, accuracy, class_count, class_numbers, label_names
from flax_transformer.task.fill_mask import masking_tokenizer
from flax_transformer.task.multiple_choice import choose_answer
from flax_transformer.task.question_answering import AnswerConfig, answer, squad_scores
from flax_transformer.task.text_classification import classify, label_words

WIDTH = 512
"""Tokens of a piece of a text at most."""
ROWS = 8
"""Pieces that are read together."""
MULTIPLE = 32
"""Texts are padded to a multiple of so many tokens, as every length is a program to compile."""
SHARE = 0.15
"""How many tokens of a text are masked (Devlin et al. 2019)."""


def classes(pretrained: Pretrained, path: Path, columns: Sequence[str] = ()) -> Metrics:
    """Compute the accuracy on labelled texts, or pairs of texts, as `read_labels` has them."""
    *texts, labels = zip(*read_labels(path, columns), strict=True)
    names = list(dict.fromkeys(labels))
    if len(names) == len(labels) > 2:
        raise ValueError(f"{path} must have labelled texts, but its {len(names):,} labels all differ, as ids do")
    number_of = dict(zip(names, class_numbers(pretrained, names, class_count(pretrained)), strict=True))
    return accuracy(pretrained, classify(pretrained, *texts, multiple=MULTIPLE), [number_of[label] for label in labels])


def words(pretrained: Pretrained, path: Path, columns: Sequence[str] = ()) -> Metrics:
    """Compute the accuracy of words, and of entities where labels say them, on what `read_words` reads.

    A word has the label of its first piece.
    """
    sentences = read_words(path, columns)
    names = list(dict.fromkeys(label for each in sentences for label in each.labels))
    known = dict(zip(names, class_numbers(pretrained, names, class_count(pretrained)), strict=True))
    called = label_names(pretrained, class_count(pretrained))
    spelled, none = {called[number]: name for name, number in known.items()}, "O" if is_entity_scheme(names) else ""
    predicted = []
    for each in sentences:
        begins = np.cumsum([0, *(len(word) + 1 for word in each.words[:-1])]).tolist()
        at = {word.start: word.label for word in label_words(pretrained, " ".join(each.words), multiple=MULTIPLE)}
        found = [at.get(begin, none) for begin in begins]
        predicted.append([spelled.get(label, label) for label in found])
    truth = [list(each.labels) for each in sentences]
    right = [one == other for pair in zip(predicted, truth, strict=True) for one, other in zip(*pair, strict=True)]
    labels = [*names, *(label for each in predicted for label in each)]
    scores = entity_scores(predicted, truth) if is_entity_scheme(labels) else {}
    return {**scores, "accuracy": 100 * sum(right) / len(right), "words": len(right), "sentences": len(sentences)}


def answers(pretrained: Pretrained, path: Path, columns: Sequence[str] = ()) -> Metrics:
    """Compute exact match and F1 on what `read_questions` reads; where some have no answer, none may be given too."""
    questions = read_questions(path, columns)
    config = AnswerConfig(threshold=None if all(each.answers for each in questions) else 0.0)
    found = [answer(pretrained, each.question, each.context, config, multiple=MULTIPLE) for each in questions]
    scores = squad_scores([each[0].text if each else "" for each in found], [each.answers for each in questions])
    return {**scores, "questions": len(questions)}


def choices(pretrained: Pretrained, path: Path, columns: Sequence[str] = ()) -> Metrics:
    """Compute the accuracy on questions with answers to choose from, in RACE's form, DREAM's or lines of their own.

    Args:
      path: as `read_choices` has it.
    """
    questions = read_choices(path, columns)
    if not questions:
        raise ValueError(f"{path} must have questions, it has none")
    found = [choose_answer(pretrained, *each[:3], multiple=MULTIPLE)[0].name for each in questions]
    right = sum(name == each.answers[each.label] for name, each in zip(found, questions, strict=True))
    return {"accuracy": 100 * right / len(questions), "questions": len(questions)}


def perplexity(pretrained: Pretrained, path: Path, columns: Sequence[str] = ()) -> Metrics:
    """Compute the perplexity of a text, cut into pieces of as many tokens as the model has positions, 512 at most."""
    ids, room = _ids(pretrained, path, columns, tokenizer_of(pretrained))
    width, total = min(room, len(ids)), 0.0
    for rows, mask in _pieces(ids, width, width - 1):
        logits = pretrained(input_ids=rows, attention_mask=mask).logits[:, :-1]
        total += _lost(logits, rows[:, 1:])[mask[:, 1:] > 0].sum()
    loss = float(total) / (len(ids) - 1)
    return {"perplexity": float(np.exp(loss)), "loss": loss, "tokens": len(ids)}


def masked(pretrained: Pretrained, path: Path, columns: Sequence[str] = ()) -> Metrics:
    """Compute the loss and accuracy of masked tokens of a text, which are 15 % of it, the same every time."""
    tokenizer = masking_tokenizer(tokenizer_of(pretrained), pretrained.config["architectures"][0])
    ids, room = _ids(pretrained, path, columns, tokenizer, least=1)
    width, draw, losses, right = min(room - 2, len(ids)), np.random.default_rng(0), [], []
    for rows, mask in _pieces(ids, width, width):
        around = ((0, 0), (1, 1))
        rows = np.pad(np.where(mask > 0, rows, tokenizer.pad), around, constant_values=tokenizer.pad)
        ends = 1 + mask.sum(1)
        rows[:, 0], rows[np.arange(len(rows)), ends] = tokenizer.cls, tokenizer.sep
        inside = np.pad(mask, around) > 0
        hidden = inside & (draw.random(rows.shape) < SHARE)
        hidden[np.arange(len(rows)), 1 + (draw.random(len(rows)) * (ends - 1)).astype(int)] |= inside.any(1)
        seen = np.arange(rows.shape[1]) <= ends[:, None]
        given = {"input_ids": np.where(hidden, tokenizer.mask, rows), "attention_mask": seen.astype(np.int32)}
        output = pretrained(**given)
        logits = output.prediction_logits if output.logits is None else output.logits
        losses.append(_lost(logits, rows)[hidden])
        right.append((np.asarray(logits.argmax(-1)) == rows)[hidden])
    loss = float(np.concatenate(losses).mean())
    share = 100 * float(np.concatenate(right).mean())
    return {"accuracy": share, "loss": loss, "perplexity": float(np.exp(loss)), "tokens": sum(map(len, losses))}


def _ids(
    pretrained: Pretrained, path: Path, columns: Sequence[str], tokenizer: HubTokenizer, *, least: int = 2
) -> tuple[Int[np.ndarray, "_"], int]:
    """Return the tokens of a text without marks, and how many a piece may have."""
    if len(columns) > 1:
        raise ValueError(f"running text has one column, got {listed(columns)}")
    ids = np.asarray(tokenizer.encode(["".join(read_running(path, *columns))])[0], np.int32)
    if len(ids) < least:
        raise ValueError(f"{path} must have at least {'two tokens' if least > 1 else 'one token'}, got {len(ids)}")
    return ids, min(positions_of(pretrained.model.cfg) or WIDTH, WIDTH)


def _pieces(ids: Int[np.ndarray, "_"], width: int, step: int) -> Iterator[tuple[Int[np.ndarray, "B T"], ...]]:
    """Cut a text into rows, some at a time, each batch of one shape; the mask is 1 where there is a token."""
    last = len(ids) if step == width else len(ids) - 1  # pieces that share a token end with the text's last pair
    starts = np.arange(0, last, step)
    rows = min(ROWS, len(starts))
    for begin in range(0, len(starts), rows):
        here = starts[begin : begin + rows]
        places = np.pad(here, (0, rows - len(here)), constant_values=len(ids))[:, None] + np.arange(width)
        there = places < len(ids)
        yield np.where(there, ids[np.minimum(places, len(ids) - 1)], 0), there.astype(np.int32)


def _lost(logits: Float[jax.Array, "B T V"], ids: Int[np.ndarray, "B T"]) -> Shaped[np.ndarray, "B T"]:
    """Compute -log of each token's probability."""
    logs = jax.nn.log_softmax(logits.astype(np.float32))
    return -np.asarray(np.take_along_axis(np.asarray(logs), ids[..., None], axis=-1)[..., 0], np.float64)
