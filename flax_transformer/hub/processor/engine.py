"""Tokenizers that split text by a program: with the methods of ``tokenizers.Tokenizer`` that ours calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Encoding:
    """The ids of one text, and how its tokens are spelled there."""

    ids: list[int]
    tokens: list[str]

    @property
    def type_ids(self) -> list[int]:
        """Return the type ids of one text: all are 0."""
        return [0] * len(self.ids)


class Engine:
    """Encodes single texts, one after the other; a subclass splits them and joins their tokens."""

    model = post_processor = None
    name = "such a"
    """What messages call the tokenizer."""
    encode_special_tokens = False
    """Whether special tokens in a text are read as any characters."""

    def __init__(self, vocabulary: Mapping[str, int], unk: str, end: str | None = None):
        self._vocabulary, self._unk, self._end = dict(vocabulary), unk, end
        self.begin: str | None = None
        """The mark before a text, if there is one."""
        self._names = {id: token for token, id in self._vocabulary.items()}
        self._truncation: dict[str, Any] = {}

    def get_vocab(self, with_added_tokens: bool = True) -> dict[str, int]:
        """Return the id of every token."""
        return dict(self._vocabulary)

    def get_vocab_size(self, with_added_tokens: bool = True) -> int:
        """Count all tokens."""
        return len(self._vocabulary)

    def token_to_id(self, token: str) -> int | None:
        """Look up a token."""
        return self._vocabulary.get(token)

    def id_to_token(self, id: int) -> str | None:
        """Spell a token."""
        return self._names.get(id)

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        """Count what is added to a text: the marks before and behind it, where there are any.

        Raises:
            ValueError: for a pair; these models read one text.
        """
        if is_pair:
            raise ValueError(f"{self.name} tokenizer reads single texts, got a pair")
        return int(self._end is not None) + int(self.begin is not None)

    def enable_truncation(self, max_length: int, direction: str) -> None:
        """Cut each text so that it fits, marks included."""
        self._truncation = {"max_length": max_length, "direction": direction}

    def no_truncation(self) -> None:
        """Cut nothing."""
        self._truncation = {}

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Encoding]:
        """Turn texts into ids, each between its marks."""
        if any(isinstance(text, tuple) for text in texts):
            self.num_special_tokens_to_add(True)
        marks = ([self.begin], [self._end]) if add_special_tokens else ()
        return [self._encode(text, *([mark for mark in side if mark is not None] for side in marks)) for text in texts]

    encode_batch = encode_batch_fast

    def decode_batch(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """Turn rows of ids into texts."""
        return [self._decode(row, skip_special_tokens) for row in rows]

    def split(self, text: str) -> list[str]:
        """Cut a text into tokens, those that the vocabulary lacks among them."""
        raise TypeError(f"{type(self).__name__} splits no text")

    def _decode(self, row: Sequence[int], skip: bool) -> str:
        raise TypeError(f"{type(self).__name__} joins no tokens")

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """Return the tokens beside the vocabulary, by id: there are none."""
        return {}

    def _encode(self, text: str, before: Sequence[str] = (), after: Sequence[str] = ()) -> Encoding:
        tokens = self.split(text)
        if self._truncation:
            room = self._truncation["max_length"] - len(before) - len(after)
            first = self._truncation["direction"] == "right"
            tokens = tokens[:room] if first else tokens[max(len(tokens) - room, 0) :]
        tokens = [*before, *tokens, *after]
        unk = self._vocabulary[self._unk]
        return Encoding([self._vocabulary.get(token, unk) for token in tokens], tokens)
