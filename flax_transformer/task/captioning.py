"""Image captioning: examples of captioned images, BLEU and CIDEr of captions, `caption`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int

from flax_transformer.data.examples import Arrays
from flax_transformer.data.identity import digest
from flax_transformer.data.image import ImageRows, Normalise, each_image_once
from flax_transformer.data.image.batch import Draw
from flax_transformer.data.table import DataSet
from flax_transformer.data.text import Rows
from flax_transformer.decode import Beam, Greedy, PowerPenalty
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.metric.caption import caption_scores
from flax_transformer.report.sample import save_image
from flax_transformer.task.checkpoint import File, image_processor_of, positions_of, require_use
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.image_classification import LabelledImages
from flax_transformer.task.image_input import batches, normalised, opened, processor_of, shape_of
from flax_transformer.task.image_text import DESCRIBE, describe, reads_among
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows
from flax_transformer.task.retrieval import HeldMatches, as_seen, numbered, only
from flax_transformer.task.seq2seq_tokenizer import Seq2SeqTokenizer
from flax_transformer.task.spec import Spec
from flax_transformer.task.translator import beginning, decode_batch, ready, room_of
from flax_transformer.text_table import align
from flax_transformer.train.folder import RunFolder

END = "<s> $A <|endoftext|>"
"""The marks around a caption."""


HELD = "validation", "test"


@frozen
class CaptionedImages(LabelledImages):
    """Lay out an image and one of its captions a row, drawn anew each time; held out are `HeldMatches`."""

    vocabulary: VocabularyConfig = VocabularyConfig(size=2_000)
    """Of a new model; one that begins with a checkpoint has the checkpoint's."""
    length: int = 32
    """Most tokens of a caption; longer ones are cut."""

    def __post_init__(self):
        super().__post_init__()
        check_rows(self.rows, self.length, 3)
        if self.augment.mixup or self.augment.cutmix:
            raise ValueError("images with captions are not mixed, got augment.mixup or augment.cutmix")

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images, learn or load the tokenizer.

        Args:
          data: has `open()`, which gives a `DataSet` of captioned images.
        """
        begun = self._begin(data, context)
        padded = context.init != "" and context.inputs.padded
        tell = partial(CaptionTokens.marked, tokenizer=begun.tokenizer, length=self.length, padded=padded)
        once = begun.streams(tell, context.seed)
        test = begun.found.splits["test"]
        texts = list(dict.fromkeys(chain(*test["captions"], begun.found.classes)))
        return begun.opened(
            once,
            uses=("retrieval",),
            held=HeldMatches(
                sides=("texts", "images"),
                first=partial(_texts, tell([(text,) for text in texts]), begun.rows),
                second=lambda: (only(batch, "images") for batch in once["test"]()),
                belong=np.array([[text in captions for captions in map(set, test["captions"])] for text in texts]),
                show=(texts.__getitem__, partial(as_seen, test["image"], begun.fixed)),
            ),
        )

    def _begin(self, data: Any, context: Context, known: Any = None) -> "_Begun":
        found = opened(data, "captions")
        settled = self._settled(context, found.channels)
        texts = chain(*found.splits["train"]["captions"])
        known = context.tokenizer if known is None else known
        tokenizer = known or captions_tokenizer(self.vocabulary, context.folder, texts)
        normalise = normalised(settled.mean, settled.std, found.channels)
        shape, rows = shape_of(found, settled.size), context.held_rows(settled.rows)
        return _Begun(settled, found, tokenizer, shape, settled._fixed(), normalise, rows)


@frozen
class ImageCaptions(CaptionedImages):
    """Lay out an image and one of its captions a row, for an encoder-decoder that writes the caption; held out are
    `HeldCaptions`.
    """

    def open(self, data: Any, context: Context) -> Opened:
        """Open the images, learn or load the tokenizer; arguments as `CaptionedImages`."""
        begun = self._begin(data, context, context.seq2seq())
        tokenizer, test = begun.tokenizer, begun.found.splits["test"]
        make = CaptionTargets.of if context.init else CaptionTargets.marked
        once = begun.streams(partial(make, tokenizer=tokenizer, length=self.length), context.seed)
        return begun.opened(
            once,
            uses=("text2text-generation",),
            **tokenizer.published if context.init else {"fields": {"decoder_start_token_id": tokenizer.bos}},
            held=HeldCaptions(
                batches=once["test"],
                captions=test["captions"],
                show=partial(as_seen, test["image"], begun.fixed),
                name=test["image"].name,
                length=self.length,
            ),
        )


@dataclass(frozen=True, eq=False)
class HeldCaptions:
    """Held-out images and what people said of them."""

    batches: Callable[[], Iterable[Arrays]]
    """Gives the images as a model's `source`, in order, and `weights`, 0 where a row is empty."""
    captions: Sequence[tuple[str, ...]]
    show: Callable[[int], Any]
    """Gives an image by its number, Pillow's, as the model sees it."""
    name: Callable[[int], str]
    """Says which image it is."""
    length: int
    """Most tokens of a caption."""


class _Begun(NamedTuple):
    """Images with captions, and how they are read."""

    settled: CaptionedImages
    found: DataSet
    tokenizer: Any
    """Of the run, or the checkpoint's, as the model is given texts by it."""
    shape: tuple[int, int, int]
    fixed: tuple[Any, ...]
    """What makes images one size."""
    normalise: Normalise
    rows: int
    """Of a batch of evaluation."""

    def streams(self, attach: Callable[[Any], "CaptionTokens"], seed: int) -> dict[str, Any]:
        """Return the stream to train on, and by the name of another split what gives its batches."""
        settled, found = self.settled, self.found
        attached = {split: attach(each["captions"]) for split, each in found.splits.items()}
        train = numbered(found.splits["train"]["image"])
        stream = settled._stream(train, self.shape, self.normalise, seed, attached["train"], classes=len(found.classes))

        def once(split: str, held: tuple[Any, ...]) -> Iterable[Arrays]:
            change = partial(_both, attached[split], self.normalise)
            return each_image_once(*held, rows=self.rows, collate=ImageRows(), normalise=change)

        held = {split: settled._held(numbered(found.splits[split]["image"]), self.fixed) for split in HELD}
        return {"train": stream, **{split: partial(once, split, each) for split, each in held.items()}}

    def opened(self, once: Mapping[str, Any], *, uses: tuple[str, ...], **others: Any) -> Opened:
        """Return what there is."""
        return Opened(
            tokenizer=self.tokenizer,
            spec=Spec(uses=uses, vocab=self.tokenizer.vocab_size, length=self.settled.length, image=self.shape),
            batches=once["train"],
            validation=once["validation"],
            test=once["test"],
            processor=processor_of(self.fixed, self.normalise),
            **others,
        )


def captions_tokenizer(vocabulary: VocabularyConfig, folder: RunFolder, texts: Iterable[str]) -> HubTokenizer:
    """Load the run's tokenizer, or learn it; texts end with its last token, as CLIP's do."""
    return HubTokenizer.of(vocabulary.open(folder, texts).with_end(), single=END)


@dataclass(frozen=True, eq=False)
class CaptionTokens:
    """Put a caption beside each image of a batch, by the image's number; its first one where none is drawn."""

    tokens: Sequence[Sequence[Int[np.ndarray, "_"]]]
    """Of each image, its captions."""
    collate: Rows

    @classmethod
    def marked(
        cls, captions: Sequence[Sequence[str]], tokenizer: HubTokenizer, length: int, *, padded: bool = False
    ) -> "CaptionTokens":
        """Encode captions with the tokenizer's marks, cut to a length; `padded` to it where padding is any token."""
        flat = [text for each in captions for text in each]
        inputs = tokenizer(
            flat, max_length=length, truncate=True, side="right", padding="max_length" if padded else "longest"
        )
        lengths = [length] * len(flat) if padded else inputs["attention_mask"].sum(1)
        rows = [ids[:end] for ids, end in zip(inputs["input_ids"], lengths, strict=True)]
        return cls._parted(rows, captions, Rows(length=length, pad=0 if tokenizer.pad is None else tokenizer.pad))

    @classmethod
    def _parted(cls, rows: Sequence[Any], captions: Sequence[Sequence[str]], collate: Rows) -> "CaptionTokens":
        """Return each image its own."""
        ends = np.cumsum([len(each) for each in captions])
        return cls([rows[end - len(each) : end] for end, each in zip(ends, captions, strict=True)], collate)

    @cached_property
    def fingerprint(self) -> str:
        """Name the captions and how they are laid out."""
        counts = np.array([len(each) for each in self.tokens])
        return digest(repr(self.collate), counts, *(row for each in self.tokens for row in each))

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Add `tokens` and `lengths`."""
        return {**batch, "inputs": {**batch["inputs"], **self.drawn(batch, draw)}}

    def drawn(self, batch: Arrays, draw: Draw | None) -> Arrays:
        """Return `tokens` [B, T] and `lengths` of a caption of each image."""
        numbers = batch["labels"]
        places = np.zeros(len(numbers)) if draw is None else draw.uniform()
        every = [self.tokens[number] for number in numbers.tolist()]
        rows = [{"tokens": each[int(place * len(each))]} for each, place in zip(every, places, strict=True)]
        return self.collate(rows)["inputs"]


@dataclass(frozen=True, eq=False)
class CaptionTargets(CaptionTokens):
    """Lay out images as the `source` of an encoder-decoder, and a caption of each as what it is to write."""

    @classmethod
    def of(cls, captions: Sequence[Sequence[str]], tokenizer: Seq2SeqTokenizer, length: int) -> "CaptionTargets":
        """Encode captions as a checkpoint's decoder writes them, cut to a length with their marks."""
        texts = tokenizer.target.encode([text for each in captions for text in each])
        rows = [np.array([tokenizer.bos, *ids[: length - 2], tokenizer.eos], np.int32) for ids in texts]
        return cls._parted(rows, captions, Rows(length=length, pad=tokenizer.pad))

    def __call__(self, batch: Arrays, draw: Draw | None = None) -> Arrays:
        """Return `source`, `target` [B, T-1], and as labels the token after each, where there is one."""
        drawn = self.drawn(batch, draw)
        tokens = drawn["tokens"]
        there = np.arange(1, tokens.shape[1]) < drawn["lengths"][:, None]
        inputs = {"source": batch["inputs"]["images"], "target": tokens[:, :-1]}
        return {"inputs": inputs, "labels": tokens[:, 1:], "weights": there * batch["weights"][:, None]}


def _both(captions: CaptionTokens, normalise: Normalise, batch: Arrays) -> Arrays:
    return captions(normalise(batch))


def _texts(captions: CaptionTokens, rows: int) -> Iterable[Arrays]:
    for first in range(0, len(captions.tokens), rows):
        each = captions.tokens[first : first + rows]
        yield captions.collate([*({"tokens": row, "labels": 0} for (row,) in each), *[None] * (rows - len(each))])


SHUFFLED = "shuffled_"


@frozen
class Captions(Evaluator):
    """Write captions of the test images, which are `HeldCaptions`, and score them by what people said; and once more
    by what they said of other images, which is what a model gets that does not look.
    """

    takes: ClassVar[type] = HeldCaptions
    metric: ClassVar[str] = "cider"

    beams: int = 4
    """Hypotheses kept at each step; 1 is greedy."""
    length_penalty: float = 1.0
    """Exponent of the length that a hypothesis' log-probability is divided by."""
    count: int = 24
    """Images kept for the report, evenly spread."""

    def __post_init__(self):
        if min(self.beams, self.count) < 1:
            raise ValueError(f"beams and count must be at least 1, got {self.beams} and {self.count}")

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held = finished.opened.held
        written, others = list(self._written(finished)), np.roll(np.arange(len(held.captions)), 1)
        scores = {
            **caption_scores(written, held.captions),
            **{f"{SHUFFLED}{name}": value for name, value in caption_scores(
                written, [held.captions[i] for i in others]).items()},
        }  # fmt: skip
        names = [name for name in scores if not name.startswith(SHUFFLED)]
        rows = [("pictures", *names)] + [
            (title, *(f"{scores[before + name]:.2f}" for name in names))
            for title, before in (("their own", ""), ("others'", SHUFFLED))
        ]
        shown = np.unique(np.linspace(0, len(written) - 1, min(self.count, len(written)), dtype=int)).tolist()
        return Shown(
            metrics={**tested(finished.objective, finished.model, finished.opened.test()), **scores},
            samples=[self._sample(finished, number, written[number]) for number in shown],
            lines=("", align(rows, "l" + "r" * len(names)), f"captions of {len(written):,} test images"),
        )

    def _written(self, finished: Finished) -> Iterator[str]:
        """Write a caption of each test image."""
        held, tokenizer, model = finished.opened.held, finished.opened.tokenizer, ready(finished.model)
        room = room_of(model, tokenizer)
        longest = held.length if room is None else min(held.length, room)
        ends = {"max_length": longest, "eos": tokenizer.eos, "pad": tokenizer.pad}
        config = Greedy(**ends)
        if self.beams > 1:
            config = Beam(**ends, beams=self.beams, length_penalty=PowerPenalty(alpha=self.length_penalty))
        decode = partial(decode_batch, model, lengths=None, config=config)
        for batch in held.batches():
            source = batch["inputs"]["source"]
            found = decode(source, **beginning(tokenizer, len(source)))
            texts = tokenizer.decode(np.asarray(found.best.tokens))
            real = batch["weights"].any(axis=1)
            yield from (text.strip() for text, there in zip(texts, real, strict=True) if there)

    def _sample(self, finished: Finished, number: int, written: str) -> dict[str, str]:
        held = finished.opened.held
        return {
            "picture": save_image(finished.folder.root, str(number), held.show(number)),
            "source": held.name(number),
            "hypothesis": written,
            "caption": "references: " + " · ".join(held.captions[number]),
        }


LONGEST = 40
"""Tokens of a caption at most, where nothing else is said."""


def caption(
    pretrained: Pretrained, files: Sequence[File | Any], *, max_new_tokens: int | None = None,
    prompt: str | None = None, **settings: Any,
) -> list[str]:  # fmt: skip
    """Write a caption of each image, a file or an image of Pillow's.

    Args:
      prompt: what is asked of each image, of a checkpoint that reads images among words; by default to describe it.
      max_new_tokens: of a caption at most; by default 40, or as many as the model has positions.
      settings: of generation, as `hub.generate` takes them; the checkpoint's own by default.

    Raises:
      ValueError: a checkpoint of another kind, without an image processor or a tokenizer; a file that is no image.
    """
    writes = "text-generation" if "text-generation" in pretrained.architecture.uses else "text2text-generation"
    require_use(pretrained, writes, "images")
    if reads_among(pretrained):
        written = describe(pretrained, files, prompt or DESCRIBE, max_new_tokens=max_new_tokens, **settings)
        return [" ".join(text.split()) for text in written]
    if prompt is not None:
        name = pretrained.config["architectures"][0]
        raise ValueError(f"a prompt is for checkpoints that read images among words, a {name} writes captions alone")
    if pretrained.tokenizer is None:
        raise ValueError("captions need a tokenizer, the checkpoint has no tokenizer files")
    image_processor_of(pretrained)
    found: list[str] = []
    settings["max_new_tokens"] = room(pretrained, LONGEST) if max_new_tokens is None else max_new_tokens
    for inputs in batches(pretrained, files):
        found += pretrained.tokenizer.decode(np.asarray(pretrained.generate(**inputs, **settings)))
    return [" ".join(text.split()) for text in found]


def room(pretrained: Pretrained, most: int) -> int:
    """Return so many tokens, or as many as the model has positions."""
    return min(most, positions_of(pretrained.model.cfg) or most)
