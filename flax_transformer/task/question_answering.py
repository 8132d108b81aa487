"""Extractive question answering: spans of a text, and `answer`."""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.task.checkpoint import read_length, require_use, tokenizer_of

_ARTICLE = re.compile(r"\b(a|an|the)\b")
_UNSPACED = re.compile(r"([\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")
"""A character of a script without spaces: Thai, Lao, Japanese, Chinese."""


_PUNCTUATION = str.maketrans("", "", string.punctuation)


@frozen
class AnswerConfig:
    """How answers are chosen."""

    n_best: int = 20
    """Begins, ends and answers kept."""
    max_answer_length: int = 30
    """Most tokens of an answer."""
    threshold: float | None = None
    """How much better than the best span no answer must be, to be chosen; None: every question has an answer."""

    def __post_init__(self):
        if self.n_best < 1 or self.max_answer_length < 1:
            raise ValueError(
                f"n_best and max_answer_length must be at least 1, got {self.n_best}, {self.max_answer_length}"
            )


@dataclass(frozen=True)
class Answer:
    """A span of the passage, by characters; empty for no answer.

    `score` is the sum of the begin's and the end's logits, `probability` its share among the answers kept.
    """

    text: str
    score: float
    probability: float
    start: int
    end: int


def find_answers(
    context: str,
    start_logits: Float[np.ndarray, "B T"],
    end_logits: Float[np.ndarray, "B T"],
    offsets: Int[np.ndarray, "B T 2"],
    inside: Bool[np.ndarray, "B T"],
    config: AnswerConfig = AnswerConfig(),
    cls: Int[np.ndarray, "B"] | None = None,
) -> list[Answer]:
    """Find the best answers to one question in the windows of one passage.

    A span begins at one of the `n_best` likeliest tokens of a window and ends at another, inside the passage. The same
    characters found in two windows count once, by the better score. With a threshold, no answer scores as the least of
    the windows' `cls` logits, and comes first where it beats the best span by more than the threshold.

    Args:
        context: the passage.
        start_logits: of each token being the answer's first.
        end_logits: of each token being the answer's last.
        offsets: where tokens begin and end in the passage, in characters.
        inside: the tokens that are the passage's.
        config: how to choose.
        cls: where each window's token for no answer stands; by default first.

    Returns:
        At most `n_best` spans, the best first, and with a threshold no answer among them; nothing where no span is
        possible and every question has an answer.

    Raises:
        ValueError: logits that are no numbers.
    """
    if np.isnan(start_logits).any() or np.isnan(end_logits).any():
        raise ValueError("logits must be numbers, got nan")
    found: dict[tuple[int, int], float] = {}
    for row in range(len(start_logits)):
        for score, start, end in _spans(start_logits[row], end_logits[row], inside[row], config):
            place = (int(offsets[row, start, 0]), int(offsets[row, end, 1]))
            found[place] = max(score, found.get(place, -np.inf))
    # Equal scores come in the order of the text, so that the result never depends on the windows' order.
    ranked = sorted(((score, *place) for place, score in found.items()), key=lambda span: (-span[0], *span[1:]))
    ranked = ranked[: config.n_best]
    if config.threshold is not None and len(start_logits):
        places = np.zeros(len(start_logits), int) if cls is None else cls
        rows = np.arange(len(start_logits))
        empty = float((start_logits[rows, places].astype(float) + end_logits[rows, places]).min())
        wins = not ranked or empty - ranked[0][0] > config.threshold
        below = sum(score >= empty for score, _, _ in ranked)
        ranked.insert(0 if wins else max(1, below), (empty, 0, 0))
    weights = np.exp(np.array([score for score, _, _ in ranked]) - max((score for score, _, _ in ranked), default=0.0))
    probabilities = weights / weights.sum()
    return [
        Answer(context[start:end], score, float(share), start, end)
        for (score, start, end), share in zip(ranked, probabilities, strict=True)
    ]


def _spans(
    start_logits: Float[np.ndarray, "T"], end_logits: Float[np.ndarray, "T"], inside: Bool[np.ndarray, "T"],
    config: AnswerConfig,
) -> list[tuple[float, int, int]]:  # fmt: skip
    """List the scores and tokens of one window's candidates."""
    places = np.flatnonzero(inside)
    starts = places[np.argsort(-start_logits[places], kind="stable")[: config.n_best]]
    ends = places[np.argsort(-end_logits[places], kind="stable")[: config.n_best]]
    return [
        (float(start_logits[start]) + float(end_logits[end]), int(start), int(end))
        for start in starts
        for end in ends
        if 0 <= end - start < config.max_answer_length
    ]


def normalize(text: str) -> str:
    """Reduce an answer to what SQuAD compares: lower case, no punctuation, no articles, single spaces.

    >>> normalize("The  U.S. - an Answer!")
    'us answer'
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, references: Sequence[str]) -> float:
    """Return 1.0 where the prediction equals a reference after `normalize`, else 0.0; no reference means no answer."""
    return float(normalize(prediction) in {normalize(reference) for reference in _answerable(references)})


def f1(prediction: str, references: Sequence[str]) -> float:
    """Return the best harmonic mean of the words' precision and recall over the references; none means no answer.

    Of scripts that part no words by spaces every character counts as one, as in MLQA.
    """
    return max(_overlap(_units(prediction), _units(one)) for one in _answerable(references))


def _units(text: str) -> list[str]:
    """Part a text into what F1 counts: words, and of scripts that write none every character (Lewis et al. 2020)."""
    return [unit for word in normalize(text).split() for unit in _UNSPACED.split(word) if unit]


def _answerable(references: Sequence[str]) -> list[str]:
    return [reference for reference in references if normalize(reference)] or [""]


def _overlap(words: list[str], expected: list[str]) -> float:
    if not words or not expected:
        return float(words == expected)
    return 2 * (Counter(words) & Counter(expected)).total() / (len(words) + len(expected))


def squad_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Score predictions as SQuAD does: the means of `exact_match` and `f1`, in percent.

    Args:
        predictions: one text a question, empty for no answer.
        references: the right answers of each question; none where it has no answer.

    Raises:
        ValueError: no questions, or not as many predictions as references.
    """
    if len(predictions) != len(references) or not references:
        raise ValueError(
            f"scoring needs one prediction a question, got {len(predictions)} predictions, {len(references)} references"
        )
    pairs = list(zip(predictions, references, strict=True))
    return {
        "exact_match": 100 * sum(exact_match(*pair) for pair in pairs) / len(pairs),
        "f1": 100 * sum(f1(*pair) for pair in pairs) / len(pairs),
    }


@dataclass(frozen=True)
class Conversation:
    """What was said so far, carried into the next question.

    >>> talk = Conversation().add("Who wrote it?", "Ada.")
    >>> talk.question("When?")
    'Who wrote it? Ada. When?'
    """

    turns: tuple[tuple[str, str], ...] = ()
    """Questions and their answers, the oldest first."""
    keep: int | None = None
    """Turns carried into the next question, the latest; None: all."""

    def __post_init__(self):
        if self.keep is not None and self.keep < 0:
            raise ValueError(f"keep must not be negative, got {self.keep}")

    def add(self, question: str, answer: str) -> "Conversation":
        """Return the conversation with one more turn."""
        return replace(self, turns=(*self.turns, (question, answer)))

    @property
    def carried(self) -> tuple[tuple[str, str], ...]:
        """The turns that the next question carries."""
        return self.turns if self.keep is None else self.turns[len(self.turns) - min(self.keep, len(self.turns)) :]

    def question(self, question: str) -> str:
        """Put the earlier questions and answers before a question, for a model that finds answers in a passage."""
        said = [part for turn in self.carried for part in turn]
        return " ".join(part for part in (*said, question) if part)

    def messages(self, message: str) -> list[dict[str, str]]:
        """Return the conversation as chat templates read it: who says what, and what is said now.

        >>> Conversation().add("Who wrote it?", "Ada.").messages("When?")[1:]
        [{'role': 'assistant', 'content': 'Ada.'}, {'role': 'user', 'content': 'When?'}]
        """
        said = [part for turn in self.carried for part in turn]
        roles = ("user", "assistant") * len(self.carried)
        return [{"role": role, "content": text} for role, text in zip((*roles, "user"), (*said, message), strict=True)]

    def ids(self, message: str, tokenizer: Any, max_length: int | None = None) -> list[int]:
        """Write the conversation as a language model reads it: by its chat template, else each utterance and its end.

        Args:
            message: what is said now.
            tokenizer: the model's `HubTokenizer`.
            max_length: most tokens; the oldest turns are left out to fit.

        Raises:
            ValueError: the message alone is too long, the template refuses the conversation, or there is neither a
                template nor an end mark.
        """
        talk = self
        while True:
            ids = _written(talk.messages(message), tokenizer)
            if max_length is None or len(ids) <= max_length:
                return ids
            if not talk.carried:
                raise ValueError(
                    f"the message must have at most {max_length} tokens, end mark included, got {len(ids)}"
                )
            talk = replace(talk, turns=talk.carried[1:])


def _written(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> list[int]:
    if tokenizer.chat_templates:
        (row,) = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        return row.tolist()
    if tokenizer.eos is None:
        raise ValueError("a conversation needs a chat template or an end token, the checkpoint's tokenizer has neither")
    utterances = tokenizer.encode([message["content"] for message in messages])
    return [token for utterance in utterances for token in (*utterance, tokenizer.eos)]


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
    multiple: int = 1,
) -> list[Answer]:
    """Find the answers to a question in a passage, the best first.

    Args:
      pretrained: a model that scores tokens as ends of an answer.
      question: what is asked.
      context: the passage; one longer than a window is read in overlapping windows.
      config: how answers are chosen.
      max_length: tokens of a window, question and special tokens included; 384, or what the model has.
      stride: tokens that neighbouring windows share; 128, or a quarter of a window.
      multiple: windows are padded to a multiple of so many tokens, so that many questions need few compiled programs.

    Raises:
      ValueError: a checkpoint of another kind, an empty question or passage, or a question that fills the window.
    """
    require_use(pretrained, "question-answering")
    tokenizer = tokenizer_of(pretrained, question, context)
    if not question.strip() or not context.strip():
        raise ValueError("a question and a passage must not be empty")
    width = min(WINDOW, read_length(pretrained) or WINDOW) if max_length is None else max_length
    shared = min(STRIDE, width // 4) if stride is None else stride
    windows = tokenizer.encode_windows(question, context, width, shared, multiple if tokenizer.pad is not None else 1)
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
