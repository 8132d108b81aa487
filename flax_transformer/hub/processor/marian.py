"""Marian's tokenizer: two SentencePiece models, one a language, over one vocabulary of its own (Junczys-Dowmunt 2018).

The models only split text into pieces; ids come from ``vocab.json``, and a piece it lacks is unknown.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax_transformer.data.text.tokenizer import unreadable_is_value_error
from flax_transformer.hub.processor.file import read_vocabulary
from flax_transformer.hub.processor.kind import require_sentencepiece

_LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
_SPACE = "▁"


@dataclass(frozen=True)
class Encoding:
    """The ids of one text."""

    ids: list[int]

    @property
    def type_ids(self) -> list[int]:
        """Say that all tokens belong to the first text."""
        return [0] * len(self.ids)


class MarianEngine:
    """Splits text of one language; has the methods of ``tokenizers.Tokenizer`` that a checkpoint's tokenizer calls."""

    model = post_processor = None

    def __init__(
        self, pieces: Any, joiner: Any, vocabulary: Mapping[str, int], names: Mapping[int, str], special: Mapping
    ):
        self._pieces, self._joiner, self._vocabulary, self._names = pieces, joiner, vocabulary, names
        self._special = [special[role] for role in ("eos", "unk", "pad")]
        self._eos, self._unk = (vocabulary[special[role]] for role in ("eos", "unk"))
        self._marks = re.compile("(" + "|".join(map(re.escape, self._special)) + ")")
        self._truncation: dict[str, Any] = {}

    def get_vocab_size(self) -> int:
        """Count all tokens."""
        return len(self._vocabulary)

    def token_to_id(self, token: str) -> int | None:
        """Look a token up."""
        return self._vocabulary.get(token)

    def id_to_token(self, id: int) -> str | None:
        """Spell a token."""
        return self._names.get(id)

    def num_special_tokens_to_add(self, is_pair: bool) -> int:
        """Count what is added to a text: the end mark.

        Raises:
            ValueError: for a pair; these models read one text.
        """
        if is_pair:
            raise ValueError("a Marian tokenizer reads single texts, got a pair")
        return 1

    def enable_truncation(self, max_length: int, direction: str) -> None:
        """Cut each text so that it fits, end mark included."""
        self._truncation = {"max_length": max_length, "direction": direction}

    def no_truncation(self) -> None:
        """Cut nothing."""
        self._truncation = {}

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[Encoding]:
        """Turn texts into ids, each ended by the end mark."""
        return [Encoding(self._encode(text, add_special_tokens)) for text in texts]

    def decode_batch(self, rows: Sequence[Sequence[int]], skip_special_tokens: bool = True) -> list[str]:
        """Turn rows of ids into texts."""
        return [self._decode(row, skip_special_tokens) for row in rows]

    def _encode(self, text: str, end: bool) -> list[int]:
        tokens: list[str] = []
        for part in self._marks.split(text):
            if part in self._special:
                tokens.append(part)
            elif part:
                language = _LANGUAGE.match(part)
                tokens += [language.group()] if language else []
                tokens += self._pieces.encode(part[language.end() :] if language else part, out_type=str)
        ids = [self._vocabulary.get(token, self._unk) for token in tokens]
        if self._truncation:
            room = self._truncation["max_length"] - end
            ids = ids[:room] if self._truncation["direction"] == "right" else ids[max(len(ids) - room, 0) :]
        return [*ids, self._eos] if end else ids

    def _decode(self, row: Sequence[int], skip: bool) -> str:
        text, run = "", []
        for id in row:
            name = self._names.get(id)
            if name in self._special:
                text += "" if skip else self._joiner.decode_pieces(run) + name + " "
                run = run if skip else []
            elif name is not None:
                run.append(name)
        return (text + self._joiner.decode_pieces(run)).replace(_SPACE, " ").strip()


def build_marian(
    files: Mapping[str, bytes], folder: Path, special: Mapping[str, str | None]
) -> tuple[MarianEngine, MarianEngine]:
    """Make the engines of the source and of the target language.

    Raises:
        ValueError: a missing or malformed file, or a vocabulary without the special tokens; names it.
    """
    require_sentencepiece(folder / "source.spm")
    import sentencepiece

    missing = [name for name in ("target.spm", "vocab.json") if name not in files]
    if missing:
        raise ValueError(
            f"{folder}: a Marian tokenizer needs source.spm, target.spm and vocab.json, it lacks {missing}"
        )
    models = []
    for name in ("source.spm", "target.spm"):
        with unreadable_is_value_error(folder / name):
            models.append(sentencepiece.SentencePieceProcessor(model_proto=files[name]))
    source = target = read_vocabulary(files, "vocab.json", folder)
    if "target_vocab.json" in files:
        target = read_vocabulary(files, "target_vocab.json", folder)
    for vocabulary in (source, target):
        absent = [special.get(role) for role in ("eos", "unk", "pad") if special.get(role) not in vocabulary]
        if absent:
            raise ValueError(f"{folder}: special tokens must be in the vocabulary, got {', '.join(map(repr, absent))}")
    names = {id: token for token, id in target.items()}
    # With one vocabulary the source model also joins the pieces of an output, as the original tokenizer has it.
    joiner = models[target is not source]
    return (
        MarianEngine(models[0], joiner, source, names, special),
        MarianEngine(models[1], joiner, target, names, special),
    )
