"""Pictures and their captions, for models that match them.

Axes: B pairs, T positions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.data.examples import Arrays
from flax_transformer.data.identity import digest
from flax_transformer.data.image import ImageRows, Normalise, each_image_once
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.text import Rows
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.example.image import LabelledImages, normalised, opened, processor_of, shape_of
from flax_transformer.task.example.matched import HeldMatches, as_seen, numbered, only
from flax_transformer.task.example.opened import Context, Opened, Vocabulary, check_rows
from flax_transformer.task.spec import Spec
from flax_transformer.train.folder import RunFolder

END = "<s> $A <|endoftext|>"
"""The marks around a caption."""


@frozen
class CaptionedImages(LabelledImages):
    """Lay out a picture and one of its captions a row, drawn anew each time; held out are `HeldMatches`."""

    vocabulary: Vocabulary = Vocabulary(size=2_000)
    """Of a new model; one that begins with a checkpoint has the checkpoint's."""
    length: int = 32
    """Most tokens of a caption; longer ones are cut."""

    def __post_init__(self):
        super().__post_init__()
        check_rows(self.rows, self.length, 3)
        if self.augment.mixup or self.augment.cutmix:
            raise ValueError("pictures with captions are not mixed, got augment.mixup or augment.cutmix")

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: Any, context: Context) -> Opened:
        """Open the pictures, learn or load the tokenizer.

        Args:
          data: has `open()`, which gives an `ImageSet` of captions.
        """
        found = opened(data, "captions")
        settled = self._settled(context, found.channels)
        train = found.splits["train"]
        tokenizer = context.tokenizer or captions_tokenizer(self.vocabulary, context.folder, chain(*train.captions))
        shape, fixed = shape_of(found, settled.size), settled._fixed()
        normalise = normalised(settled.mean, settled.std, found.channels)
        padded = context.init != "" and context.inputs.padded
        tell = partial(Told.of, tokenizer=tokenizer, length=self.length, padded=padded)
        told = {split: tell(each.captions) for split, each in found.splits.items()}
        batches = settled._stream(
            numbered(train.images), shape, normalise, context.seed, told["train"], classes=len(found.classes)
        )
        held = {split: settled._held(numbered(found.splits[split].images), fixed) for split in ("validation", "test")}

        def once(split: str, rows: int) -> Iterable[Arrays]:
            change = partial(_both, told[split], normalise)
            return each_image_once(*held[split], rows=rows, collate=ImageRows(), normalise=change)

        test, texts = found.splits["test"], list(dict.fromkeys(chain(*found.splits["test"].captions, found.classes)))
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("match",), vocab=tokenizer.vocab_size, length=self.length, image=shape),
            batches=batches,
            validation=partial(once, "validation", self.rows),
            test=partial(once, "test", self.rows),
            held=HeldMatches(
                sides=("texts", "pictures"),
                first=partial(_texts, tell([(text,) for text in texts])),
                second=lambda: (only(batch, "images") for batch in once("test", 128)),
                belong=np.array([[text in captions for captions in map(set, test.captions)] for text in texts]),
                show=(texts.__getitem__, partial(as_seen, test.images, fixed)),
            ),
            processor=processor_of(fixed, normalise),
        )


def captions_tokenizer(vocabulary: Vocabulary, folder: RunFolder, texts: Iterable[str]) -> HubTokenizer:
    """Load the run's tokenizer, or learn it; texts end with its last token, as CLIP's do."""
    return HubTokenizer.of(vocabulary.open(folder, texts).with_end(), single=END)


@dataclass(frozen=True, eq=False)
class Told:
    """Put a caption beside each picture of a batch, by the picture's number; its first one where none is drawn."""

    tokens: Sequence[Sequence[Int[np.ndarray, "_"]]]
    """Of each picture, its captions."""
    collate: Rows

    @classmethod
    def of(
        cls, captions: Sequence[Sequence[str]], tokenizer: HubTokenizer, length: int, *, padded: bool = False
    ) -> "Told":
        """Encode captions, cut to a length; `padded` to it where padding is read as any token."""
        flat = [text for each in captions for text in each]
        inputs = tokenizer(
            flat, max_length=length, truncate=True, side="right", padding="max_length" if padded else "longest"
        )
        lengths = [length] * len(flat) if padded else inputs["attention_mask"].sum(1)
        rows = [ids[:end] for ids, end in zip(inputs["input_ids"], lengths, strict=True)]
        ends = np.cumsum([len(each) for each in captions])
        parted = [rows[end - len(each) : end] for end, each in zip(ends, captions, strict=True)]
        return cls(parted, Rows(length=length, pad=0 if tokenizer.pad is None else tokenizer.pad))

    @cached_property
    def fingerprint(self) -> str:
        """Name the captions and how they are laid out."""
        counts = np.array([len(each) for each in self.tokens])
        return digest(repr(self.collate), counts, *(row for each in self.tokens for row in each))

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Add `tokens` and `lengths`."""
        numbers = batch["labels"]
        places = np.zeros(len(numbers)) if draw is None else draw.uniform()
        every = [self.tokens[number] for number in numbers.tolist()]
        rows = [{"tokens": each[int(place * len(each))]} for each, place in zip(every, places, strict=True)]
        return {**batch, "inputs": {**batch["inputs"], **self.collate(rows)["inputs"]}}


def _both(told: Told, normalise: Normalise, batch: Arrays) -> Arrays:
    return normalise(told(batch))


def _texts(told: Told, rows: int = 128) -> Iterable[Arrays]:
    for first in range(0, len(told.tokens), rows):
        each = told.tokens[first : first + rows]
        yield told.collate([*({"tokens": row, "labels": 0} for (row,) in each), *[None] * (rows - len(each))])
