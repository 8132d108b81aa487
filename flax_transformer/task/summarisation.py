"""Abstractive summarisation: documents in batches, ROUGE of a test set, `summarise` with any encoder-decoder.

Axes: B rows, S source positions, T target positions.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax

from flax_transformer.data.bucket import BucketPlan, BucketStream, bucket_boundaries, eval_batches
from flax_transformer.data.table import Table
from flax_transformer.data.text.document import split_sentences
from flax_transformer.data.text.summary import (
    SummaryTokens,
    before_document,
    cut_share,
    plain_texts,
    read_plainly,
    tokenize_summaries,
)
from flax_transformer.data.text.tokenizer import Tokenizer
from flax_transformer.decode import Constraints, make_process
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.metric.rouge import KINDS, rouge
from flax_transformer.report import TextAttention
from flax_transformer.task.attention import draw
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, compared, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig
from flax_transformer.task.spec import Spec
from flax_transformer.task.translator import Search, Translator, room_of
from flax_transformer.text_table import align
from flax_transformer.train.progress import duration

ROWS = 8
"""Batches are a multiple of this many rows, so that up to 8 devices or processes see the same ones."""


@dataclass(frozen=True, eq=False)
class HeldDocuments:
    """Test documents with their summaries, as `Documents` reads them, and how they are read."""

    table: Table
    prefix: str = ""
    """What every source begins with."""
    length: int = 512
    """Tokens of a source at most."""

    @property
    def sources(self) -> list[str]:
        """The texts that a model reads."""
        queries, documents = self.table["query"], self.table["document"]
        return [before_document(query, document) for query, document in zip(queries, documents, strict=True)]


@frozen
class Summaries:
    """Lay out documents and summaries, documents of like length together; what is too long is cut at its end."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new model, learned from documents and summaries; one that begins with a checkpoint has the checkpoint's."""
    lowercase: bool = False
    """Whether a new model reads and writes capital letters as small ones, so that it copies them into other places."""
    prefix: str = ""
    """What every source begins with, as T5 is told its task: "summarize: "."""
    source_length: int = 512
    """Tokens of a document at most, its query and its end mark included."""
    target_length: int = 64
    """Tokens of a summary at most, its end mark included."""
    tokens: int = 8_192
    """Padded source tokens a batch."""
    buckets: int = 4
    """Lengths there are batches of; each is compiled once."""

    def __post_init__(self):
        if min(self.source_length, self.target_length) < 2 or self.buckets < 1:
            raise ValueError(
                f"lengths must be at least 2 tokens and buckets 1, got source_length={self.source_length}, "
                f"target_length={self.target_length}, buckets={self.buckets}"
            )
        if self.tokens < ROWS * self.source_length:
            raise ValueError(
                f"a batch must have room for {ROWS} documents, got tokens={self.tokens} and "
                f"source_length={self.source_length}"
            )

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return max(self.source_length, self.target_length)

    def open(self, data: Any, context: Context) -> Opened:
        """Read the documents, learn or load the tokenizer, lay out the batches; held out are `HeldDocuments`.

        Args:
          data: has `read(split)`, which gives a table of `document`, `query`, `summary` and `references`.
        """
        tables = {split: data.read(split) for split in ("train", "validation", "test")}
        known = context.seq2seq()
        tokenizer = self._tokenizer(tables["train"], context) if known is None else known
        sizes = {"source": self.source_length, "width": self.target_length, "prefix": self.prefix}
        found = {split: tokenize_summaries(tables[split], tokenizer, **sizes) for split in ("train", "validation")}
        for split, table in tables.items():
            skipped = ", ".join(f"{n:,} {why}" for why, n in table.skipped.items())
            share = cut_share(table, tokenizer, self.source_length)
            print(
                f"{split}: {len(table):,} documents{f' (left out: {skipped})' if skipped else ''}, {100 * share:.0f} % "
                f"of them cut to {self.source_length} tokens",
                flush=True,
            )
        train = found["train"]
        boundaries = bucket_boundaries(train.lengths, self.buckets)
        multiple = math.lcm(ROWS, context.multiple)
        plan = BucketPlan(
            train.lengths, tokens=self.tokens, boundaries=boundaries, seed=context.seed, multiple=multiple
        )
        print(
            f"{tokenizer.vocab_size:,} tokens in the vocabulary, {plan.batches_per_epoch:,} batches an epoch, lengths "
            f"{', '.join(map(str, boundaries))}",
            flush=True,
        )
        length = self.source_length if context.init else None
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("text2text-generation",), vocab=tokenizer.vocab_size, multiple=128, length=length),
            batches=BucketStream(plan, train, process_index=jax.process_index(), process_count=jax.process_count()),
            validation=lambda: self._once(found["validation"]),
            test=lambda: self._once(tokenize_summaries(tables["test"], tokenizer, **sizes)),
            held=HeldDocuments(tables["test"], self.prefix, self.source_length),
            **_published(tokenizer) if known is None else known.published,
        )

    def _once(self, tokens: SummaryTokens) -> Any:
        boundaries = bucket_boundaries(tokens.lengths, self.buckets)
        return (batch for _, batch in eval_batches(tokens, tokens=self.tokens, boundaries=boundaries))

    def _tokenizer(self, train: Table, context: Context) -> Tokenizer:
        texts = plain_texts([*train["document"], *train["query"], *train["summary"]], lowercase=self.lowercase)
        tokenizer = self.vocabulary.open(context.folder, texts)
        if self.vocabulary.unit == "byte":
            tokenizer = read_plainly(tokenizer, lowercase=self.lowercase)
            tokenizer.save(context.folder.tokenizer)
        return tokenizer


def _published(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return how the checkpoint of a new model has its tokenizer."""
    fields = {"decoder_start_token_id": tokenizer.bos, "forced_eos_token_id": None}
    return {"published": HubTokenizer.of(tokenizer, single="$A </s>"), "fields": fields}


@frozen
class SummarySearch(Search):
    """How to look for the best summary: by beams, of so many tokens, no three of which come twice."""

    longest: int = 64
    """Tokens of a summary at most, its end mark included."""
    shortest: int = 1
    """Tokens before a summary may end."""
    no_repeat: int = 3
    """n of the n-grams of tokens that a summary has only once (Paulus et al. 2017); 0: any may repeat."""
    batch: int = 32
    """Documents decoded together."""

    def __post_init__(self):
        super().__post_init__()
        if min(self.shortest, self.no_repeat) < 0 or self.longest <= self.shortest:
            raise ValueError(
                f"longest must be above shortest, no_repeat not negative, got longest={self.longest}, "
                f"shortest={self.shortest}, no_repeat={self.no_repeat}"
            )

    def config(self, source_length: int, tokenizer: Any, room: int | None = None) -> Any:
        """Make the decoding config, whatever the length of the source."""
        return self.within(self.longest if room is None else min(self.longest, room), tokenizer)

    def rules(self, tokenizer: Any, rows: int) -> dict[str, Any]:
        """Return the constraints as a `process`: a checkpoint's own, where it has some, with these."""
        own = getattr(tokenizer, "rules", Constraints())
        least = max(self.shortest, own.min_length)
        said = replace(own, no_repeat_ngram=self.no_repeat, min_length=least, eos=tokenizer.eos if least else ())
        return {"process": make_process(said)}


@dataclass(frozen=True, eq=False)
class Summariser:
    """An encoder-decoder with its tokenizer, and how it reads and writes: what a run or checkpoint is used by."""

    translator: Translator
    search: SummarySearch = SummarySearch()
    prefix: str = ""
    length: int = 512
    """Tokens of a source at most; the rest is cut."""

    def __call__(self, sources: Sequence[str]) -> list[Any]:
        """Return the best hypothesis of each source; its `text` is the summary."""
        cut = self.cut(sources)
        return [best[0] for best in self.translator(cut, self.search)]

    def cut(self, sources: Sequence[str]) -> list[str]:
        """Return sources with their prefix as texts that have no more tokens than are read."""
        tokenizer = self.translator.tokenizer
        room = room_of(self.translator.model, tokenizer)
        most = (self.length if room is None else min(self.length, room)) - 1
        texts, found = [self.prefix + source for source in sources], []
        for text, ids in zip(texts, tokenizer.encode(texts), strict=True):
            found.append(text if len(ids) <= most else _shortened(text, tokenizer, most))
        return found


def _shortened(text: str, tokenizer: Any, most: int) -> str:
    """Return the longest beginning of a text, in characters, that has at most so many tokens."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if len(tokenizer.encode([text[:middle]])[0]) <= most:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def as_lines(text: str) -> str:
    """Return a text with a sentence a line, as ROUGE-Lsum counts sentences."""
    return "\n".join(split_sentences(text)) or text


def score_summaries(summaries: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return ROUGE of summaries with intervals, sentences being what `split_sentences` finds.

    Raises:
      ValueError: as `rouge`.
    """
    return rouge([as_lines(text) for text in summaries], [[as_lines(text) for text in each] for each in references])


def all_scores(texts: Sequence[str], table: Table) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Score texts with the summary of each document, and with the best of all references where there are several.

    Returns:
      The scores by what they are of, and all of them as metrics: those of the best begin with `best_`.
    """
    own = score_summaries(texts, [[each] for each in table["summary"]])
    if all(len(each) == 1 for each in table["references"]):
        return {"its summary": own}, own
    best = score_summaries(texts, table["references"])
    metrics = own | {f"best_{name}": value for name, value in best.items()}
    return {"its summary": own, "best of all references": best}, metrics


def score_table(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Lay out ROUGE of several systems, with half the width of the intervals."""
    shown = [kind for kind in KINDS if kind != "rougeLsum"]
    lines = [
        (name, *(f"{each[kind]:.2f} ± {(each[f'{kind}_high'] - each[f'{kind}_low']) / 2:.2f}" for kind in shown))
        for name, each in rows.items()
    ]
    return align([("summaries", *(kind.replace("rouge", "ROUGE-") for kind in shown)), *lines], "l" + "r" * len(shown))


DRAWN = 40
"""Tokens a side that a sample has at most whose attention is shown, so that its figure fits a page."""

SHOWN = 3
"""Such samples that a report shows."""


@frozen
class Rouge(Evaluator):
    """Summarise the test documents, which are `HeldDocuments`, and score the summaries by ROUGE."""

    takes: ClassVar[type] = HeldDocuments
    metric: ClassVar[str] = "rouge1"
    draws: ClassVar[bool] = True

    search: SummarySearch = SummarySearch()
    count: int = 6
    """Summaries shown on the terminal."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held, opened = finished.opened.held, finished.opened
        summariser = Summariser(Translator(finished.model, opened.tokenizer), self.search, held.prefix, held.length)
        began = time.monotonic()
        found = summariser(held.sources)
        seconds = time.monotonic() - began
        table, texts = held.table, [each.text.strip() for each in found]
        scores, rouges = all_scores(texts, table)
        metrics = {**tested(finished.objective, finished.model, opened.test()), **rouges}
        samples = [
            {
                "source": source, "target": target, "hypothesis": text, "copied": True,
                "tokens": each.tokens, "logprobs": each.logprobs, "score": each.score,
            }
            for source, target, text, each in zip(held.sources, table["summary"], texts, found, strict=True)
        ]  # fmt: skip
        step = max(len(samples) // self.count, 1)
        shown = [
            line
            for each in samples[::step][: self.count]
            for line in compared(" ".join(each["source"].split())[:100], each["hypothesis"], each["target"])
        ]
        headline = f"summaries of {len(texts):,} test documents ({duration(seconds)})"
        return Shown(metrics=metrics, samples=samples, lines=("", *shown, "", score_table(scores), headline))

    def text_attention(
        self, model: Any, tokenizer: Any, samples: Sequence[dict]
    ) -> tuple[list[TextAttention], list[str]]:
        """Draw the attention of a few short samples; say so where none can be drawn."""
        fitting = [
            sample
            for sample in samples
            if 0 < len(sample.get("tokens") or ()) <= DRAWN and len(tokenizer.encode([sample["source"]])[0]) < DRAWN
        ]
        if samples and not fitting:
            return [], [f"No attention is shown: no sample has at most {DRAWN} tokens on both sides."]
        translator, every = Translator(model, tokenizer), max(len(fitting) // SHOWN, 1)
        try:
            return [draw(translator, s["source"], s["tokens"]) for s in fitting[::every][:SHOWN]], []
        except ValueError as error:
            return [], [f"No attention is shown: {error}."]
