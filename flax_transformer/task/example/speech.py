"""Sounds and what is said in them, for models that write it down: letters for CTC, or tokens for an encoder-decoder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from flax_transformer.data.audio import AudioSet, CTCRows, RespelledTexts, SpeechSeq2SeqRows
from flax_transformer.data.examples import Example
from flax_transformer.data.identity import digest
from flax_transformer.frozen import frozen
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.hub.processor.ctc_vocabulary import letters_of
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.listing import listed
from flax_transformer.task.example.audio import AudioExamples, frame_sizes, sampled, spectra
from flax_transformer.task.example.opened import Context, Opened, VocabularyConfig
from flax_transformer.task.spec import Spec


@dataclass(frozen=True, eq=False)
class Spelled:
    """Add the `tokens` of an example's text, an end token behind them where there is one."""

    tokenizer: Any
    end: int | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Name the tokenizer."""
        files = HubTokenizer.of(self.tokenizer).files if not hasattr(self.tokenizer, "files") else self.tokenizer.files
        return digest(repr(sorted(files.items())), repr(self.end))

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Encode the text."""
        (tokens,) = self.tokenizer.encode([example["text"]])
        return {**example, "tokens": np.array(tokens if self.end is None else [*tokens, self.end], np.int32)}


@frozen
class SpokenLetters(AudioExamples):
    """Lay out the samples of a sound a row, and the letters of what is said in it, for CTC."""

    seconds: int = 4
    letters: Literal["checkpoint", "data"] = "checkpoint"
    """Whose letters a model that begins with a checkpoint writes: the checkpoint's, in capitals or small letters as it
    knows them, or those of the training texts, by a new head."""

    def __post_init__(self):
        super().__post_init__()
        if self.augment.bands:
            raise ValueError(f"samples have no bands to mask, got augment.bands={self.augment.bands}")

    def open(self, data: Any, context: Context) -> Opened:
        """Open the sounds, make a vocabulary of the training texts' letters, or take the checkpoint's.

        Args:
          data: has `open()`, which gives a `AudioSet` of texts.
        """
        known = context.sound
        return self._settled(known, context.init, "input_values")._open(data, context, known)

    def _open(self, data: Any, context: Context, known: AudioProcessor | None) -> Opened:
        found, rate = self._opened(data, "texts", cut=False)
        tokenizer = context.letters if self.letters == "checkpoint" else None
        new = tokenizer is None
        if new:
            tokenizer = letters_of(found.splits["train"].texts)
        else:
            found = as_spelled(found, tokenizer, context.init)
        collate = CTCRows(samples=self.seconds * rate, tokens=room(found, tokenizer))
        size = tokenizer.vocab_size
        roles = ("pad", "bos", "eos") if new and known is not None else ()
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("transcribe",), sizes={"outputs": size}, letters=size if new else None, sound=True),
            objective={"blank": tokenizer.pad or 0},
            fields={f"{role}_token_id": getattr(tokenizer, role) for role in roles},
            **self._laid_out(found, context, collate, sampled(rate) if known is None else known, Spelled(tokenizer)),
        )


@frozen
class SpokenTexts(AudioExamples):
    """Lay out the log-mel spectrum of a sound a row, and the tokens of what is said in it, for an encoder-decoder."""

    seconds: int = 4
    bins: int = 40
    """Mel bins."""
    vocabulary: VocabularyConfig = VocabularyConfig(size=300)
    """Of a new model; one that begins with a checkpoint has the checkpoint's."""
    language: str = ""
    """That is spoken, as a code such as de, where training begins with a checkpoint of several."""
    task: str = ""
    """Of such a checkpoint: transcribe, or translate into English; transcribe where a language is said."""

    def open(self, data: Any, context: Context) -> Opened:
        """Open the sounds, learn or load the tokenizer.

        Args:
          data: has `open()`, which gives a `AudioSet` of texts.
        """
        known = context.sound
        settled = self._settled(known, context.init, "input_features")
        return settled._open(data, context) if known is None else settled._begin(data, context, known)

    def _begin(self, data: Any, context: Context, known: AudioProcessor) -> Opened:
        """Open the sounds for a checkpoint's model."""
        tokenizer = context.seq2seq(self.language, self.task)
        found, _ = self._opened(data, "texts", cut=False)
        length = room(found, tokenizer, 1)
        collate = SpeechSeq2SeqRows(tokens=length, start=tokenizer.bos, pad=tokenizer.pad)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("respond",), vocab=tokenizer.vocab_size, length=length, sound=True),
            **tokenizer.published,
            **self._laid_out(found, context, collate, known, Spelled(tokenizer.target, tokenizer.eos)),
        )

    def _open(self, data: Any, context: Context) -> Opened:
        found, rate = self._opened(data, "texts", cut=False)
        tokenizer = self.vocabulary.open(context.folder, found.splits["train"].texts)
        length = room(found, tokenizer)
        collate = SpeechSeq2SeqRows(tokens=length, start=tokenizer.bos, pad=tokenizer.pad)
        sizes = frame_sizes(self.seconds, self.bins)
        said = {"decoder_start_token_id": tokenizer.bos, "max_length": length}
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("respond",), vocab=tokenizer.vocab_size, length=length, sizes=sizes),
            fields={**said, "suppress_tokens": None, "begin_suppress_tokens": None},
            **self._laid_out(
                found, context, collate, spectra(rate, self.seconds, self.bins), Spelled(tokenizer, tokenizer.eos)
            ),
        )


def room(found: AudioSet, tokenizer: Any, multiple: int = 8) -> int:
    """Return how many tokens the longest text has, an end token too, rounded up to a multiple.

    Raises:
      ValueError: a text without any token.
    """
    writer, begun = getattr(tokenizer, "target", None) or tokenizer, len(getattr(tokenizer, "prompt", (0,))) - 1
    lengths = [len(tokens) for each in found.splits.values() for tokens in writer.encode(each.texts)]
    if min(lengths) <= begun:
        raise ValueError("what is said must have a letter at least, got a text without")
    return -(-(max(lengths) + 1) // multiple) * multiple


def as_spelled(found: AudioSet, tokenizer: HubTokenizer, name: str) -> AudioSet:
    """Write texts in the letters that a checkpoint knows: as they are, in capitals, or in small letters.

    Raises:
      ValueError: a letter that it knows in no way.
    """
    letters = sorted({character for each in found.splits.values() for text in each.texts for character in text})

    def lacked(change: Callable[[str], str]) -> list[str]:
        rows = zip(letters, tokenizer.encode(list(map(change, letters))), strict=True)
        return [character for character, row in rows if not row or tokenizer.unk in row]

    change = min((str, str.upper, str.lower), key=lambda each: len(lacked(each)))
    unknown = lacked(change)
    if not unknown and change is str:
        return found
    if not unknown:
        print(f"texts are written in {'capitals' if change is str.upper else 'small letters'}, as {name} does")
        return replace(found, splits={split: RespelledTexts(each, change) for split, each in found.splits.items()})
    raise ValueError(
        f"the tokenizer of {name} must know every letter of the texts, it lacks {listed(map(repr, unknown))}; "
        "--letters data writes the data's own, by a new head"
    )
