"""A checkpoint's tokenizer as its encoder-decoder is trained and decoded: texts with the checkpoint's own marks.

Axes: B rows, P tokens that a decoder begins with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from flax_transformer.data.identity import digest
from flax_transformer.decode import Constraints, make_process
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.hub.settings import make_settings
from flax_transformer.hub.speech import Speech, prompts, undecided
from flax_transformer.listing import listed

CHUNK = 1024
"""Texts that are encoded at a time."""


@dataclass(frozen=True, eq=False)
class Seq2SeqTokenizer:
    """Token ids as a checkpoint's encoder-decoder reads and writes them.

    It has what `Tokenizer` has: `encode` gives a text's tokens without the end mark that every row gets, but with marks
    before it, such as BART's <s>; `bos` is what the decoder begins with. `target` is the same for what is written: its
    tokens begin with those of `prompt` behind the first.
    """

    own: HubTokenizer
    """As the checkpoint has it."""
    hub: HubTokenizer
    """The same with a padding token."""
    prompt: tuple[int, ...]
    """What the decoder reads first: its start token and, of Whisper, language, task, and that no times are told."""
    eos: int
    missing: Mapping[str, int]
    """Ids of special tokens that the checkpoint's config.json does not say."""
    rules: Constraints = Constraints()
    """On what is generated, as generation_config.json has them."""
    marked: bool = True
    """Whether texts get the tokenizer's marks; else `prompt` has all there are."""
    writes: bool = False
    """Whether texts are targets."""

    @property
    def pad(self) -> int:
        """What rows are filled with."""
        return self.hub.pad

    @property
    def bos(self) -> int:
        """The decoder's start token."""
        return self.prompt[0]

    @property
    def unk(self) -> int | None:
        """What stands for what is not in the vocabulary."""
        return self.hub.unk

    @property
    def vocab_size(self) -> int:
        """Count all tokens, added ones included."""
        return self.hub.vocab_size

    @property
    def inner(self) -> Any:
        """What looks tokens up."""
        return self._side.engine

    @cached_property
    def target(self) -> "Seq2SeqTokenizer":
        """The same for texts that are written."""
        return self if self.writes else replace(self, writes=True)

    @property
    def published(self) -> dict[str, Any]:
        """What `Opened` is told of a model's texts: the tokenizer as it was, and the ids that config.json lacks."""
        return {"published": self.own, "fields": self.missing}

    @property
    def _side(self) -> HubTokenizer:
        return self.hub.target or self.hub if self.writes else self.hub

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Turn texts into token ids, without end marks."""
        texts = list(texts)
        rows = [row for i in range(0, len(texts), CHUNK) for row in self._encode(texts[i : i + CHUNK])]
        return [[*self.prompt[1:], *row] for row in rows] if self.writes else rows

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not self.marked:
            return self._side.encode(texts)
        inputs = self._side(texts, side="right")
        rows = zip(inputs["input_ids"], inputs["attention_mask"].sum(axis=1), strict=True)
        return [self._bare(ids[:count].tolist()) for ids, count in rows]

    def _bare(self, row: list[int]) -> list[int]:
        """Leave out the end mark, and of a target a start token, which the decoder begins with anyway."""
        row = row[:-1] if row[-1:] == [self.eos] else row
        return row[1:] if self.writes and row[:1] == [self.bos] else row

    def decode(self, rows: Sequence[Sequence[int]] | np.ndarray) -> list[str]:
        """Turn rows of token ids into texts; each ends before its first end mark, and special ids are left out."""
        kept = []
        for row in rows:
            ids = np.asarray(row).tolist()
            ids = ids[: ids.index(self.eos)] if self.eos in ids else ids
            kept.append([token for token in ids if token != self.pad])
        return self.target._side.decode(kept) if kept else []

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Name each token of one row as the vocabulary spells it."""
        return self._side.tokens(ids)

    def process(self, rows: int) -> Any:
        """Make what keeps a decoding loop to the checkpoint's rules; None where it has none."""
        return make_process(self.rules, np.tile(np.array(self.prompt, np.int32), (rows, 1)))

    @property
    def files(self) -> dict[str, bytes]:
        """The tokenizer's files, and what else tells its tokens."""
        return {**self.own.files, "": repr((self.prompt, self.eos, self.pad, self.marked, self.writes)).encode()}

    def fingerprint(self) -> str:
        """Return a fingerprint of the tokenizer."""
        return digest(repr(sorted(self.files.items())))


def seq2seq_tokenizer(
    tokenizer: HubTokenizer, config: Fields, generation: Fields, *, language: str = "", task: str = ""
) -> Seq2SeqTokenizer:
    """Return how an encoder-decoder of some config.json and generation_config.json reads and writes texts.

    Without a padding token the end token is padding, as is usual: its place tells which of the two it is.

    Args:
      language, task: of what is said, for a checkpoint that has tokens for them.

    Raises:
      ValueError: no end or start token, or a language or a task that must be said, or is not known.
    """
    settings = make_settings(config, generation, {})
    eos = settings.ends[0] if settings.ends else tokenizer.eos
    start = settings.decoder_start_token_id
    start = next((each for each in (start, tokenizer.bos, tokenizer.cls) if each is not None), None)
    if eos is None or start is None:
        which = "eos_token_id" if eos is None else "decoder_start_token_id"
        raise ValueError(f"an encoder-decoder must have a start and an end token, {which} is nowhere in the checkpoint")
    pad = next(each for each in (settings.padding, tokenizer.pad, eos) if each is not None)
    said = {**config, **generation}
    how = Speech(language=language or None, task=task or None, return_timestamps=False)
    speech = any(name in said for name in ("no_timestamps_token_id", "lang_to_id", "forced_decoder_ids"))
    if not speech and (language or task):
        raise ValueError(f"the checkpoint has no tokens for a language or a task, got {language!r} and {task!r}")
    if speech and undecided(said, how):
        codes = listed(sorted(token.strip("<|>") for token in said["lang_to_id"]))
        raise ValueError(f"the checkpoint writes several languages, say by --language which: {codes}")
    prompt = tuple(prompts(said, how, start, 1)[0].tolist()) if speech else (start,)
    ids = {"decoder_start_token_id": start, "eos_token_id": eos, "pad_token_id": pad}
    known = {"decoder_start_token_id": settings.decoder_start_token_id, "eos_token_id": settings.eos_token_id}
    known |= {"pad_token_id": settings.padding}
    return Seq2SeqTokenizer(
        own=tokenizer, hub=replace(tokenizer, pad=pad), prompt=prompt, eos=eos,
        missing={name: id for name, id in ids.items() if known[name] is None},
        rules=settings.constraints(len(prompt)), marked=not speech,
    )  # fmt: skip
