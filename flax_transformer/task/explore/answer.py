"""What a model says: the likeliest answers at each position, how far an intervention moves them.

Axes: R positions that answer, E answers.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.hub import Pretrained
from flax_transformer.task.classification import label_names
from flax_transformer.task.explore.case import Case, spelt

TOP = 8
"""Answers of a position that are shown."""
NUMBERS = (
    "action_preds",
    "sample",
    "reconstruction",
    "text_embeds",
    "image_embeds",
    "last_hidden_state",
    "language_output",
)
"""Answers that are numbers rather than scores of something."""


def table(scores: Float[Array, "1 ..."]) -> Float[Array, "R E"]:
    """Lay scores out as positions and answers."""
    return scores.reshape(-1, scores.shape[-1]).astype(jnp.float32)


def log_probabilities(name: str, scores: Float[Array, "1 ..."]) -> Float[Array, "R E"]:
    """Return the logarithms of probabilities, or numbers as they are."""
    rows = table(scores)
    if name in NUMBERS:
        return rows
    if rows.shape[-1] == 1:
        return jnp.concatenate([jax.nn.log_sigmoid(-rows), jax.nn.log_sigmoid(rows)], -1)
    return jax.nn.log_softmax(rows)


def likeliest(row: Float[np.ndarray, "E"], count: int) -> Int[np.ndarray, "_"]:
    """Return the numbers of the likeliest answers, the likeliest first, of equals the first; without sorting all.

    >>> likeliest(np.array([1.0, 3.0, 3.0, 0.0, 2.0]), 3).tolist()
    [1, 2, 4]
    """
    count = min(count, len(row))
    least = np.partition(row, len(row) - count)[len(row) - count]
    among = np.flatnonzero(~(row < least))
    return among[np.argsort(-row[among], kind="stable")[:count]]


class Answers:
    """What the rows and columns of a model's answer are called."""

    def __init__(self, pretrained: Pretrained, case: Case, name: str, shape: tuple[int, ...]):
        """Find names for scores of a shape."""
        self.pretrained, self.name, self.numbers = pretrained, name, name in NUMBERS
        count = int(np.prod(shape[:-1]))
        tokens = case.target or case.source
        self.of_tokens = len(shape) == 3 and shape[-1] == pretrained.vocabulary and not self.numbers
        self.of_positions = name == "start_logits"
        padded = len(shape) > 2 and bool(tokens) and count >= len(tokens)
        self.rows = tuple(tokens) if padded else ("answer",) if count == 1 else tuple(str(i + 1) for i in range(count))
        self.first = count - len(tokens) if padded and self._prefixed(count, tokens) else 0
        self.columns = () if self.of_tokens else self._names(max(shape[-1], 2), case)
        self.continues = self.of_tokens and {"text-generation", "text2text-generation"} & set(
            pretrained.architecture.uses
        )

    def _prefixed(self, count: int, tokens: Sequence[str]) -> bool:
        """Return whether an image's positions come before those of the text."""
        return "pixel_values" in self.pretrained.architecture.inputs.needs and count > len(tokens)

    def _names(self, count: int, case: Case) -> tuple[str, ...]:
        if self.of_positions:
            return (*case.source, *("padding" for _ in range(count - len(case.source))))
        if {"itm_score": 1, "logits_per_text": 1}.get(self.name):
            return ("no", "yes")[:count]
        if "classification" in " ".join(self.pretrained.architecture.uses) or "object-detection" in (
            self.pretrained.architecture.uses
        ):
            return (*label_names(self.pretrained, count),)
        return tuple(str(i + 1) for i in range(count))

    def spell(self, answer: int) -> str:
        """Name an answer."""
        return spelt(self.pretrained, [answer], target=True)[0] if self.of_tokens else self.columns[answer]

    def tops(self, logs: Float[np.ndarray, "R E"], count: int = TOP) -> list[list[dict[str, Any]]]:
        """Return the likeliest answers at each position, the likeliest first; none of what is only numbers."""
        if self.numbers:
            return []
        logs = logs[self.first : self.first + len(self.rows)]
        return [
            [{"id": int(i), "name": self.spell(int(i)), "p": float(np.exp(row[i]))} for i in likeliest(row, count)]
            for row in logs
        ]

    def asked(self) -> int:
        """Return the position whose answer is of most interest: the last, or the only one."""
        return self.first + len(self.rows) - 1


def moved(before: Float[Array, "R E"], after: Float[Array, "R E"], numbers: bool) -> Float[Array, "R"]:
    """Return how far answers are moved: the Kullback-Leibler divergence in nats, or the norm where they are numbers."""
    if numbers:
        return jnp.linalg.norm(after - before, axis=-1)
    return jnp.sum(jnp.exp(before) * (before - after), axis=-1)
