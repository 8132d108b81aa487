"""What is there once data are open, and the tokenizer they are read by."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import jax

from flax_transformer.data import Examples, ExampleStream, each_once, shuffled
from flax_transformer.data.examples import Collate, of_like_lengths
from flax_transformer.data.stream import Stream
from flax_transformer.data.text import FittedRows, Tokenizer, load_tokenizer, train_byte_bpe
from flax_transformer.data.text.plain import train_characters
from flax_transformer.frozen import frozen
from flax_transformer.hub.inputs import Signature
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.hub.processor.image import ImageProcessor
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.task.seq2seq_tokenizer import Seq2SeqTokenizer
from flax_transformer.task.spec import Spec
from flax_transformer.task.start import (
    start_audio,
    start_inputs,
    start_letters,
    start_processor,
    start_seq2seq,
    start_tokenizer,
    start_uses,
)
from flax_transformer.train.folder import RunFolder

Batches = Callable[[], Iterable[Any]]


@frozen
class Opened:
    """Open data: batches to train on, batches to look at, and what the model is sized by."""

    tokenizer: Tokenizer | HubTokenizer | Seq2SeqTokenizer | None = None
    """What texts are read by, where there are any."""
    spec: Spec
    batches: Stream
    """To train on, endless."""
    validation: Batches
    """Gives the batches that validation metrics are averaged over."""
    test: Batches
    """Gives the batches that the finished model is tested on."""
    held: Any = None
    """What else of the test data is to be shown: texts, classes, kinds; what it is, the examples' class says."""
    published: HubTokenizer | None = None
    """The tokenizer as the exported checkpoint has it; by default as it is."""
    processor: ImageProcessor | AudioProcessor | None = None
    """What makes inputs of images or of recordings, as the exported checkpoint has it."""
    objective: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the objective that only the data or the checkpoint know, as the token that stands for none."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the checkpoint's config.json, besides special tokens and what the model is."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """How the checkpoint generates, in the fields of its file; empty where its family says it, or it does not."""


@frozen
class Context:
    """What examples must know of the run they are made for."""

    folder: RunFolder
    seed: int = 0
    init: str = ""
    """The checkpoint that training begins with, a folder or hub id; empty: a new model."""
    multiple: int = 1
    """Rows of a batch are a multiple of this where they can be, so that devices and parts have equal shares."""
    accumulate: int = 1
    """Parts that a batch of training is cut into."""
    objective: Any = None
    """What is minimised, where examples depend on it, as answers of a teacher do."""

    def held_rows(self, rows: int) -> int:
        """Return the rows of a batch of evaluation: those of a part of training's, which fit into memory.

        Args:
          rows: of a batch of training.
        """
        return max(rows // self.accumulate, 1)

    @property
    def tokenizer(self) -> HubTokenizer | None:
        """The tokenizer of that checkpoint; None for a new model."""
        return start_tokenizer(self.init) if self.init else None

    @property
    def letters(self) -> HubTokenizer | None:
        """The tokenizer of that checkpoint, where it has one; None for a new model too."""
        return start_letters(self.init) if self.init else None

    def seq2seq(self, language: str = "", task: str = "") -> Seq2SeqTokenizer | None:
        """Return that tokenizer as the checkpoint's encoder-decoder reads and writes texts; None for a new model."""
        return start_seq2seq(self.init, language, task) if self.init else None

    @property
    def audio_processor(self) -> AudioProcessor | None:
        """The feature extractor of that checkpoint; None for a new model."""
        return start_audio(self.init) if self.init else None

    @property
    def inputs(self) -> Signature | None:
        """What that checkpoint is given; None for a new model."""
        return start_inputs(self.init) if self.init else None

    @property
    def uses(self) -> tuple[str, ...]:
        """What that checkpoint can do, in the words of `hub.registration.USES`; nothing of a new model."""
        return start_uses(self.init) if self.init else ()

    @property
    def processor(self) -> ImageProcessor | None:
        """The image processor of that checkpoint; None for a new model."""
        return start_processor(self.init) if self.init else None


@runtime_checkable
class ExampleMaker(Protocol):
    """How data become examples and batches."""

    def open(self, data: Any, context: Context) -> Opened:
        """Read the data, learn or load the tokenizer, and lay out batches."""


@frozen
class VocabularyConfig:
    """What a token is: a character, or a piece found by byte-pair encoding."""

    unit: Literal["character", "byte"] = "byte"
    """byte: merges of bytes, lossless on any text."""
    size: int = 8_192
    """Tokens, special ones included, of byte-pair encoding."""

    def open(self, folder: RunFolder, texts: Iterable[str]) -> Tokenizer:
        """Load the run's tokenizer, or learn it from texts and keep it."""
        if folder.tokenizer.exists():
            return load_tokenizer(folder.tokenizer)
        made = train_characters(texts) if self.unit == "character" else train_byte_bpe(texts, vocab_size=self.size)
        made.save(folder.tokenizer)
        return made


def stream(examples: Examples, collate: Collate, rows: int) -> ExampleStream:
    """Stream this process's rows of endless batches."""
    return ExampleStream(
        examples, collate, rows=rows, process_index=jax.process_index(), process_count=jax.process_count()
    )


def split_batches(
    items: Mapping[str, Any], collate: Collate, rows: int, context: "Context", *transforms: Any
) -> dict[str, Any]:
    """Return the batches of an `Opened`, of examples by split: training's shuffled, the others' each once.

    Where a batch is as long as its texts need, those of training are of like lengths, and the others come by length.

    Args:
      transforms: of training examples.
    """
    train, others = items["train"], {split: items[split] for split in ("validation", "test")}
    if isinstance(collate, FittedRows):
        others = {split: sorted(each, key=_tokens) for split, each in others.items()}
        lengths = [_tokens(item) for item in train]
        examples = of_like_lengths(train, *transforms, seed=context.seed, rows=rows, lengths=lengths)
    else:
        examples = shuffled(train, *transforms, seed=context.seed)
    once = partial(each_once, rows=context.held_rows(rows), collate=collate)
    held = {split: partial(once, each) for split, each in others.items()}
    return {"batches": stream(examples, collate, rows), **held}


def _tokens(item: Mapping[str, Any]) -> int:
    return len(item["tokens"])


def check_rows(rows: int, length: int, least: int = 1) -> None:
    """Check the size of batches.

    Raises:
      ValueError: when a batch has no rows, or rows no room for what they must hold.
    """
    if rows < 1 or length < least:
        raise ValueError(f"rows must be at least 1 and length {least}, got {rows} and {length}")
