"""Watching tokens as they are generated: texts that end a row, and somebody who is handed each token.

Axes: B rows, P prompt tokens, M generated tokens.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from flax_transformer.decode import Decoded

CHUNK = 16
"""Tokens that are generated before texts are looked for in them."""
BEFORE = "abcdef"
"""What a token is spelled behind, so that it is not the first one of a text."""


@dataclass(frozen=True)
class Watch:
    """What is done with tokens between two calls of the model."""

    stops: tuple[str, ...] = ()
    streamer: Any = None
    tokenizer: Any = None
    spelled: dict[int, str] = field(default_factory=dict)
    """The texts of tokens that were looked up already."""

    @classmethod
    def of(cls, stops: Any, streamer: Any, tokenizer: Any) -> "Watch":
        """Understand `stop_strings` and `streamer`.

        Raises:
          ValueError: texts that are none, texts without a tokenizer, or a streamer without its methods.
        """
        stops = (stops,) if isinstance(stops, str) else tuple(stops or ())
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise ValueError(f"stop_strings must be texts of at least one character, got {stops!r:.80}")
        if stops and tokenizer is None:
            raise ValueError("stop_strings need a tokenizer, the checkpoint has none: generate(…, tokenizer=…)")
        if streamer is not None and not (hasattr(streamer, "put") and hasattr(streamer, "end")):
            raise ValueError(
                "a streamer has put(tokens) and end(); hub.generate.stream_tokens(pretrained, …) yields tokens to a "
                f"loop, got {streamer!r:.60}"
            )
        return cls(stops, streamer, tokenizer)

    @property
    def chunk(self) -> int:
        """Tokens to generate at a time."""
        return CHUNK if self.streamer is None else 1

    def __call__(self, tokens: Generator[Any, None, Decoded], prompt: Any, pad: int) -> Decoded:
        """Return what is generated, each row up to where a text ended it, and padded after that.

        Args:
          tokens: [B, C] at a time, and in the end all of them.
          prompt: [B, P].
          pad: what ended rows are filled up with.
        """
        rows = np.asarray(prompt)
        seen = [[self.spell(int(token)) for token in row] if self.stops else [] for row in rows]
        found, ends = np.zeros((len(rows), 0), np.int32), np.full(len(rows), np.iinfo(np.int32).max)
        if self.streamer is not None:
            self.streamer.put(rows)
        while not (ends <= found.shape[1]).all():
            try:
                new = np.array(next(tokens))
            except StopIteration:
                break
            for i, row in enumerate(new):
                ends[i] = min(ends[i], self._end(seen[i], row, found.shape[1]))
            place = found.shape[1] + np.arange(new.shape[1])
            new = np.where(place < ends[:, None], new, pad)
            found = np.concatenate([found, new], axis=1)
            for column in new.T if self.streamer is not None else ():
                self.streamer.put(column)
        if self.streamer is not None:
            self.streamer.end()
        lengths = np.minimum(ends, found.shape[1])
        zeros = jnp.zeros(found.shape, jnp.float32)[:, None]
        return Decoded(found[:, None], lengths[:, None], zeros[..., 0], zeros)

    def _end(self, seen: list[str], row: Any, before: int) -> int:
        """Find after how many generated tokens a row ends, if among these; what they spell joins what was seen."""
        for i, token in enumerate(row if self.stops else ()):
            seen.append(self.spell(int(token)))
            last, longest = len(seen[-1]), max(map(len, self.stops))
            text = ""
            for piece in reversed(seen):
                text = piece + text
                if len(text) - last >= longest:
                    break
            # One that was complete before this token would have ended the row there, or is the prompt's.
            starts = [max(len(text) - last - len(stop) + 1, 0) for stop in self.stops]
            if last and any(stop in text[start:] for stop, start in zip(self.stops, starts, strict=True)):
                return before + i + 1
        return np.iinfo(np.int32).max

    def spell(self, token: int) -> str:
        """Return the text of a token within a text."""
        if token not in self.spelled:
            begin = self.tokenizer.encode(BEFORE, add_special_tokens=False)
            said = [self.tokenizer.decode(ids, skip_special_tokens=False) for ids in (begin, [*begin, token])]
            self.spelled[token] = said[1][len(said[0]) :]
        return self.spelled[token]
