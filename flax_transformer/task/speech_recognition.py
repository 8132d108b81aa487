"""Speech recognition: examples of spoken texts, word and character error rates, `transcribe`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from flax_transformer.data.audio import CTCRows, SpeechSeq2SeqRows
from flax_transformer.data.examples import Example
from flax_transformer.data.identity import digest
from flax_transformer.data.table import DataSet
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.processor.audio import AudioProcessor
from flax_transformer.hub.processor.ctc import collapse
from flax_transformer.hub.processor.ctc_vocabulary import letters_of
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.speech import Segment, Speech, segments
from flax_transformer.listing import listed
from flax_transformer.metric.edit_distance import letter_edits, word_edits
from flax_transformer.objective.objective import present_rows
from flax_transformer.ops import Mask
from flax_transformer.report.audio_figure import audio_figure, pixels_of
from flax_transformer.report.sample import save_audio, save_image
from flax_transformer.task.attention import attention_weights, spell
from flax_transformer.task.audio_classification import AudioExamples, HeldAudio, frame_sizes, sampled, spectra
from flax_transformer.task.checkpoint import audio_processor_of, require_use
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, compared, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig
from flax_transformer.task.spec import Spec
from flax_transformer.task.translator import Search, beginning, decode_batch, ready, room_of

CTC = "automatic-speech-recognition"  # by letters at every position; an encoder-decoder responds to audio


@dataclass(frozen=True, eq=False)
class Spelled:
    """Add the `tokens` of an example's text, an end token behind them where there is one."""

    tokenizer: Any
    end: int | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Name the tokenizer."""
        files = self.tokenizer.files if hasattr(self.tokenizer, "files") else HubTokenizer.of(self.tokenizer).files
        return digest(repr(sorted(files.items())), repr(self.end))

    def __call__(self, example: Example, rng: np.random.Generator) -> dict[str, Any]:
        """Encode the text."""
        (tokens,) = self.tokenizer.encode([example["text"]])
        return {**example, "tokens": np.array(tokens if self.end is None else [*tokens, self.end], np.int32)}


@frozen
class SpokenLetters(AudioExamples):
    """Lay out the samples of a recording a row, and the letters of what is said in it, for CTC."""

    seconds: int = 4
    letters: Literal["checkpoint", "data"] = "checkpoint"
    """Whose letters a model that begins with a checkpoint writes: the checkpoint's, in capitals or small letters as it
    knows them, or those of the training texts, by a new head."""

    def __post_init__(self):
        super().__post_init__()
        if self.augment.bands:
            raise ValueError(f"samples have no bands to mask, got augment.bands={self.augment.bands}")

    def open(self, data: Any, context: Context) -> Opened:
        """Open the recordings, make a vocabulary of the training texts' letters, or take the checkpoint's.

        Args:
          data: has `open()`, which gives a `DataSet` of recordings with texts.
        """
        known = context.audio_processor
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
            spec=Spec(uses=(CTC,), sizes={"outputs": size}, letters=size if new else None, audio=True),
            objective={"blank": tokenizer.pad or 0},
            fields={f"{role}_token_id": getattr(tokenizer, role) for role in roles},
            **self._laid_out(found, context, collate, sampled(rate) if known is None else known, Spelled(tokenizer)),
        )


@frozen
class SpokenTexts(AudioExamples):
    """Lay out the log-mel spectrum of a recording a row, and the tokens of its text, for an encoder-decoder."""

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
        """Open the recordings, learn or load the tokenizer.

        Args:
          data: has `open()`, which gives a `DataSet` of recordings with texts.
        """
        known = context.audio_processor
        settled = self._settled(known, context.init, "input_features")
        return settled._open(data, context) if known is None else settled._begin(data, context, known)

    def _begin(self, data: Any, context: Context, known: AudioProcessor) -> Opened:
        """Open the recordings for a checkpoint's model."""
        tokenizer = context.seq2seq(self.language, self.task)
        found, _ = self._opened(data, "texts", cut=False)
        length = room(found, tokenizer, 1)
        collate = SpeechSeq2SeqRows(tokens=length, start=tokenizer.bos, pad=tokenizer.pad)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("text2text-generation",), vocab=tokenizer.vocab_size, length=length, audio=True),
            **tokenizer.published,
            **self._laid_out(found, context, collate, known, Spelled(tokenizer.target, tokenizer.eos)),
        )

    def _open(self, data: Any, context: Context) -> Opened:
        found, rate = self._opened(data, "texts", cut=False)
        tokenizer = self.vocabulary.open(context.folder, found.splits["train"].texts)
        length = room(found, tokenizer)
        collate = SpeechSeq2SeqRows(tokens=length, start=tokenizer.bos, pad=tokenizer.pad)
        sizes, processor = frame_sizes(self.seconds, self.bins), spectra(rate, self.seconds, self.bins)
        said = {"decoder_start_token_id": tokenizer.bos, "max_length": length}
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("text2text-generation",), vocab=tokenizer.vocab_size, length=length, sizes=sizes),
            fields={**said, "suppress_tokens": None, "begin_suppress_tokens": None},
            **self._laid_out(found, context, collate, processor, Spelled(tokenizer, tokenizer.eos)),
        )


def room(found: DataSet, tokenizer: Any, multiple: int = 8) -> int:
    """Return how many tokens the longest text has, an end token too, rounded up to a multiple.

    Raises:
      ValueError: a text without any token.
    """
    writer, begun = getattr(tokenizer, "target", None) or tokenizer, len(getattr(tokenizer, "prompt", (0,))) - 1
    lengths = [len(tokens) for each in found.splits.values() for tokens in writer.encode(each.texts)]
    if min(lengths) <= begun:
        raise ValueError("what is said must have a letter at least, got a text without")
    return -(-(max(lengths) + 1) // multiple) * multiple


def as_spelled(found: DataSet, tokenizer: HubTokenizer, name: str) -> DataSet:
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
        return replace(found, splits={split: each.respelled(change) for split, each in found.splits.items()})
    raise ValueError(
        f"the tokenizer of {name} must know every letter of the texts, it lacks {listed(map(repr, unknown))}; "
        "--letters data writes the data's own, by a new head"
    )


WIDEST = 1050
"""Pixels of a sample's image."""


@frozen
class Transcripts(Evaluator):
    """Write down what is said in the test recordings, which are `HeldAudio`, and count what is wrong."""

    takes: ClassVar[type] = HeldAudio
    metric: ClassVar[str] = "wer"
    better: ClassVar[Literal["lower", "higher"]] = "lower"

    search: Search | None = None
    """How an encoder-decoder looks for the best text; None: the best letter of every position (CTC)."""
    count: int = 6
    """Recordings shown on the terminal."""
    images_kept: int = 12
    """Recordings that the report shows, half of them wrong where so many are."""

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        opened = finished.opened
        metrics = tested(finished.objective, finished.model, opened.test())
        hypotheses = list(self.hypotheses_of(finished))
        items = opened.held.table
        examples = [items[index] for index in range(len(items))]
        references = [each["text"] for each in examples]
        words, letters = word_edits(references, hypotheses), letter_edits(references, hypotheses)
        same = [one == other for one, other in zip(references, hypotheses, strict=True)]
        metrics |= {"wer": 100 * words.rate, "cer": 100 * letters.rate, "exact_match": 100 * sum(same) / len(same)}
        chosen = self._chosen(same)
        samples = [
            {
                **self._drawn(finished, index), "source": examples[index]["name"], "target": references[index],
                "hypothesis": hypotheses[index],
            }
            for index in chosen
        ]  # fmt: skip
        shown = [
            line for i in chosen[: self.count] for line in compared(examples[i]["name"], hypotheses[i], references[i])
        ]
        headline = (
            f"word error rate {metrics['wer']:.2f} % ({words.substitutions} substituted, {words.deletions} left out, "
            f"{words.insertions} put in of {words.length:,} words), letters {metrics['cer']:.2f} %, "
            f"{metrics['exact_match']:.1f} % of {len(same):,} recordings without an error"
        )
        return Shown(metrics=metrics, samples=samples, lines=("", *shown, "", headline))

    def hypotheses_of(self, finished: Finished) -> Iterator[str]:
        """Return what the model writes of each test recording."""
        opened, tokenizer = finished.opened, finished.opened.tokenizer
        model = finished.model if self.search is None else ready(finished.model)
        for batch in opened.test():
            present = np.asarray(present_rows(batch))
            if self.search is None:
                best, counts = jax.device_get(_best(model, batch["inputs"]))
                blank = finished.objective.blank
                rows = [collapse(row[:count], blank) for row, count in zip(best, counts, strict=True)]
                texts = [tokenizer.decode(row) if row else "" for row in rows]
            else:
                source, longest = batch["inputs"]["source"], batch["labels"].shape[1]
                longest = room_of(model, tokenizer) if hasattr(tokenizer, "prompt") else longest
                beside = {"rounds": self.search.cache, **beginning(tokenizer, len(source))}
                found = decode_batch(model, source, None, config=self.search.within(longest, tokenizer), **beside)
                texts = tokenizer.decode(np.asarray(found.tokens)[:, 0])
            yield from (text.strip() for text, there in zip(texts, present, strict=True) if there)

    def _chosen(self, same: Sequence[bool]) -> list[int]:
        """Choose recordings to keep: wrong ones, at most half, and others."""
        wrong = [index for index, right in enumerate(same) if not right][: self.images_kept // 2]
        return wrong + [index for index, right in enumerate(same) if right][: self.images_kept - len(wrong)]

    def _drawn(self, finished: Finished, index: int) -> dict[str, Any]:
        """Draw what the model hears of a recording over time; give what a sample has of it."""
        held, root = finished.opened.held, finished.folder.root
        example = held.example(index)
        waveform = held.table[index]["audio"]
        show = self._letters if self.search is None else self._attention
        frames = held.drawn_spectrum(example)
        names, probabilities, seconds, title = show(finished, example)
        steps = round(seconds * 100)
        frames = np.pad(frames, ((0, 0), (0, max(steps - frames.shape[1], 0))), constant_values=frames.min())[:, :steps]
        image = pixels_of(audio_figure(frames, seconds, names, probabilities, title))
        return {
            "picture": save_image(root, str(index), image, WIDEST),
            "audio": save_audio(root, str(index), waveform.samples, waveform.rate),
            "wide": True,
        }

    def _letters(self, finished: Finished, example: Example) -> tuple[list[str], np.ndarray, float, str]:
        """Return the probability of each letter that is written, and of the blank, at every position."""
        samples = example["samples"][None]
        inputs = {"samples": samples, "lengths": np.array([samples.shape[1]], np.int32)}
        probabilities = np.asarray(_shares(finished.model, inputs))[0]
        blank = finished.objective.blank
        tokens = list(dict.fromkeys(collapse(probabilities.argmax(axis=1), blank)))
        names = [*finished.opened.tokenizer.tokens(tokens), "blank"]
        rate = finished.opened.held.processor.rate
        return names, probabilities[:, [*tokens, blank]].T, samples.shape[1] / rate, "probability of each letter"

    def _attention(self, finished: Finished, example: Example) -> tuple[list[str], np.ndarray, float, str]:
        """Return what each token that is written looks at, in the mean of the last layer's heads."""
        tokenizer, frames = finished.opened.tokenizer, example["frames"][None]
        config = self.search.within(room_of(finished.model, tokenizer), tokenizer)
        found = decode_batch(ready(finished.model), frames, None, config=config, **beginning(tokenizer, 1))
        tokens = np.asarray(found.tokens)[0, 0, : int(np.asarray(found.lengths)[0, 0])].tolist()
        read = np.array([[*getattr(tokenizer, "prompt", (tokenizer.bos,)), *tokens[:-1]]], np.int32)
        weights = attention_weights(finished.model, frames, None, read)[-1][-1, 0].mean(axis=0)
        return list(spell(tokenizer, tokens)), weights[-len(tokens) :], frames.shape[1] / 100, "cross-attention"


@jax.jit
def _shares(model: Any, inputs: dict[str, jax.Array]) -> Float[jax.Array, "B S V"]:
    """Return the probability of every token at every position."""
    return jax.nn.softmax(model.output(model.hidden_states(**inputs)))


@jax.jit
def _best(model: Any, inputs: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Return the best token of every position, and how many positions there are."""
    scores = model.output(model.hidden_states(**inputs))
    lengths = model.memory_mask(Mask(lengths=inputs["lengths"])).lengths
    return scores.argmax(axis=-1), jnp.maximum(lengths, 0)


@dataclass(frozen=True)
class Spoken:
    """A piece of what is said: from when to when, in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Transcript:
    """What is said in a recording, and when."""

    text: str
    segments: tuple[Spoken, ...] = ()
    """Piece by piece, where times were asked for."""


def transcribe(
    pretrained: Pretrained,
    audio: Sequence[Any],
    *,
    sampling_rate: int | None = None,
    language: str | None = None,
    task: str | None = None,
    timestamps: bool = False,
    **settings: Any,
) -> list[Transcript]:
    """Write down what is said in each recording, one after another.

    What is longer than a window of the model (30 seconds) is heard window by window, each from the end of the last
    piece that was whole. A model that scores letters at every position (CTC) hears all of a recording, however long it
    is, and gives the best letter of each; it has no language, task, times or settings.

    Args:
      audio: files, bytes of files, `data.audio.Waveform`s, or arrays of samples.
      sampling_rate: of arrays; the model's own by default.
      language: spoken, as a code such as de; by default the most probable one.
      task: `transcribe`, or `translate` into English; by default the checkpoint's own.
      timestamps: whether to tell when each piece is said.
      settings: of generation, as `hub.speech.generate` takes them.

    Raises:
      FileNotFoundError: no such file.
      ValueError: a checkpoint of another kind, without a feature extractor or tokenizer; no recording; a language
        or a task that the checkpoint does not know.
    """
    scores = CTC in pretrained.architecture.uses
    require_use(pretrained, CTC if scores else "text2text-generation", "audio")
    processor, tokenizer = audio_processor_of(pretrained), pretrained.tokenizer
    if tokenizer is None:
        raise ValueError("text needs a tokenizer, the checkpoint has no tokenizer files")
    if scores:
        settings = {name: value for name, value in settings.items() if (name, value) != ("num_beams", 1)}
        if language is not None or task is not None or timestamps or settings:
            asked = {"language": language, "task": task, "timestamps": timestamps, **settings}
            raise ValueError(
                f"a {pretrained.config['architectures'][0]} gives the best letters and nothing else, got "
                f"{', '.join(f'{name}={value!r}' for name, value in asked.items() if value)}"
            )
        return [_letters(pretrained, waveform, sampling_rate) for waveform in audio]
    said = pretrained.generation or pretrained.config
    first = said.get("no_timestamps_token_id")
    how = Speech(language=language, task=task, return_timestamps=True if timestamps else None)

    def spell(pieces: Sequence[Segment]) -> str:
        tokens = [token for piece in pieces for token in piece.tokens if first is None or token < first]
        return tokenizer.decode(tokens).strip() if tokens else ""

    found = []
    for waveform in audio:
        frames = processor(waveform, sampling_rate=sampling_rate, truncation=False)["input_features"]
        (pieces,) = segments(pretrained, frames, None, how, settings)
        spoken = (Spoken(float(piece.start), float(piece.end), spell([piece])) for piece in pieces)
        found.append(Transcript(spell(pieces), tuple(each for each in spoken if each.text) if timestamps else ()))
    return found


def _letters(pretrained: Pretrained, waveform: Any, rate: int | None) -> Transcript:
    logits = pretrained(**pretrained.processor(waveform, sampling_rate=rate)).logits[0]
    tokens = collapse(np.asarray(logits.argmax(axis=-1)), blank=pretrained.config.integer("pad_token_id", 0))
    return Transcript(pretrained.tokenizer.decode(tokens).strip() if tokens else "")
