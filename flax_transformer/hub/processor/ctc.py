"""Tokens of a letter each, and one for none: the vocabulary of `Wav2Vec2CTCTokenizer`, and texts of its tokens."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int


def build_letters(vocabulary: Mapping[str, int], special: Mapping[str, str | None], options: Mapping[str, Any]) -> Any:
    """Make the ``tokenizers.Tokenizer`` of a vocabulary of letters; a space is written as the word delimiter.

    Args:
      special: the spelling of each special token by its role.
      options: the content of ``tokenizer_config.json``.

    Raises:
      ValueError: a vocabulary that changes letters, or that lacks its token for unknown ones.
    """
    import tokenizers
    from tokenizers import decoders, normalizers, pre_tokenizers

    if options.get("do_lower_case") or options.get("target_lang") is not None:
        raise ValueError("a vocabulary of letters is read as it is, got do_lower_case or target_lang")
    if special["unk"] not in vocabulary:
        raise ValueError(f"unknown letters need {special['unk']!r}, which is not in vocab.json")
    between, space = options.get("word_delimiter_token", "|"), options.get("replace_word_delimiter_char", " ")
    if not isinstance(between, str) or not isinstance(space, str) or not between:
        raise ValueError(f"word_delimiter_token must be a text, got {between!r} and {space!r}")
    engine = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(vocabulary), unk_token=special["unk"]))
    engine.normalizer = normalizers.Replace(" ", between)
    engine.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    engine.decoder = decoders.Sequence([decoders.Replace(between, space), decoders.Fuse()])
    long = (token for token in vocabulary if len(token) > 1)
    engine.add_tokens([tokenizers.AddedToken(token, lstrip=True, rstrip=True, normalized=False) for token in long])
    return engine


def collapse(tokens: Int[np.ndarray, "S"], blank: int) -> list[int]:
    """Give the tokens of a text by the best token of each position: without repetitions, and then without blanks.

    >>> collapse(np.array([0, 8, 8, 0, 5, 0, 5, 5]), blank=0)
    [8, 5, 5]
    """
    first = np.append(True, tokens[1:] != tokens[:-1])
    return tokens[first & (tokens != blank)].tolist()
