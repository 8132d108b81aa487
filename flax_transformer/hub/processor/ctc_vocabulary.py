"""A vocabulary of letters for CTC, made of texts, in the files that `Wav2Vec2CTCTokenizer` reads."""

import json
from collections.abc import Iterable
from pathlib import Path

from flax_transformer.hub.processor.tokenizer import HubTokenizer, from_files

SPECIAL = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}
"""The first one stands for none."""
BETWEEN = "|"
"""What a space is written as."""


def letters_of(texts: Iterable[str]) -> HubTokenizer:
    """Make a token of every letter of some texts, in order of code points.

    >>> letters = letters_of(["ba a"])
    >>> letters.encode(["a b"]), letters.decode([5, 0, 4, 6])
    ([[5, 4, 6]], 'a b')

    Raises:
      ValueError: no letters, or a text with what stands for a space.
    """
    characters = sorted({character for text in texts for character in text} - {" "})
    if not characters or BETWEEN in characters:
        raise ValueError(
            f"texts must have letters, and none that is {BETWEEN!r}, which stands for a space, got "
            f"{''.join(characters) or 'none'}"
        )
    vocabulary = {token: number for number, token in enumerate([*SPECIAL.values(), BETWEEN, *characters])}
    config = {
        "tokenizer_class": "Wav2Vec2CTCTokenizer",
        **{f"{role}_token": token for role, token in SPECIAL.items()},
        "word_delimiter_token": BETWEEN,
        "replace_word_delimiter_char": " ",
        "do_lower_case": False,
    }
    files = {
        "vocab.json": (json.dumps(vocabulary, indent=2, ensure_ascii=False) + "\n").encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
    return from_files(files, Path("."), {})
