"""M2M-100's tokenizer: a SentencePiece model over a vocabulary of its own, and tokens of languages behind it.

The model only splits text into pieces; ids come from ``vocab.json``, and a piece it lacks is unknown (Fan et al. 2021).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_transformer.data.text.tokenizer import unreadable_is_value_error
from flax_transformer.hub.processor.engine import Engine
from flax_transformer.hub.processor.file import read_vocabulary
from flax_transformer.hub.processor.language_code import M2M100, WMT21
from flax_transformer.hub.processor.pieces import require_sentencepiece

MODEL = "sentencepiece.bpe.model"
_LISTS = {"m2m100": M2M100, "wmt21": WMT21}


class M2M100Engine(Engine):
    """Splits text of any language; a text begins with the token of its own."""

    name = "an M2M-100"

    def __init__(self, pieces: Any, vocabulary: Mapping[str, int], languages: Sequence[str], special: Mapping):
        ids = {f"__{code}__": len(vocabulary) + at for at, code in enumerate(languages)}
        super().__init__({**vocabulary, **ids}, special["unk"], special["eos"])
        self._pieces, self._languages = pieces, ids
        self._special = {token for token in special.values() if token is not None} | set(ids)
        self._marks = re.compile("(" + "|".join(map(re.escape, sorted(self._special))) + ")")

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        """Return the tokens of languages, by id."""
        import tokenizers

        return {id: tokenizers.AddedToken(token, special=True) for token, id in self._languages.items()}

    def split(self, text: str) -> list[str]:
        """Cut a text into pieces, special tokens between them."""
        tokens: list[str] = []
        for part in self._marks.split(text):
            tokens += [part] if part in self._special else self._pieces.encode(part, out_type=str)
        return tokens

    def _decode(self, row: Sequence[int], skip: bool) -> str:
        text, run = "", []
        for id in row:
            name = self._names.get(id, self._unk)
            if name not in self._special:
                run.append(name)
            elif not skip:
                text, run = text + self._pieces.decode_pieces(run) + name, []
        return (text + self._pieces.decode_pieces(run)).strip()


def build_m2m100(
    files: Mapping[str, bytes], folder: Path, special: Mapping[str, str | None], options: Mapping[str, Any]
) -> M2M100Engine:
    """Make the engine of a folder, whose texts are of the language `src_lang`, en by default.

    Raises:
        ValueError: a missing or malformed file, a vocabulary without the special tokens, or another language; names it.
    """
    missing = [name for name in (MODEL, "vocab.json") if name not in files]
    if missing:
        raise ValueError(f"{folder}: an M2M-100 tokenizer needs {MODEL} and vocab.json, it lacks {missing}")
    require_sentencepiece(folder / MODEL)
    import sentencepiece

    vocabulary = read_vocabulary(files, "vocab.json", folder)
    absent = [token for token in special.values() if token is not None and token not in vocabulary]
    if absent:
        raise ValueError(f"{folder}: special tokens must be in the vocabulary, got {', '.join(map(repr, absent))}")
    codes, source = options.get("language_codes") or "m2m100", options.get("src_lang") or "en"
    if codes not in _LISTS:
        raise ValueError(f"{folder}: language_codes must be {' or '.join(_LISTS)}, got {codes!r}")
    if source not in _LISTS[codes]:
        raise ValueError(f"{folder}: src_lang must be the code of a language, as en, got {source!r}")
    with unreadable_is_value_error(folder / MODEL):
        pieces = sentencepiece.SentencePieceProcessor(model_proto=files[MODEL])
    engine = M2M100Engine(pieces, vocabulary, _LISTS[codes], special)
    engine.begin = f"__{source}__"
    return engine
