"""Sentence similarity: examples of texts that belong together or are scored, and rank correlation with scores.

Axes: B rows, C columns, T positions.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from flax_transformer.data.examples import Arrays, Example
from flax_transformer.data.table import Table
from flax_transformer.data.text.text_column import TextColumns
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.sentence import PLAIN
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows, split_batches
from flax_transformer.task.retrieval import HeldMatches, embedded
from flax_transformer.task.spec import Spec


@dataclass(frozen=True, eq=False)
class HeldScores(HeldMatches):
    """Held-out pairs, and how alike the halves of each are."""

    scores: Float[np.ndarray, " B"] = None


@frozen
class TextRows:
    """Lay out some texts a row; held out are `HeldMatches`, the first and the second of each, or `HeldScores`."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new encoder; one that begins with a checkpoint has the checkpoint's."""
    rows: int = 64
    """Rows a batch."""
    length: int = 64
    """Most tokens of a text; longer ones are cut."""
    buckets: int = 1
    """How many lengths batches have: all tokens, half of them, a quarter, …; a batch has the least that its texts need,
    and each is a program of its own."""
    scored: bool = False
    """Whether labels are scores, which are held out to be compared."""

    uses: ClassVar[tuple[str, ...]] = ("feature-extraction",)
    """What the model can do, in the words of `hub.registration.USES`."""
    fields: ClassVar[Mapping[str, Any]] = PLAIN
    """Of config.json, of a checkpoint that begins without them."""

    def __post_init__(self):
        check_rows(self.rows, self.length, 3)
        if not 1 <= self.buckets <= self.length.bit_length() - 2:
            raise ValueError(
                f"buckets must be at least 1 and leave 3 tokens, got {self.buckets} of {self.length} tokens"
            )

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: Any, context: Context) -> Opened:
        """Read the texts, learn or load the tokenizer.

        Args:
          data: has `read(split)`, which gives a table of `texts`, tuples of as many, and `label`.
        """
        found = {split: data.read(split) for split in ("train", "validation", "test")}
        columns = len(found["train"]["texts"][0])
        if wrong := [split for split, each in found.items() if len(each["texts"][0]) != columns]:
            raise ValueError(f"rows of all splits must have as many texts, those of {wrong[0]} have not {columns}")
        texts = (text for row in found["train"]["texts"] for text in row)
        tokenizer = context.tokenizer or self.learned(context, texts)
        items = {split: self.items(each, tokenizer) for split, each in found.items()}
        for split, each in items.items():
            tokens = sum(len(text) for item in each for text in item["tokens"])
            print(f"{split}: {len(each):,} rows of {columns} texts, {tokens:,} tokens", flush=True)
        pad = 0 if tokenizer.pad is None else tokenizer.pad
        lengths = tuple(self.length >> step for step in reversed(range(self.buckets)))
        collate = self.collated(TextColumns(lengths=lengths, columns=columns, pad=pad), tokenizer)
        batches = split_batches(items, collate, self.rows, context)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=self.uses, vocab=tokenizer.vocab_size, fields=self.fields),
            **batches,
            held=self._held(found["test"], batches["test"]),
        )

    def learned(self, context: Context, texts: Iterable[str]) -> HubTokenizer:
        """Learn a tokenizer."""
        return HubTokenizer.of_encoder(self.vocabulary.open(context.folder, texts).with_mask())

    def collated(self, columns: TextColumns, tokenizer: HubTokenizer) -> Any:
        """Return what lays out batches."""
        return columns

    def items(self, table: Table, tokenizer: HubTokenizer) -> list[Example]:
        """Tokenise rows of texts."""
        columns = []
        for texts in zip(*table["texts"], strict=True):
            inputs = tokenizer(list(texts), max_length=self.length, truncate=True, side="right")
            ends = inputs["attention_mask"].sum(axis=1)
            columns.append([ids[:end] for ids, end in zip(inputs["input_ids"], ends, strict=True)])
        rows = zip(zip(*columns, strict=True), table["label"], strict=True)
        return [{"tokens": tokens, "labels": float(label)} for tokens, label in rows]

    def _held(self, table: Table, batches: Callable[[], Iterable[Arrays]]) -> HeldMatches:
        texts = table["texts"]
        given = {
            "sides": ("queries", "passages"),
            "first": partial(_column, batches, 0),
            "second": partial(_column, batches, 1),
            "belong": np.eye(len(texts), dtype=bool),
            "show": tuple(partial(_text, texts, side) for side in (0, 1)),
        }
        return HeldScores(**given, scores=np.asarray(table["label"])) if self.scored else HeldMatches(**given)


def _text(texts: Any, side: int, number: int) -> str:
    return texts[number][side]


def _column(batches: Callable[[], Iterable[Arrays]], number: int) -> Iterable[Arrays]:
    """Return batches of one text of each row."""
    for batch in batches():
        labels = batch["labels"]
        inputs = {name: each[:, number] for name, each in batch["inputs"].items()}
        yield {**batch, "inputs": inputs, "labels": labels[:, number] if labels.ndim > 1 else labels}


@frozen
class SimilarityEvaluator(Evaluator):
    """Compare the cosines of test pairs, which are `HeldScores`, with their scores: Spearman's rank correlation, which
    is 1 where both have one order, and Pearson's (Cer et al. 2017, https://arxiv.org/abs/1708.00055)."""

    takes: ClassVar[type] = HeldScores
    metric: ClassVar[str] = "spearman"

    count: int = 24
    """Pairs that the report shows."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, model = finished.opened.held, finished.model
        first, second = embedded(model, held.first(), 0), embedded(model, held.second(), 1)
        cosines = np.sum(first * second, axis=1)
        metrics = tested(finished.objective, model, finished.opened.test())
        metrics |= correlations(cosines, held.scores)
        step = -(-len(cosines) // self.count)
        samples = [
            {"source": held.show[0](i), "target": held.show[1](i),
             "hypothesis": f"cosine {cosines[i]:.3f}, score {held.scores[i]:g}"}
            for i in range(0, len(cosines), step)
        ]  # fmt: skip
        line = f"Spearman's rank correlation with the scores: {metrics['spearman']:.4f}, of {len(cosines):,} test pairs"
        return Shown(metrics=metrics, samples=samples, lines=("", line))


def correlations(found: Float[np.ndarray, " B"], expected: Float[np.ndarray, " B"]) -> dict[str, float]:
    """Compute Spearman's rank correlation and Pearson's of two columns of numbers; 0 where one is constant.

    >>> correlations(np.array([1.0, 2.0, 4.0]), np.array([0.0, 0.5, 0.6]))["spearman"]
    1.0
    """
    from scipy.stats import rankdata

    def pearson(a, b):
        a, b = a - a.mean(), b - b.mean()
        scale = np.sqrt((a @ a) * (b @ b))
        return float(np.round(a @ b / scale, 12)) if scale else 0.0

    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    return {"spearman": pearson(rankdata(found), rankdata(expected)), "pearson": pearson(found, expected)}
