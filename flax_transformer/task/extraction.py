"""Extractive summarisation: sentences marked by [CLS], a score for each by one pass of an encoder (BERTSUM, Liu &
Lapata 2019, https://arxiv.org/abs/1908.08345), beside what needs no model.

Axes: B rows, T tokens, n sentences of a document.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from flax_transformer.data.examples import Example
from flax_transformer.data.table import Table
from flax_transformer.data.text import FittedRows
from flax_transformer.data.text.document import split_sentences
from flax_transformer.data.text.extract import (
    SentenceRow,
    choose,
    lead,
    oracle,
    query_similarity,
    sentence_rows,
    text_rank,
)
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.metric.finite import check_finite
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows, split_batches
from flax_transformer.task.spec import Spec
from flax_transformer.task.summarisation import score_summaries, score_table
from flax_transformer.task.text_classification import encoder_tokenizer

CLASSES = "other", "summary"
"""What a sentence is."""


@dataclass(frozen=True, eq=False)
class HeldSentences:
    """Test documents in sentences, and the rows they are read in."""

    table: Table
    sentences: Sequence[list[str]]
    rows: Sequence[list[SentenceRow]]
    """Of each document."""
    collate: Any
    batch: int
    """Rows of a batch."""


@frozen
class MarkedSentences:
    """Lay out the sentences of documents, each behind a [CLS], in rows; a long document has several.

    Right are the sentences that together have the highest ROUGE with the summary, chosen greedily.
    """

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new encoder; one that begins with a checkpoint has the checkpoint's."""
    rows: int = 32
    """Rows a batch."""
    length: int = 256
    """Tokens a row at most."""
    buckets: int = 3
    """How many lengths batches have: all tokens, half of them, a quarter, …"""
    unit: Literal["sentence", "line"] = "sentence"
    """What is chosen: sentences, as `split_sentences` finds them, or lines, as the turns of a meeting."""
    chosen: int = 3
    """Sentences of a document that are right at most."""
    query: bool = True
    """Whether a document's query, where it has one, is read before its sentences."""
    others: int = 1
    """Rows without a right sentence that are learned for each row with one; they are drawn once."""

    def __post_init__(self):
        check_rows(self.rows, self.length, 8)
        if min(self.chosen, self.buckets) < 1 or self.others < 0 or self.length >> (self.buckets - 1) < 8:
            raise ValueError(
                "chosen must be at least 1, others not negative, and buckets leave rows of 8 tokens, got "
                f"chosen={self.chosen}, others={self.others}, buckets={self.buckets} of {self.length} tokens"
            )

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: Any, context: Context) -> Opened:
        """Read the documents, learn or load the tokenizer, label sentences; held out are `HeldSentences`.

        Args:
          data: has `read(split)`, which gives a table of `document`, `query`, `summary` and `references`.
        """
        tables = {split: data.read(split) for split in ("train", "validation", "test")}
        train = tables["train"]
        unique = dict.fromkeys([*train["document"], *(train["query"] if self.query else ())])
        tokenizer = encoder_tokenizer(self.vocabulary, context, [text for text in unique if text])
        read = SentenceReader(tokenizer, self.length, self.unit, self.query)
        found = {split: read(table) for split, table in tables.items()}
        lengths = tuple(self.length >> step for step in reversed(range(self.buckets)))
        collate = FittedRows(lengths=lengths, pad=tokenizer.pad)
        items = {}
        for split, (sentences, rows) in found.items():
            right = [set(oracle(each, summary, self.chosen)) for each, summary in zip(
                sentences, tables[split]["summary"], strict=True)]  # fmt: skip
            items[split] = self._items(rows, right, context.seed)
            print(
                f"{split}: {len(rows):,} documents, {sum(map(len, sentences)):,} sentences, {sum(map(len, right)):,} "
                f"of them right, {sum(map(len, rows)):,} rows, {len(items[split]):,} of them learned",
                flush=True,
            )
        rows = context.held_rows(self.rows)
        names = {str(number): name for number, name in enumerate(CLASSES)}
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("token-classification",), vocab=tokenizer.vocab_size, classes=CLASSES),
            **split_batches(items, collate, self.rows, context),
            held=HeldSentences(tables["test"], *found["test"], collate, rows),
            fields={"id2label": names, "label2id": {name: int(number) for number, name in names.items()}},
        )

    def _items(self, rows: Sequence[list[SentenceRow]], right: Sequence[set[int]], seed: int) -> list[Example]:
        """Label rows; of those without a right sentence keep as many as are learned."""
        found: tuple[list[Example], list[Example]] = [], []
        for document, chosen in zip(rows, right, strict=True):
            for row in document:
                labels = np.isin(row.sentences, [*chosen])
                found[bool(labels.any())].append(labelled(row, labels))
        without, having = found
        draw = np.random.default_rng(seed).permutation(len(without))[: self.others * max(len(having), 1)]
        return [*having, *(without[i] for i in sorted(draw.tolist()))]


def labelled(row: SentenceRow, labels: ArrayLike) -> Example:
    """Return a row as an example: the class of each sentence where its mark is, weights 0 elsewhere.

    >>> labelled(SentenceRow([1, 5, 2, 1, 6, 2], [0, 0, 0, 1, 1, 1], [0, 3], [0, 1]), [False, True])["labels"].tolist()
    [0, 0, 0, 1, 0, 0]
    """
    example = {name: np.array(getattr(row, name), np.int32) for name in ("tokens", "types")}
    classes, weights = np.zeros(len(row.tokens), np.int32), np.zeros(len(row.tokens), np.float32)
    classes[row.marks], weights[row.marks] = labels, 1.0
    return {**example, "labels": classes, "weights": weights}


@dataclass(frozen=True, eq=False)
class SentenceReader:
    """Makes sentences and rows of documents; the same document is split and encoded once."""

    tokenizer: HubTokenizer
    length: int
    unit: str = "sentence"
    query: bool = True

    def __call__(self, table: Table) -> tuple[list[list[str]], list[list[SentenceRow]]]:
        """Return the sentences and the rows of every document of a table."""
        sentences, encoded = {}, {}
        for text in dict.fromkeys(table["document"]):
            sentences[text] = split_units(text, self.unit)
            encoded[text] = self.tokenizer.encode(sentences[text])
        queries = table["query"] if self.query else [""] * len(table)
        before = dict(zip(unique := [*dict.fromkeys(queries)], self.tokenizer.encode(unique), strict=True))
        marks = {"cls": self.tokenizer.cls, "sep": self.tokenizer.sep, "length": self.length}
        pairs = list(zip(queries, table["document"], strict=True))
        return [sentences[text] for _, text in pairs], [
            sentence_rows(before[query] if query else [], encoded[text], **marks) for query, text in pairs
        ]


def split_units(text: str, unit: str) -> list[str]:
    """Split a text into its sentences or lines; one without either is one itself."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines if unit == "line" else split_sentences(text)) or [text]


def sentence_scores(
    run: Callable[[Any], Float[Array, "B T E"]],
    documents: Sequence[list[SentenceRow]],
    collate: Callable[[Sequence[Any]], Any],
    batch: int,
) -> list[Float[np.ndarray, " n"]]:
    """Compute the log-odds of each sentence of each document to be in the summary.

    Args:
      run: gives the logits of both classes at every position, [B, T, 2], from the inputs of a batch.
      documents: rows of each.
      collate: lays out rows as a batch.
      batch: rows of a batch.
    """
    unique = {(*row.tokens, -1, *row.types): row for rows in documents for row in rows}  # queries share a meeting
    flat = sorted(unique.items(), key=lambda each: len(each[1].tokens))  # rows of like length together
    odds = {}
    for first in range(0, len(flat), batch):
        part = flat[first : first + batch]
        rows = [labelled(row, [0] * len(row.marks)) for _, row in part]
        logits = np.asarray(run(collate([*rows, *[None] * (batch - len(rows))])["inputs"]), np.float32)
        for (key, row), each in zip(part, logits, strict=False):
            odds[key] = each[row.marks, 1] - each[row.marks, 0]
            check_finite("scores of sentences", odds[key])
    return [np.concatenate([np.zeros(0), *(odds[(*row.tokens, -1, *row.types)] for row in rows)]) for rows in documents]


@jax.jit
def position_logits(model: Any, inputs: Any) -> Float[Array, "B T E"]:
    """Compute the logits of both classes at every position, from the inputs of a batch."""
    return model.output(model.hidden_states(**inputs))


@frozen
class Extracts(Evaluator):
    """Choose sentences of the test documents, which are `HeldSentences`; ROUGE, beside the first sentences, TextRank,
    what is most like the query, and the sentences that are right."""

    takes: ClassVar[type] = HeldSentences
    metric: ClassVar[str] = "rouge1"

    sentences: int = 3
    """Sentences of a summary."""
    block: bool = True
    """Leave out a sentence that has three words in a row with a better one."""
    similarity: float = 0.0
    """What the similarity of a sentence with the query, from 0 to 1, is multiplied by before it is added to the model's
    log-odds."""
    count: int = 6
    """Summaries shown on the terminal."""

    def __post_init__(self):
        if self.sentences < 1 or self.similarity < 0:
            raise ValueError(
                f"a summary must have at least 1 sentence, and similarity must not be negative, got "
                f"sentences={self.sentences}, similarity={self.similarity}"
            )

    def choose(
        self, scores: Float[np.ndarray, " n"], sentences: Sequence[str], query: str = "", count: int | None = None
    ) -> list[int]:
        """Choose sentences by the log-odds of the model and, where that counts, similarity with the query.

        Args:
          count: how many; `sentences` by default.
        """
        if self.similarity and query:
            scores = scores + self.similarity * query_similarity(query, sentences)
        return choose(scores, sentences, count or self.sentences, block=self.block)

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, opened = finished.opened.held, finished.opened
        scores = sentence_scores(partial(position_logits, finished.model), held.rows, held.collate, held.batch)
        parts = zip(scores, held.sentences, held.table["query"], strict=True)
        chosen = [self.choose(each, sentences, query) for each, sentences, query in parts]
        systems = {"the model": chosen, **baselines(held, self.sentences)}
        references = [[each] for each in held.table["summary"]]
        texts = {
            name: [_joined(s, at) for s, at in zip(held.sentences, each, strict=True)] for name, each in systems.items()
        }
        table = {name: score_summaries(each, references) for name, each in texts.items()}
        metrics = {**tested(finished.objective, finished.model, opened.test()), **table["the model"]}
        for name, each in table.items():
            metrics |= {f"{_key(name)}_{kind}": value for kind, value in each.items()} if name != "the model" else {}
        samples = [
            {"source": "\n".join(sentences), "target": target, "hypothesis": text, "copied": True}
            for sentences, target, text in zip(held.sentences, held.table["summary"], texts["the model"], strict=True)
        ]
        lines = [line for each in samples[:: max(len(samples) // self.count, 1)][: self.count] for line in (
            f"  {each['hypothesis'][:200]}".replace("\n", " "), f"    expected: {each['target'][:200]}")]  # fmt: skip
        most = f"at most {self.sentences} sentences of {len(chosen):,} test documents"
        return Shown(metrics=metrics, samples=samples, lines=("", *lines, "", score_table(table), most))


def baselines(held: HeldSentences, count: int) -> Mapping[str, list[list[int]]]:
    """Choose as many sentences without a model: the first, by TextRank, by the query if there is one, and the right."""
    documents, queries = held.sentences, held.table["query"]
    found = {"lead": [lead(each, count) for each in documents]}
    ranked: dict[str, list[int]] = {}  # the queries of a meeting share it
    for text, each in zip(held.table["document"], documents, strict=True):
        if text not in ranked:
            ranked[text] = text_rank(each, count)
    found["TextRank"] = [ranked[text] for text in held.table["document"]]
    if any(queries):
        found["like the query"] = [
            choose(query_similarity(query, each), each, count) for query, each in zip(queries, documents, strict=True)
        ]
    found["oracle"] = [oracle(each, text, count) for each, text in zip(documents, held.table["summary"], strict=True)]
    return found


def _joined(sentences: Sequence[str], chosen: Sequence[int]) -> str:
    return "\n".join(sentences[i] for i in chosen)


def _key(name: str) -> str:
    return name.lower().replace(" ", "_")
