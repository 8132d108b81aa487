"""Parallel text as batches of few fixed shapes, for translation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, SupportsIndex, runtime_checkable

import jax

from flax_transformer.data.bucket import BucketPlan, BucketStream, bucket_boundaries, eval_batches
from flax_transformer.data.text import (
    PairSource,
    Tokenized,
    Tokenizer,
    load_tokenizer,
    tokenize,
    train_byte_bpe,
    train_word_bpe,
)
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.opened import Context, Opened
from flax_transformer.task.spec import Spec

VOCAB_MULTIPLE = 128
"""Embedding tables are rounded up to a multiple of this many rows, so that they split over devices."""


ROWS = 8
"""Batches are a multiple of this many rows, so that up to 8 devices or processes see the same ones."""


@runtime_checkable
class Corpus(Protocol):
    """Where sentence pairs come from."""

    def read(self, split: str) -> PairSource:
        """Return the pairs of `train`, `validation` or `test`."""


@frozen
class BPE:
    """Byte-pair encoding, joint over both languages."""

    unit: Literal["word", "byte"] = "byte"
    """word: characters of words in text that is already tokenised; byte: lossless on any text."""
    merges: int = 10_000

    def __post_init__(self):
        if self.merges < 0:
            raise ValueError(f"merges must not be negative, got {self.merges}")

    def train(self, pairs: PairSource) -> Tokenizer:
        """Learn from both sides of the pairs."""
        texts = (pairs[i][side] for side in ("source", "target") for i in range(len(pairs)))
        if self.unit == "word":
            return train_word_bpe(texts, merges=self.merges)
        return train_byte_bpe(texts, vocab_size=260 + self.merges)


@frozen
class Batching:
    """How pairs become batches of few fixed shapes."""

    tokens: int = 8_192
    """Padded tokens a batch, counted on the longer side."""
    buckets: int = 8
    """Lengths there are batches of; each is compiled once."""
    max_tokens: int = 128
    """Longer pairs are left out of training, with a count."""

    def __post_init__(self):
        if self.buckets < 1 or self.max_tokens < 2 or self.tokens < self.max_tokens:
            raise ValueError(
                f"batches need at least 1 bucket and room for the longest pair, got buckets={self.buckets}, "
                f"tokens={self.tokens}, max_tokens={self.max_tokens}"
            )

    def fitting(self, pairs: Tokenized, split: str) -> Tokenized:
        """Keep the pairs that fit, and say how many do not.

        Raises:
          ValueError: none fits.
        """
        kept = pairs.within(self.max_tokens)
        if len(kept) < len(pairs):
            print(f"{split}: {len(pairs) - len(kept):,} pairs of more than {self.max_tokens} tokens left out")
        if not len(kept):
            raise ValueError(f"no {split} pair has at most max_tokens={self.max_tokens} tokens")
        return kept


@frozen
class AlignedBatching(Batching):
    """The same for models by CTC, which have so many positions to write at for each source token."""

    spread: int = 3
    """Positions for each source token, as the model has: pairs whose targets do not fit are left out of training."""

    def __post_init__(self):
        super().__post_init__()
        if self.spread < 1:
            raise ValueError(f"spread must be at least 1 position for each source token, got {self.spread}")

    def fitting(self, pairs: Tokenized, split: str) -> Tokenized:
        """Keep the pairs that fit, and say how many do not."""
        pairs = super().fitting(pairs, split)
        kept = pairs.aligned(self.spread)
        if len(kept) < len(pairs):
            print(f"{split}: {len(pairs) - len(kept):,} pairs whose targets do not fit spread={self.spread} left out")
        if not len(kept):
            raise ValueError(f"no {split} pair has a target that fits spread={self.spread}")
        return kept


@frozen
class SentencePairs:
    """Lay out sentence pairs in batches of few lengths."""

    bpe: BPE = BPE()
    """Of a new model; one that begins with a checkpoint has the checkpoint's tokenizer."""
    batch: Batching = Batching()
    prefix: str = ""
    """What every source begins with, as T5 is told its task: "translate English to German: "."""

    @property
    def tokens(self) -> int:
        """How many tokens a target may have, its end mark left out."""
        return self.batch.max_tokens - 1

    def planned(self, length: int | None = None) -> dict[str, int]:
        """Return the rows of batches of a length, by default the longest, and the vocabulary, without reading data."""
        length = length or self.batch.max_tokens
        rows = max(self.batch.tokens // length // ROWS, 1) * ROWS
        return {"batch": rows, "length": length, "vocab": 260 + self.bpe.merges, "multiple": VOCAB_MULTIPLE}

    def open(self, data: Corpus, context: Context) -> Opened:
        """Read the corpus, learn or load the tokenizer, lay out the batches; held out are the test pairs."""
        try:
            corpus = {split: _prefixed(data.read(split), self.prefix) for split in ("train", "validation", "test")}
        except RuntimeError as error:  # a data set that exists, but not here
            raise ValueError(str(error)) from error
        for split, pairs in corpus.items():
            skipped = ", ".join(f"{n:,} {why}" for why, n in getattr(pairs, "skipped", {}).items())
            print(f"{split}: {len(pairs):,} pairs{f' (left out: {skipped})' if skipped else ''}", flush=True)
        known = context.seq2seq()
        tokenizer = self._tokenizer(corpus["train"], context) if known is None else known
        train = self.batch.fitting(tokenize(corpus["train"], tokenizer), "train")
        validation = self.batch.fitting(tokenize(corpus["validation"], tokenizer), "validation")
        boundaries = bucket_boundaries(train.lengths, self.batch.buckets)
        plan = BucketPlan(
            train.lengths, tokens=self.batch.tokens, boundaries=boundaries, seed=context.seed,
            multiple=math.lcm(ROWS, context.multiple),
        )  # fmt: skip
        print(
            f"{tokenizer.vocab_size:,} tokens in the vocabulary, {plan.batches_per_epoch:,} batches an epoch, "
            f"lengths {', '.join(map(str, boundaries))}, {100 * plan.padding:.0f} % padding",
            flush=True,
        )
        held = bucket_boundaries(validation.lengths, self.batch.buckets)

        def held_batches():
            return (batch for _, batch in eval_batches(validation, tokens=self.batch.tokens, boundaries=held))

        return Opened(
            tokenizer=tokenizer,
            spec=Spec(
                uses=("text2text-generation",),
                vocab=tokenizer.vocab_size,
                multiple=VOCAB_MULTIPLE,
                length=None if known is None else max(*boundaries, *held),
            ),
            batches=BucketStream(plan, train, process_index=jax.process_index(), process_count=jax.process_count()),
            validation=held_batches,
            test=held_batches,
            held=[corpus["test"][i] for i in range(len(corpus["test"]))],
            **_published(tokenizer) if known is None else known.published,
        )

    def _tokenizer(self, pairs: PairSource, context: Context) -> Tokenizer:
        path = context.folder.tokenizer
        if path.exists():
            return load_tokenizer(path)
        made = self.bpe.train(pairs)
        made.save(path)
        return made


def _published(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return how the checkpoint of a new model has its tokenizer."""
    fields = {"decoder_start_token_id": tokenizer.bos, "forced_eos_token_id": None}
    return {"published": HubTokenizer.of(tokenizer, single="$A </s>"), "fields": fields}


def _prefixed(pairs: PairSource, prefix: str) -> PairSource:
    return PrefixedSources(pairs, prefix) if prefix else pairs


@dataclass(frozen=True, eq=False)
class PrefixedSources:
    """Sentence pairs whose sources begin with some words."""

    pairs: PairSource
    prefix: str

    @property
    def skipped(self) -> Mapping[str, int]:
        """How many pairs are left out, by reason."""
        return getattr(self.pairs, "skipped", {})

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: SupportsIndex) -> dict[str, str]:
        """Return one pair."""
        pair = self.pairs[index]
        return {**pair, "source": self.prefix + pair["source"]}
