"""Marian's tokenizer: two SentencePiece models, one a language, over one vocabulary of its own (Junczys-Dowmunt 2018).

The models only split text into pieces; ids come from ``vocab.json``, and a piece it lacks is unknown.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_transformer.data.text.tokenizer import unreadable_is_value_error
from flax_transformer.hub.processor.engine import Engine
from flax_transformer.hub.processor.file import read_vocabulary
from flax_transformer.hub.processor.pieces import require_sentencepiece

_LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
_SPACE = "▁"


class MarianEngine(Engine):
    """Splits text of one language."""

    name = "a Marian"

    def __init__(
        self, pieces: Any, joiner: Any, vocabulary: Mapping[str, int], names: Mapping[int, str], special: Mapping
    ):
        super().__init__(vocabulary, special["unk"], special["eos"])
        self._pieces, self._joiner, self._names = pieces, joiner, names
        self._special = [special[role] for role in ("eos", "unk", "pad")]
        self._marks = re.compile("(" + "|".join(map(re.escape, self._special)) + ")")

    def split(self, text: str) -> list[str]:
        """Cut a text into pieces, its language before them."""
        tokens: list[str] = []
        for part in self._marks.split(text):
            if part in self._special:
                tokens.append(part)
            elif part:
                language = _LANGUAGE.match(part)
                tokens += [language.group()] if language else []
                tokens += self._pieces.encode(part[language.end() :] if language else part, out_type=str)
        return tokens

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
