"""Text generation: examples of token windows, loss and perplexity of a test text, `TextGenerator`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Int

from flax_transformer.data import each_once, shuffled
from flax_transformer.data.text import Rows, TokenWindows
from flax_transformer.data.text.plain import PlainText, encode_documents
from flax_transformer.frozen import frozen
from flax_transformer.hub import Pretrained
from flax_transformer.hub.generate import start_of, stream_tokens
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.settings import Settings, make_settings
from flax_transformer.ops.sampling import row_keys
from flax_transformer.task.checkpoint import positions_of, tokenizer_of, written_positions_of
from flax_transformer.task.evaluator import Evaluator, Finished, Shown, tested
from flax_transformer.task.opened import Context, Opened, VocabularyConfig, check_rows, stream
from flax_transformer.task.question_answering import Conversation
from flax_transformer.task.spec import Spec


@dataclass(frozen=True)
class HeldText:
    """Held-out text."""

    windows: TokenWindows
    characters: int


@frozen
class TextWindows:
    """Cut running text into windows, whose every token is to be told from those before it."""

    vocabulary: VocabularyConfig = VocabularyConfig()
    """Of a new model; one that begins with a checkpoint has the checkpoint's."""
    rows: int = 32
    """Windows a batch."""
    length: int = 256
    """Tokens a window."""

    def __post_init__(self):
        check_rows(self.rows, self.length)

    @property
    def positions(self) -> int:
        """How many positions a model must have."""
        return self.length

    def open(self, data: PlainText, context: Context) -> Opened:
        """Read the text, learn or load the tokenizer, cut windows; held out is a `HeldText`."""
        documents = {split: data.read(split) for split in ("train", "validation")}
        tokenizer = context.tokenizer or self.vocabulary.open(context.folder, documents["train"])
        tokens = {split: encode_documents(texts, tokenizer).flat for split, texts in documents.items()}
        for split, texts in documents.items():
            print(f"{split}: {sum(map(len, texts)):,} characters, {len(tokens[split]):,} tokens", flush=True)
        print(f"{tokenizer.vocab_size:,} tokens in the vocabulary", flush=True)
        train = TokenWindows(tokens=tokens["train"], length=self.length)
        held = TokenWindows(tokens=tokens["validation"], length=self.length, stride=self.length)
        collate = Rows(length=self.length, pad=tokenizer.pad or 0)
        validation = partial(each_once, held, rows=context.held_rows(self.rows), collate=collate)
        return Opened(
            tokenizer=tokenizer,
            spec=Spec(uses=("text-generation",), vocab=tokenizer.vocab_size),
            batches=stream(shuffled(train, seed=context.seed), collate, self.rows),
            validation=validation,
            test=validation,
            held=HeldText(held, sum(map(len, documents["validation"]))),
        )


@frozen
class TextLoss(Evaluator):
    """Measure the loss of held-out text a token, and in bits a character, which other tokenizers can be compared by.

    Held out is a `HeldText`.
    """

    takes: ClassVar[type] = HeldText
    metric: ClassVar[str] = "loss"
    better: ClassVar[str] = "lower"

    def __call__(self, finished: Finished) -> Shown:
        """Test the model."""
        held = finished.opened.held
        metrics = tested(finished.objective, finished.model, finished.opened.test())
        loss = metrics["loss"]
        metrics["bits_per_character"] = loss * len(held.windows.tokens) / held.characters / math.log(2)
        line = f"validation loss {loss:.4f} a token, {metrics['bits_per_character']:.3f} bits a character"
        if finished.before:
            metrics["loss_before"] = finished.before["loss"]
            line = f"validation loss {finished.before['loss']:.4f} before, {loss:.4f} after"
        return Shown(metrics=metrics, lines=("", line))


@frozen
class Continuations(Evaluator):
    """Continue pieces of held-out text by the language model, which is a `HeldText`."""

    takes: ClassVar[type] = HeldText
    exported: ClassVar[bool] = True

    count: int = 3
    """Pieces."""
    tokens: int = 500
    """Tokens of a continuation, at most; no more than one window of the held-out text either."""
    temperature: float = 0.8
    """Of what is drawn."""

    def __post_init__(self):
        if min(self.count, self.tokens) < 1 or self.temperature <= 0:
            raise ValueError(f"count and tokens must be at least 1, temperature above 0, got {self}")

    def __call__(self, finished: Finished) -> Shown:
        """Write."""
        windows, pretrained = finished.opened.held.windows, finished.pretrained
        prompt = max(min(32, windows.length // 2), 1)
        starts = np.linspace(0, len(windows) - 1, self.count, dtype=int)
        ids = np.stack([windows[int(start)]["tokens"][:prompt] for start in starts])
        new = min(windows.length - prompt + 1, self.tokens)
        options = {"temperature": self.temperature, "top_k": 0, "max_new_tokens": new}
        key = jax.random.key(finished.seed)
        written = np.asarray(pretrained.generate(ids, do_sample=True, key=key, **options))[:, prompt:]
        pairs = list(zip(pretrained.tokenizer.decode(ids), pretrained.tokenizer.decode(written), strict=True))
        lines = [
            line
            for before, after in pairs
            for line in ("", f"  {before!r} →", *(f"    {line}" for line in after.splitlines()))
        ]
        return Shown(samples=[{"source": before, "hypothesis": after} for before, after in pairs], lines=lines)


Tokens = Sequence[int] | Int[np.ndarray, "M"]


USUAL = 100
"""New tokens at most, where neither the caller nor the checkpoint says how many."""


CHUNK = 8
"""Tokens between two looks at whether a text has come to a stop."""


SAMPLE = "The 7 quick brown foxes, jumping over (lazy) dogs: naïve?"
"""Text that two tokenizers are compared by."""


CONTEXT = 8
"""Tokens of a prompt that decide how the first new one is spelled."""


@frozen
class WriterConfig:
    """How a `TextGenerator` writes."""

    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of `hub.generate`, by name; what is not here is the checkpoint's own."""
    stop: tuple[str, ...] = ()
    """Texts that end what is written, and are not part of it."""
    seed: int = 0
    """Of what is drawn, where `do_sample` is set."""

    def __post_init__(self):
        if not all(self.stop):
            raise ValueError(f"stop texts must not be empty, got {self.stop}")


@dataclass(frozen=True)
class TextGenerator:
    """`writer(prompts)` gives what a language model writes; `writer.stream(prompt)` while it is written."""

    pretrained: Pretrained
    config: WriterConfig = field(default_factory=WriterConfig)
    assistant: Pretrained | None = None
    """A smaller checkpoint with the same tokenizer, which proposes tokens: see `assistant_model` of `hub.generate`."""

    def __post_init__(self):
        start_of(self.pretrained)
        tokenizer = tokenizer_of(self.pretrained)
        if self.assistant is not None and tokenizer_of(self.assistant).encode(SAMPLE) != tokenizer.encode(SAMPLE):
            raise ValueError("an assistant must have the same tokenizer: it spells another text with the same tokens")

    @property
    def continues(self) -> bool:
        """Whether what is written goes on from the prompt, as a decoder-only model's does."""
        return "text-generation" in self.pretrained.architecture.uses

    @property
    def chosen(self) -> Settings:
        """The settings, and the checkpoint's own where they say nothing."""
        return make_settings(self.pretrained.config, self.pretrained.generation, dict(self.config.settings))

    @property
    def at_once(self) -> bool:
        """Whether tokens come only when all are there: beams may change until the end, and drafts come in pieces."""
        chosen = self.chosen
        return (
            chosen.num_beams > 1
            or chosen.searches
            or self.assistant is not None
            or chosen.prompt_lookup_num_tokens is not None
        )

    def __call__(self, prompts: Sequence[str], first: int = 0) -> list[list[str]]:
        """Write on from each prompt, or answer it: one text, or as many as `num_return_sequences` says.

        Args:
          first: number of the first prompt, where they are part of many: what is drawn for each depends on its number.

        Raises:
          ValueError: an empty prompt, one longer than the positions, or settings that make no sense.
        """
        ids, mask = self._inputs(prompts)
        settings = self._settings(ids.shape[1]) | self._global(ids)
        if "key" in settings:
            settings["key"] = row_keys(settings["key"], np.arange(first, first + len(prompts)))
        seeds = [row[seen != 0].tolist() if self.continues else [] for row, seen in zip(ids, mask, strict=True)]
        if self.at_once:
            rows = np.asarray(self.pretrained.generate(ids, mask, assistant_model=self.assistant, **settings))
            rows = rows[:, ids.shape[1] if self.continues else 1 :]
        else:
            rows = self._until_stopped(ids, mask, settings, seeds)
        count = len(rows) // len(prompts)
        texts = [self._text(seeds[i // count]).whole(row) for i, row in enumerate(rows)]
        return [texts[i : i + count] for i in range(0, len(texts), count)]

    def stream(self, prompt: str) -> Iterator[str]:
        """Write on from one prompt, or answer it, piece by piece; no piece ends within a character.

        Raises:
          ValueError: at once, as a call does; beams too, whose tokens may change until the end.
        """
        ids, mask = self._inputs([prompt])
        return self._stream(ids, mask)

    def reply(self, talk: Conversation, message: str) -> Iterator[str]:
        """Answer a message of a conversation, piece by piece; the oldest turns are forgotten where room is short.

        It is read as the checkpoint's chat template writes it; without one, each utterance is ended by the end token.

        Raises:
          ValueError: at once: a message that is empty, or what `Conversation.ids` raises.
        """
        tokenizer = tokenizer_of(self.pretrained)
        if not message.strip():
            raise ValueError("a message must not be empty")
        room = positions_of(self.pretrained.model.cfg)
        if room is not None and self.continues:
            room -= self.chosen.max_new_tokens or min(USUAL, room // 2)
        ids = np.array([talk.ids(message, tokenizer, room)], np.int32)
        return self._stream(ids, np.ones_like(ids))

    def _stream(self, ids: Int[np.ndarray, "B T"], mask: Int[np.ndarray, "B T"]) -> Iterator[str]:
        tokens = stream_tokens(self.pretrained, ids, mask, **self._settings(ids.shape[1]), **self._global(ids))
        text = self._text(ids[0].tolist() if self.continues else [])

        def pieces() -> Iterator[str]:
            for chunk in tokens:
                if piece := text.push(chunk[0]):
                    yield piece
                if text.stopped:
                    return
            if piece := text.finish():
                yield piece

        return pieces()

    def _global(self, ids: Int[np.ndarray, "B T"]) -> dict[str, Any]:
        """Let the first token of a source see all others, of a model that sees windows, as its authors do (LED)."""
        if "global_attention_mask" not in self.pretrained.architecture.inputs.takes or self.continues:
            return {}
        return {"global_attention_mask": np.asarray(np.arange(ids.shape[1]) == 0, np.int32) * np.ones_like(ids)}

    def _until_stopped(self, ids: Any, mask: Any, settings: dict[str, Any], seeds: list) -> list[np.ndarray]:
        """Collect tokens until every row has ended, or come to a stop text."""
        chunks: list[np.ndarray] = []
        texts: list[TextStream] = []
        for chunk in stream_tokens(self.pretrained, ids, mask, chunk=CHUNK, **settings):
            chunks.append(chunk)
            if self.config.stop:
                texts = texts or [self._text(seeds[i * len(seeds) // len(chunk)]) for i in range(len(chunk))]
                for text, row in zip(texts, chunk, strict=True):
                    text.push(row)
                if all(text.stopped for text in texts):
                    break
        return list(np.concatenate(chunks, axis=1))

    def _text(self, before: Sequence[int]) -> "TextStream":
        return TextStream(tokenizer_of(self.pretrained), tuple(before)[-CONTEXT:], self.chosen.ends, self.config.stop)

    def _inputs(self, prompts: Sequence[str]) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, "B T"]]:
        tokenizer = tokenizer_of(self.pretrained, *prompts)
        empty = [i for i, prompt in enumerate(prompts, start=1) if not prompt.strip("\r\n" if self.continues else None)]
        if empty or not prompts:
            raise ValueError("a prompt must not be empty" + (f", number {empty[0]} is" if len(prompts) > 1 else ""))
        if tokenizer.pad is None and len(prompts) > 1:
            tokenizer = replace(tokenizer, pad=tokenizer.eos if tokenizer.eos is not None else 0)
        inputs = tokenizer(prompts, side="left" if self.continues else None)
        return inputs["input_ids"], inputs["attention_mask"]

    def _settings(self, prompt: int) -> dict[str, Any]:
        """Complete the settings: how many tokens to write, within the positions, and what to draw from."""
        settings, chosen = dict(self.config.settings), self.chosen
        config, before = self.pretrained.model.cfg, prompt if self.continues else 1
        read, limit = positions_of(config), written_positions_of(config)
        if read is not None and prompt > read:
            raise ValueError(f"a prompt must fit into the {read} positions, got {prompt} tokens")
        room = None if limit is None else limit - before + 1  # the last token is not read again
        if chosen.max_new_tokens is None and chosen.max_length is None:
            settings["max_new_tokens"] = USUAL if room is None else min(USUAL, room)
        elif room is not None and chosen.new_tokens(before) > room:
            raise ValueError(
                f"after a prompt of {prompt} tokens {room} more fit into the {limit} positions, "
                f"got {chosen.new_tokens(before)} to generate"
            )
        if chosen.do_sample:
            settings["key"] = jax.random.key(self.config.seed)
        return settings


class TextStream:
    """Turns tokens into text as they come: never half a character, nor what may yet become a stop text.

    Args:
      tokenizer: spells tokens.
      before: tokens that came before, which decide how the first one is spelled.
      ends: tokens after which nothing counts.
      stop: texts that end it.
    """

    def __init__(self, tokenizer: HubTokenizer, before: Sequence[int], ends: Sequence[int], stop: Sequence[str]):
        self._tokenizer, self._ends, self._stop = tokenizer, set(ends), tuple(stop)
        self._ids = list(before)
        self._begin, self._read = 0, len(self._ids)
        self._held = ""
        self.stopped = False

    def push(self, tokens: Tokens) -> str:
        """Take tokens, and give the text that is certain now."""
        for token in map(int, tokens):
            if self.stopped:
                break
            if token in self._ends:
                return self.finish()
            self._ids.append(token)
            self._held += self._decoded(certain=True)
            self._cut()
        keep = 0 if self.stopped else _overlap(self._held, self._stop)
        said, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return said

    def finish(self) -> str:
        """Return the text that was held back; nothing comes after it."""
        if not self.stopped:
            self._held += self._decoded(certain=False)
            self._cut()
        self.stopped, said, self._held = True, self._held, ""
        return said

    def whole(self, tokens: Tokens) -> str:
        """Return the text of all tokens at once."""
        return self.push(tokens) + self.finish()

    def _decoded(self, *, certain: bool) -> str:
        """Spell the newest tokens after those before them; wait where they end within a character."""
        old, new = self._tokenizer.decode([self._ids[self._begin : self._read], self._ids[self._begin :]])
        if certain and (new.endswith("\N{REPLACEMENT CHARACTER}") or not new.startswith(old)):
            return ""
        if len(new) > len(old) or not certain:
            self._begin, self._read = self._read, len(self._ids)
        return new[len(old) :]

    def _cut(self) -> None:
        places = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if places:
            self._held, self.stopped = self._held[: min(places)], True


def _overlap(text: str, stops: Sequence[str]) -> int:
    """Count the last characters that may begin a stop text."""
    sizes = (n for stop in stops for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n]))
    return max(sizes, default=0)
