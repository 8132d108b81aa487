"""Tokens of a letter each, and one for none: the vocabulary of `Wav2Vec2CTCTokenizer`, and texts of its tokens."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from flax_transformer.hub.processor.engine import Engine
from flax_transformer.hub.processor.file import extra_tokens, listed_tokens, read_vocabulary, spelling


class CharacterEngine(Engine):
    """Splits text into letters; the delimiter of words stands for a space, whatever else is said of it."""

    name = "a CTC"

    def __init__(self, vocabulary: Mapping[str, int], special: Mapping[str, str | None], added: Iterable[Any]):
        """Make the engine.

        Args:
            vocabulary: ids of all tokens, added ones included.
            special: the spelling of each special token by its role.
            added: the `tokenizers.AddedToken`s that are found in texts before letters are.
        """
        super().__init__(vocabulary, special["unk"])
        self._added = {token.content: token for token in added}
        self._blank = special["pad"]
        self._special = {token for token in special.values() if token} | {
            token.content for token in self._added.values() if token.special
        }
        self._whole = re.compile(f"({'|'.join(map(re.escape, sorted(self._added, key=len, reverse=True)))})")
        self.between, self.space, self.lower = "|", " ", False

    @property
    def blank(self) -> int:
        """The token that stands for none.

        Raises:
          ValueError: there is no padding token, or not in the vocabulary.
        """
        if self._blank not in self._vocabulary:
            raise ValueError(f"the vocabulary of CTC must have the padding token, its blank, got {self._blank!r}")
        return self._vocabulary[self._blank]

    def id_to_token(self, id: int) -> str:
        """Spell a token; beyond the vocabulary all are unknown."""
        return self._names.get(id, self._unk)

    def split(self, text: str) -> list[str]:
        """Cut a text into added tokens, whose spaces beside are theirs where they say so, and letters."""
        parts = [text] if self.encode_special_tokens or not self._added else self._whole.split(text)
        for i in range(1, len(parts), 2):
            token = self._added[parts[i]]
            parts[i - 1] = parts[i - 1].rstrip() if token.lstrip else parts[i - 1]
            parts[i + 1] = parts[i + 1].lstrip() if token.rstrip else parts[i + 1]
        tokens: list[str] = []
        for i, part in enumerate(parts):
            characters = part.upper() if self.lower else part
            tokens += [part] if i % 2 else [self.between if character == " " else character for character in characters]
        return tokens

    def _decode(self, row: Sequence[int], skip: bool) -> str:
        tokens = [token for token in map(self.id_to_token, row) if token != self._blank]
        if skip:
            tokens = [token for token in tokens if token == self.between or token not in self._special]
        text = "".join(self.space if token == self.between else token for token in tokens).strip()
        return text.lower() if self.lower else text


def build_letters(
    files: Mapping[str, bytes], folder: Path, special: Mapping[str, str | None], options: Mapping[str, Any]
) -> CharacterEngine:
    """Make the engine of a vocabulary of letters.

    Args:
      special: the spelling of each special token by its role.
      options: the content of ``tokenizer_config.json``.

    Raises:
      ValueError: a malformed file, languages of their own vocabularies, or no token for unknown letters.
    """
    import tokenizers

    if options.get("target_lang") is not None:
        raise ValueError(f"{folder}: a vocabulary of letters is of one language, got target_lang")
    vocabulary = read_vocabulary(files, "vocab.json", folder)
    between, space = _delimiter(options, folder), options.get("replace_word_delimiter_char", " ")
    if not isinstance(space, str):
        raise ValueError(f"{folder}: replace_word_delimiter_char must be a text, got {space!r:.40}")
    extra = [token for name, token in extra_tokens(options, folder).items() if name != "word_delimiter_token"]
    named = [token for token in special.values() if token is not None]
    listed = listed_tokens(files, options, {*named, *(token.content for token in extra)}, folder)
    for id, token in listed:
        if vocabulary.setdefault(token.content, id) != id:
            raise ValueError(
                f"{folder}: added token {token.content!r} must get id {id}, it is {vocabulary[token.content]}"
            )
    if special.get("unk") not in vocabulary:
        raise ValueError(f"{folder}: unknown letters need {special.get('unk')!r}, which is not in vocab.json")
    made = partial(tokenizers.AddedToken, normalized=False)
    added = {token.content: token for _, token in listed}
    for token in (*(made(token, special=True) for token in named), *extra, made(between, special=True)):
        added.setdefault(token.content, token)
        vocabulary.setdefault(token.content, max(vocabulary.values()) + 1)
    whole = (token for token in vocabulary if len(token) > 1)
    added |= {token: made(token, lstrip=True, rstrip=True) for token in whole if token not in added}
    special = {**special, "pad": special.get("pad") or ""}
    engine = CharacterEngine(vocabulary, special, added.values())
    engine.between, engine.space, engine.lower = between, space, options.get("do_lower_case") is True
    return engine


def _delimiter(options: Mapping[str, Any], folder: Path) -> str:
    """Read what stands for a space: by itself, or among the tokens that only this class has."""
    said = options.get("word_delimiter_token", extra_tokens(options, folder).get("word_delimiter_token", "|"))
    between = spelling(said)
    if not isinstance(between, str) or not between:
        raise ValueError(f"{folder}: word_delimiter_token must be a text, got {said!r:.40}")
    return between


def collapse(tokens: Int[np.ndarray, "S"], blank: int) -> list[int]:
    """Return the tokens of a text by the best token of each position: without repetitions, and then without blanks.

    >>> collapse(np.array([0, 8, 8, 0, 5, 0, 5, 5]), blank=0)
    [8, 5, 5]
    """
    first = np.append(True, tokens[1:] != tokens[:-1])
    return tokens[first & (tokens != blank)].tolist()
