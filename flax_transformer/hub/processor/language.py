"""Tokens of languages: which there are, and a tokenizer that marks texts with those of two.

mBART has codes such as de_DE, NLLB such as deu_Latn, M2M-100 such as de, whose token is __de__.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flax_transformer.hub.processor.dress import set_template
from flax_transformer.hub.processor.file import read_object
from flax_transformer.hub.processor.tokenizer import HubTokenizer, from_files
from flax_transformer.listing import listed

_TOKEN = re.compile(r"__([a-z]{2,3})__|([a-z]{2,3}_(?:[A-Z]{2}|[A-Z][a-z]{3}))")
CONFIG = "tokenizer_config.json"


def languages(tokenizer: HubTokenizer) -> dict[str, str]:
    """Return the tokens of languages that a tokenizer has, by code, in their order."""
    added = tokenizer.engine.get_added_tokens_decoder()
    found = ((_TOKEN.fullmatch(token.content), token.content) for _, token in sorted(added.items()))
    return {match[1] or match[2]: token for match, token in found if match}


def tokenizer_config(tokenizer: HubTokenizer) -> dict[str, Any]:
    """Return the content of a tokenizer's tokenizer_config.json."""
    return read_object(tokenizer.files, CONFIG, tokenizer.folder)


def between(tokenizer: HubTokenizer, source: str, target: str, model: Mapping[str, Any]) -> HubTokenizer:
    """Return a tokenizer that marks texts as of one language, and by its `target` as of another, in front.

    Args:
      source, target: codes of languages.
      model: the content of config.json.

    Raises:
      ValueError: a language that the tokenizer has no token for; lists some that it has.
    """
    known = languages(tokenizer)
    for name, code in (("source", source), ("target", target)):
        if code not in known:
            raise ValueError(f"the {name} language must be one of {listed(known, 20)}, got {code!r}")
    config = tokenizer_config(tokenizer)
    files = {**tokenizer.files, CONFIG: json.dumps(config | {"src_lang": source}).encode()}
    first, second = (from_files(files, tokenizer.folder, model) for _ in range(2))
    marks = [known[target], "$A", second.eos_token]
    if hasattr(second.engine, "begin"):
        second.engine.begin = known[target]
    else:
        set_template(second.engine, marks, [*marks[:2], "$B", marks[2]])
    return replace(first, target=second)
