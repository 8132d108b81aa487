"""Text classification: examples of labelled texts, `classify`, and named entities by `label_words`.

Axes: B R rows, E classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from flax_transformer.data.examples import Example
from flax_transformer.data.label import check_classes
from flax_transformer.data.table import Table
from flax_transformer.data.text import FittedRows, Rows
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.checkpoint import positions_of, require_use, tokenizer_of
from flax_transformer.task.classification import Label, label_names, ranked
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows, split_batches
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
    """Lay out a labelled text a row, between [CLS] and [SEP]; of a pair the second text with a [SEP] after it."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new encoder; one that begins with a checkpoint has the checkpoint's."""
    hide: float = 0.0
    """Share of tokens hidden in training."""
    rows: int = 64
    """Texts a batch."""
    length: int = 64
    """Most tokens of a text, or of a pair; of longer pairs the longer text is cut first."""
    buckets: int = 1
    """How many lengths batches have: all tokens, half of them, a quarter, …; texts of like lengths are in a batch,
    which has the least that they need, and each is a program of its own."""

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
        """Read the texts, learn or load the tokenizer; held out is the table of the test.

        Args:
          data: has `read(split)`, which gives a table of `text` and `label`, and `classes()`, the names of the
            classes.
        """
        found = {split: data.read(split) for split in ("train", "validation", "test")}
        classes = tuple(data.classes())
        for split, each in found.items():
            check_classes(each["label"], classes, f"{split} texts")
        columns = [name for name in ("text", "pair") if name in found["train"].columns]
        if any(("pair" in each.columns) != ("pair" in columns) for each in found.values()):
            raise ValueError("texts of all splits must be pairs, or those of none, got some with a second text")
        words = [text for name in columns for text in found["train"][name]]
        tokenizer = encoder_tokenizer(self.vocabulary, context, words)
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
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("classification",), vocab=tokenizer.vocab_size, classes=classes),
            **split_batches(items, collate, self.rows, context, *hidden),
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


def _items(data: Table, tokenizer: HubTokenizer, length: int) -> list[Example]:
    pairs = list(data["pair"]) if "pair" in data.columns else None
    inputs = tokenizer(list(data["text"]), pairs, max_length=length, truncate=True, side="right")
    ends = inputs["attention_mask"].sum(axis=1)
    rows = zip(inputs["input_ids"], ends, data["label"], strict=True)
    items = [{"tokens": ids[:end], "labels": label} for ids, end, label in rows]
    if pairs is not None and "token_type_ids" in inputs:
        kinds = zip(items, inputs["token_type_ids"], ends, strict=True)
        items = [{**item, "types": types[:end]} for item, types, end in kinds]
    return items


ROWS = 32
"""Texts that are classified together."""


@dataclass(frozen=True)
class Word:
    """A word of a text, where it is, and the class of its first piece."""

    text: str
    label: str
    probability: float
    start: int
    end: int


def classify(
    pretrained: Pretrained, texts: Sequence[str], pairs: Sequence[str] | None = None, *, multiple: int = 1
) -> list[list[Label]]:
    """Classify texts, or pairs of texts.

    Args:
      multiple: texts are padded to a multiple of so many tokens, so that many of them need few compiled programs.

    Returns:
      For each text all classes, the most probable first. A model with one class gives its probability; one that
      `problem_type` of config.json calls a regression gives numbers as they are.

    Raises:
      ValueError: a checkpoint of another kind, an empty text, or one longer than the positions.
    """
    require_use(pretrained, "classification")
    tokenizer = tokenizer_of(pretrained, *texts)
    if any(not text.strip() for text in texts):
        raise ValueError("a text to classify must not be empty")
    rows = ROWS if tokenizer.pad is not None else 1
    found: list[list[Label]] = []
    for i in range(0, len(texts), rows):
        inputs = _inputs(pretrained, texts[i : i + rows], None if pairs is None else pairs[i : i + rows], multiple)
        logits = np.asarray(pretrained(**inputs).logits.astype(np.float32))
        found += ranked(pretrained, logits)
    return found


def _inputs(
    pretrained: Pretrained, texts: Sequence[str], pairs: Sequence[str] | None, multiple: int
) -> Mapping[str, Any]:
    """Tokenise texts, padded to a multiple where the tokenizer pads and the model has the room."""
    tokenizer, room = tokenizer_of(pretrained, *texts), positions_of(pretrained.model.cfg)
    if multiple > 1 and tokenizer.pad is not None:
        inputs = tokenizer(texts, pairs, pad_to_multiple_of=multiple)
        if room is None or inputs["input_ids"].shape[1] <= room:
            return inputs
    return tokenizer(texts, pairs)


def label_words(pretrained: Pretrained, text: str, *, multiple: int = 1) -> list[Word]:
    """Return the class of every word of a text: that of its first piece.

    Args:
      multiple: the text is padded to a multiple of so many tokens.

    Raises:
      ValueError: a checkpoint of another kind, an empty text, or one longer than the positions.
    """
    require_use(pretrained, "token-classification")
    if not text.strip():
        raise ValueError("a text to classify must not be empty")
    tokenizer = tokenizer_of(pretrained, text)
    inputs, pieces = _inputs(pretrained, [text], None, multiple), tokenizer.engine.encode(text)
    there = np.flatnonzero(inputs["attention_mask"][0])
    probabilities = np.asarray(jax.nn.softmax(pretrained(**inputs).logits[0].astype(np.float32)))[there]
    names = label_names(pretrained, probabilities.shape[-1])
    words: list[Word] = []
    spans = zip(pieces.word_ids, pieces.offsets, pieces.special_tokens_mask, probabilities, strict=True)
    latest = None
    for number, (start, end), special, share in spans:
        start += len(text[start:end]) - len(text[start:end].lstrip())
        if special or start >= end:
            continue
        joined = bool(words) and number == latest and start == words[-1].end
        if joined:
            last = words[-1]
            words[-1] = Word(text[last.start : end], last.label, last.probability, last.start, end)
        else:
            best = int(share.argmax())
            words.append(Word(text[start:end], names[best], float(share[best]), start, end))
        latest = number
    return words
