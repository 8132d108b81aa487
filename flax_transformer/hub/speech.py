"""Speech written down by an encoder-decoder: what it is told to begin with, and long recordings window by window.

Times and windows are those of Whisper (Radford et al. 2022, https://arxiv.org/abs/2212.04356, §3.8), as the sequential
algorithm of Hugging Face's `generate` has them: a window begins where the last whole segment of the one before ended.

Axes: B recordings, C mel bins, T frames of a hundredth of a second, P tokens to begin with, M generated tokens at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.decode import Timestamps, make_process
from flax_transformer.decode.chain import refuse_nan
from flax_transformer.frozen import frozen
from flax_transformer.hub.fallback import Fallback, mean_logprobs, no_speech
from flax_transformer.hub.generate import GenerationTask, run
from flax_transformer.hub.generation_input import STARTS
from flax_transformer.hub.settings import Settings, make_settings
from flax_transformer.hub.whisper_language import CODES
from flax_transformer.listing import listed
from flax_transformer.nn.adapted import choosing_rows

FRAME = 0.01
"""Seconds from one frame to the next."""

Spectrograms = Float[Array | np.ndarray, "B C T"]
Seen = Int[Array | np.ndarray, "B T"] | None


@dataclass(frozen=True)
class Segment:
    """A piece of what was said: when, in seconds, and its tokens, times among them where times were asked for."""

    start: float
    end: float
    tokens: tuple[int, ...]


@frozen
class Speech:
    """What `generate` is told beside `Settings` to write speech down."""

    language: str | tuple[str, ...] | None = None
    """Of all recordings, or of each: a token or a code of `lang_to_id`; None: the checkpoint's, or the detected one."""
    task: str | None = None
    """A word of `task_to_id`: transcribe or translate; None: the checkpoint's."""
    return_timestamps: bool | None = None
    """Whether times are told among the words; None: for a recording longer than a window, or as the checkpoint says."""
    prompt_ids: tuple[int, ...] = ()
    """Tokens before all others in every window: what was said before, or words to come."""


def generate(
    pretrained: Any,
    input_features: Spectrograms,
    attention_mask: Seen = None,
    *,
    language: str | Sequence[str] | None = None,
    task: str | None = None,
    return_timestamps: bool | None = None,
    prompt_ids: Sequence[int] = (),
    **settings: Any,
) -> Int[Array, "B M"]:
    """Write down what is said: token ids as Whisper's `generate` returns them, without those it begins with.

    Args:
      input_features: frames as the processor makes them, of any length.
      attention_mask: 1 where there is audio; recordings of different lengths that are longer than a window need it.
      language, task, return_timestamps, prompt_ids: see `Speech`.
      settings: fields of `Settings`, the checkpoint's own by default; and when windows are written down again or left
        out: `temperature`, one or several, `compression_ratio_threshold`, `logprob_threshold`, `no_speech_threshold`,
        and `key` to draw from: see `Fallback`.

    Raises:
      ValueError: a checkpoint that writes no speech down, frames of another shape, a language or task that it has no
        token for, times for one that has none, sampling, or more tokens than it has positions.
    """
    many = language if isinstance(language, str | None) else tuple(language)
    how = Speech(language=many, task=task, return_timestamps=return_timestamps, prompt_ids=tuple(map(int, prompt_ids)))
    found = segments(pretrained, input_features, attention_mask, how, settings)
    rows = [[token for segment in row for token in segment.tokens] for row in found]
    pad = make_settings(pretrained.config, pretrained.generation, Fallback.of(settings)[1]).filler
    length = max(map(len, rows))
    return jnp.asarray([row + [pad] * (length - len(row)) for row in rows], jnp.int32)


def segments(
    pretrained: Any,
    input_features: Spectrograms,
    attention_mask: Seen = None,
    how: Speech = Speech(),
    settings: Mapping[str, Any] | None = None,
) -> list[list[Segment]]:
    """Write down what is said, segment by segment, in windows of as many frames as the encoder has positions for.

    A window begins where the last segment ended that was whole, which is known where times are told; without them, and
    where none is told twice in a row, each window is a segment. Arguments and errors as those of `generate`.
    """
    fallback, settings = Fallback.of(settings or {})
    chosen = make_settings(pretrained.config, pretrained.generation, settings)
    features, ends = _checked(pretrained, input_features, attention_mask, chosen)
    encoder = pretrained.model.cfg.encoder
    said = pretrained.generation or pretrained.config
    times = how.return_timestamps
    if features.shape[2] > encoder.frames:
        if times is False:
            raise ValueError(
                f"a recording longer than a window is cut at times it tells, got {features.shape[2]} frames, windows of"
                f" {encoder.frames} and return_timestamps=False"
            )
        times = True
    times = bool(said.get("return_timestamps")) if times is None else times
    first = said.get("no_timestamps_token_id")
    if times and first is None:
        raise ValueError("to tell times takes a checkpoint that says no_timestamps_token_id, this one does not")
    begun = begin(pretrained, features[:, :, : encoder.frames], replace(how, return_timestamps=times), chosen)
    latest = said.get("max_initial_timestamp_index")
    rule = Timestamps(begin=first + 1, end=chosen.ends[0], latest=latest) if times else None
    if fallback.no_speech is not None and first is None:
        raise ValueError("to tell silence takes a checkpoint that says no_timestamps_token_id, this one does not")
    writer = _Writer(
        pretrained, begun, chosen, rule, fallback, len(how.prompt_ids), None if first is None else first - 1
    )
    begin_of_times = pretrained.vocabulary + 1 if first is None else first + 1
    found: list[list[Segment]] = [[] for _ in features]
    seek = np.zeros(len(features), int)
    while (active := np.flatnonzero(seek < ends)).size:
        rows = np.resize(active, len(features))  # as many as were compiled for: some twice
        widths = np.minimum(ends - seek, encoder.frames)
        window = np.zeros((*features.shape[:2], encoder.frames), features.dtype)
        for place, row in enumerate(rows):
            window[place, :, : widths[row]] = features[row, :, seek[row] : seek[row] + widths[row]]
        for row, tokens in zip(active, writer(window, rows, seek[rows]), strict=False):
            if tokens is None:
                seek[row] += widths[row]
                continue
            pieces, moved = cut(tokens, int(widths[row]), begin_of_times, encoder.frames // encoder.max_source)
            found[row] += [Segment(seek[row] * FRAME + a, seek[row] * FRAME + b, each) for a, b, each in pieces]
            seek[row] += moved
    return found


def cut(
    tokens: tuple[int, ...], width: int, begin: int, stride: int
) -> tuple[list[tuple[float, float, tuple[int, ...]]], int]:
    """Cut what was written of a window at times that are told twice, as one segment's end and the next one's start.

    Args:
      width: frames of the window that are audio.
      begin: the token of the first time.
      stride: frames from one time to the next.

    Returns:
      Start and end in seconds from the window's own start, and tokens, of each segment; and after how many frames the
      next window begins: at the last time, or, where the window ends in one time, has no two together, or has none
      but the first, behind it.

    >>> cut((10, 3, 14, 14, 4), 3000, 10, 2)
    ([(0.0, 0.08, (10, 3, 14, 14))], 8)
    >>> cut((10, 3, 14), 3000, 10, 2)
    ([(0.0, 0.08, (10, 3, 14))], 3000)
    """
    step, is_time = stride * FRAME, [token >= begin for token in tokens]
    ends = [i + 1 for i in range(len(tokens) - 1) if is_time[i] and is_time[i + 1]]
    closed = is_time[-2:] == [False, True]
    if not ends:
        times = [token for token in tokens if token >= begin]
        last = times[-1] - begin if times and times[-1] != begin else int(width * FRAME / step)
        return [(0.0, last * step, tokens)], width
    if closed:
        ends.append(len(tokens))
    else:
        ends[-1] += 1  # the last time stays with the segment that it ends
    pieces, start = [], 0
    for i, end in enumerate(ends):
        part, at = tokens[start:end], -2 if i == len(ends) - 1 and not closed else -1
        pieces.append(((part[0] - begin) * step, (part[at] - begin) * step, part))
        start = end
    return pieces, width if closed else (tokens[start - 2] - begin) * stride or width


def begin(pretrained: Any, window: Spectrograms, how: Speech, settings: Settings) -> Int[np.ndarray, "B P"]:
    """Return the tokens that each recording's text begins with: start, language, task, and whether there are no times.

    A checkpoint's `forced_decoder_ids` hold where neither language nor task is said. A language that nobody says is the
    most probable one after the start token.

    Raises:
      ValueError: a language or a task that the checkpoint has no token for.
    """
    said, spoken = {**pretrained.config, **pretrained.generation}, None
    if undecided(said, how):
        spoken = detect_language(pretrained, window, said["lang_to_id"], settings)
    return prompts(said, how, settings.decoder_start_token_id, len(window), spoken)


def undecided(said: Mapping[str, Any], how: Speech) -> bool:
    """Return whether the language of a recording must be heard: a checkpoint has several, and nobody says which.

    Args:
      said: what config.json and generation_config.json say.
    """
    language, task = (said.get(name) if each is None else each for name, each in _asked(how))
    forced = _forced(said.get("forced_decoder_ids") or ()) if language is None and task is None else []
    return language is None and "lang_to_id" in said and forced[:1] in ([], [None])


def prompts(
    said: Mapping[str, Any],
    how: Speech,
    start: int | None,
    rows: int,
    spoken: Sequence[int] | Int[np.ndarray, "B"] | None = None,
) -> Int[np.ndarray, "B P"]:
    """Return the tokens that each of so many texts begins with, as `begin`; `spoken` are languages that were heard."""
    language, task = (said.get(name) if each is None else each for name, each in _asked(how))
    if said.get("is_multilingual") is False and (language, task) != (None, None):
        raise ValueError(f"a checkpoint for English alone has no tokens for language={language!r} and task={task!r}")
    begun = [start]
    if language is None and task is None:
        begun += _forced(said.get("forced_decoder_ids") or ())
    found = [list(begun) for _ in range(rows)]
    if language is not None:
        many = (language,) * rows if isinstance(language, str) else language
        if len(many) != rows:
            raise ValueError(f"there must be a language for each recording, got {len(many)} and {rows} recordings")
        spoken = [_language(said, each) for each in many]
    tasks = said.get("task_to_id", {})
    if task is not None and task not in tasks:
        raise ValueError(f"task must be one of {listed(tasks)}, got {task!r:.60}")
    none = said.get("no_timestamps_token_id")
    for i, row in enumerate(found):
        if spoken is not None:
            row[1:2] = [int(spoken[i])]
        if task is not None:
            row.append(tasks[task])
        elif language is not None and tasks and not set(tasks.values()) & set(row):
            row.append(tasks["transcribe"])
        if how.return_timestamps and row[-1] == none:
            row.pop()
        elif not how.return_timestamps and none is not None and row[-1] != none:
            row.append(none)
    return np.asarray([[*how.prompt_ids, *(token for token in row if token is not None)] for row in found], np.int32)


def _asked(how: Speech) -> tuple[tuple[str, Any], ...]:
    return ("language", how.language), ("task", how.task)


def detect_language(
    pretrained: Any, window: Spectrograms, languages: Mapping[str, int], settings: Settings
) -> Int[np.ndarray, "B"]:
    """Return the token of the most probable language of each recording, by its first window."""
    ids = np.full((len(window), 1), settings.decoder_start_token_id, np.int32)
    full = pretrained.model.cfg.encoder.frames
    window = np.pad(window, ((0, 0), (0, 0), (0, full - window.shape[2])))
    logits = np.asarray(pretrained(input_features=window, decoder_input_ids=ids).logits[:, -1].astype(jnp.float32))
    known = np.array(sorted(languages.values()))
    return known[logits[:, known].argmax(axis=1)]


def _forced(pairs: Sequence[Sequence[int | None]]) -> list[int | None]:
    """Return the tokens that a checkpoint forces, which must be those of positions 1, 2, and so on; others are none."""
    if not pairs or pairs[0][0] != 1:
        return []
    if [place for place, _ in pairs] != list(range(1, len(pairs) + 1)):
        raise ValueError(f"forced_decoder_ids must be of positions one after another from 1 on, got {list(pairs)}")
    return [token for _, token in pairs]


def _language(said: Mapping[str, Any], language: str) -> int:
    known, name = said.get("lang_to_id", {}), str(language).lower()
    for token in (name, f"<|{name}|>", f"<|{CODES.get(name)}|>"):
        if token in known:
            return known[token]
    codes = listed(sorted(token.strip("<|>") for token in known))
    raise ValueError(f"language must be one of {codes}, got {language!r:.60}")


@dataclass(frozen=True)
class _Writer:
    """Writes one window of every recording down."""

    pretrained: Any
    begun: Int[np.ndarray, "B P"]
    settings: Settings
    rule: Timestamps | None
    fallback: Fallback
    start: int
    """Where the start token is, behind a prompt."""
    silence: int | None
    """The token that says that nobody speaks."""

    def __call__(
        self, window: Float[np.ndarray, "B C T"], rows: Int[np.ndarray, "B"], seek: Int[np.ndarray, "B"]
    ) -> list[tuple[int, ...] | None]:
        """Return the tokens of each, without an end token; None where nobody speaks."""
        fallback, found = self.fallback, [()] * len(rows)
        pending = range(len(rows))
        quiet = None
        if fallback.no_speech is not None:
            begun = self.begun[rows]
            quiet = np.asarray(no_speech(self.pretrained, window, begun, self.start, self.silence))
        for heat in fallback.temperatures:
            texts, logprobs = self._write(window, rows, heat, seek)
            wrong = []
            for i in pending:
                found[i] = texts[i]
                if quiet is not None and fallback.is_improbable(logprobs[i]) and quiet[i] > fallback.no_speech:
                    found[i] = None
                elif fallback.looks_wrong(texts[i], logprobs[i], self.pretrained.vocabulary):
                    wrong.append(i)
            pending = wrong
            if not pending:
                break
        ends = self.settings.ends
        return [row and (row[:-1] if row[-1] in ends else row) for row in found]

    def _write(
        self, window: Float[np.ndarray, "B C T"], rows: Int[np.ndarray, "B"], heat: float, seek: Int[np.ndarray, "B"]
    ) -> tuple[list[tuple[int, ...]], Float[np.ndarray, "B"]]:
        """Return the tokens of each, and how probable they are on average, or score as beams; 0 if nobody asks."""
        begun, chosen = self.begun[rows], self.settings
        count = _new_tokens(chosen, begun.shape[1], self.pretrained.model.cfg.embedding.max_length)
        constraints = replace(chosen.constraints(begun.shape[1]), timestamps=self.rule)
        process = make_process(constraints, begun, None, count, any_numbers=heat > 0)
        frames = np.ascontiguousarray(window.swapaxes(1, 2))
        how = replace(chosen, do_sample=True, num_beams=1, temperature=heat) if heat else chosen
        keys = self.fallback.keys(heat, rows, seek) if heat else None
        task = GenerationTask(
            STARTS["text2text-generation", "text"], frames, None, begun, keys, how.config(count), process, chosen.cache
        )
        decoded = refuse_nan(run(self.pretrained.decoder, task)).best
        tokens, lengths = np.asarray(decoded.tokens), np.asarray(decoded.lengths)
        logprobs = np.zeros(len(rows))
        if self.fallback.logprob is not None and heat:
            given = tokens[:, :count], lengths, chosen.suppress_tokens
            logprobs = mean_logprobs(self.pretrained, window, begun, *given)
        elif self.fallback.logprob is not None:
            beams = chosen.num_beams > 1
            logprobs = np.asarray(decoded.scores) if beams else np.asarray(decoded.logprobs).sum(1) / lengths
        return [tuple(row[:length].tolist()) for row, length in zip(tokens, lengths, strict=True)], logprobs


def _new_tokens(chosen: Settings, begun: int, positions: int) -> int:
    """Count the tokens that a window may have at most: `max_length` does not count those it begins with."""
    if chosen.max_new_tokens is not None and chosen.max_new_tokens + begun > positions:
        raise ValueError(
            f"max_new_tokens and what a text begins with must fit into the positions, got {chosen.max_new_tokens} and "
            f"{begun}, {positions} positions"
        )
    if chosen.max_new_tokens is not None:
        return chosen.max_new_tokens
    return chosen.new_tokens(0, positions) if chosen.max_length is None else min(chosen.max_length, positions - begun)


def _checked(pretrained: Any, features: Any, mask: Any, chosen: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Return frames, and where each recording ends."""
    name, known = pretrained.config["architectures"][0], pretrained.architecture
    if "text2text-generation" not in known.uses or "audio" not in known.inputs.reads:
        raise ValueError(f"a {name} writes no text: it is no model of speech to text")
    if (rows := choosing_rows(pretrained.model)) is not None:
        raise ValueError(f"recordings are written down with one adapter for all of them, got one for each of {rows}")
    if chosen.do_sample or chosen.num_return_sequences > 1 or not chosen.ends:
        raise ValueError(
            "speech is written down greedily or by beams, one text a recording, up to an end token, got "
            f"do_sample={chosen.do_sample}, num_return_sequences={chosen.num_return_sequences}, "
            f"eos_token_id={chosen.eos_token_id}"
        )
    features, bins = np.asarray(features), pretrained.model.cfg.encoder.front.channels
    if features.ndim != 3 or features.shape[1] != bins or 0 in features.shape or features.dtype.kind != "f":
        raise ValueError(
            f"input_features must be floats [B, {bins}, T], got {features.dtype} of shape {list(features.shape)}"
        )
    if mask is None:
        if len(features) > 1 and features.shape[2] > pretrained.model.cfg.encoder.frames:
            raise ValueError("recordings longer than a window need an attention_mask where there are several, got none")
        return features, np.full(len(features), features.shape[2])
    mask = np.asarray(mask)
    if mask.shape != (len(features), features.shape[2]):
        raise ValueError(
            f"attention_mask must be [B, T] of the frames, got {list(mask.shape)} and {list(features.shape)}"
        )
    short = features.shape[2] <= pretrained.model.cfg.encoder.frames
    return features, np.full(len(features), features.shape[2]) if short else mask.sum(axis=1)
