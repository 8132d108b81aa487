"""Labelled texts, for classifiers."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from flax_transformer.data import each_once, shuffled
from flax_transformer.data.examples import Example
from flax_transformer.data.label import check_classes
from flax_transformer.data.text import FittedRows, Rows
from flax_transformer.data.text.labelled import Labelled
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.example.opened import Context, Opened, VocabularyConfig, check_rows, stream
from flax_transformer.task.spec import Spec


@frozen
class HideWords:
    """Put the mask in place of each token with a probability, so that no single word decides (word dropout)."""

    share: float
    mask: int
    special: tuple[int, ...]

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Hide tokens of one example."""
        tokens = example["tokens"]
        hidden = (rng.random(len(tokens)) < self.share) & ~np.isin(tokens, self.special)
        return {**example, "tokens": np.where(hidden, self.mask, tokens).astype(np.int32)}


@frozen
class LabelledTexts:
    """Lay out a labelled text a row, between [CLS] and [SEP]."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new encoder; one that begins with a checkpoint has the checkpoint's."""
    hide: float = 0.0
    """Share of tokens hidden in training."""
    rows: int = 64
    """Texts a batch."""
    length: int = 64
    """Most tokens of a text; longer ones are cut."""
    buckets: int = 1
    """How many lengths batches have: all tokens, half of them, a quarter, …; a batch has the least that its texts need,
    and each is a program of its own."""

    def __post_init__(self):
        check_rows(self.rows, self.length, 3)
        if not 0 <= self.hide < 1:
            raise ValueError(f"hide must be in [0, 1), got {self.hide}")
        if not 1 <= self.buckets <= self.length.bit_length() - 2:
            raise ValueError(
                f"buckets must be at least 1 and leave 3 tokens, got {self.buckets} of {self.length} tokens"
            )

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: Any, context: Context) -> Opened:
        """Read the texts, learn or load the tokenizer; held out are the test's `Labelled` texts.

        Args:
          data: has `read(split)`, which gives `Labelled` texts, and `classes()`, which names their classes.
        """
        found = {split: data.read(split) for split in ("train", "validation", "test")}
        classes = tuple(data.classes())
        for split, each in found.items():
            check_classes(each.labels, classes, f"{split} texts")
        tokenizer = encoder_tokenizer(self.vocabulary, context, found["train"].texts)
        if self.hide and tokenizer.mask is None:
            raise ValueError("hide needs a mask token, the checkpoint's tokenizer has none")
        items = {split: _items(each, tokenizer, self.length) for split, each in found.items()}
        for split, each in items.items():
            print(f"{split}: {len(each):,} sentences, {sum(len(item['tokens']) for item in each):,} tokens", flush=True)
        special = (tokenizer.pad, tokenizer.cls, tokenizer.sep)
        hidden = (HideWords(share=self.hide, mask=tokenizer.mask, special=special),) if self.hide else ()
        collate = Rows(length=self.length, pad=tokenizer.pad)
        if self.buckets > 1:
            lengths = tuple(self.length >> step for step in reversed(range(self.buckets)))
            collate = FittedRows(lengths=lengths, pad=tokenizer.pad)
        rows = context.held_rows(self.rows)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("classify",), vocab=tokenizer.vocab_size, classes=classes),
            batches=stream(shuffled(items["train"], *hidden, seed=context.seed), collate, self.rows),
            validation=partial(each_once, items["validation"], rows=rows, collate=collate),
            test=partial(each_once, items["test"], rows=rows, collate=collate),
            held=found["test"],
            fields={
                "id2label": {str(number): name for number, name in enumerate(classes)},
                "label2id": {name: number for number, name in enumerate(classes)},
            },
        )


def encoder_tokenizer(vocabulary: VocabularyConfig, context: Context, texts: Sequence[str]) -> HubTokenizer:
    """Take the checkpoint's tokenizer, load the run's, or learn it from texts.

    Raises:
      ValueError: a checkpoint's that has no [CLS] and [SEP].
    """
    known = context.tokenizer or HubTokenizer.of_encoder(vocabulary.open(context.folder, texts).with_mask())
    if None in (known.cls, known.sep):
        raise ValueError("an encoder's tokenizer has [CLS] and [SEP], that of the checkpoint lacks them")
    return known


def _items(data: Labelled, tokenizer: HubTokenizer, length: int) -> list[Example]:
    inputs = tokenizer(list(data.texts), max_length=length, truncate=True, side="right")
    ends = inputs["attention_mask"].sum(axis=1)
    rows = zip(inputs["input_ids"], ends, data.labels, strict=True)
    return [{"tokens": ids[:end], "labels": label} for ids, end, label in rows]
