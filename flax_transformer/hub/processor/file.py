"""Tokenizer files of a checkpoint folder: which they are, what they name, and the tokens beside the vocabulary."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax_transformer.data.text.tokenizer import unreadable_is_value_error
from flax_transformer.train.config import parse_object

_UNLIMITED = 10**9  # checkpoints without a limit say so by a huge number
SPECIAL = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
_VOCABULARY = (
    "tokenizer.json", "source.spm", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model",
)  # fmt: skip
_FILES = (
    *_VOCABULARY, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "target.spm",
    "target_vocab.json",
)  # fmt: skip
TEMPLATE, MORE = "chat_template.jinja", "additional_chat_templates"
"""The chat template that is used unasked, and the folder of others."""


def read_files(folder: Path) -> dict[str, bytes]:
    """Read the tokenizer files of a folder, by name.

    Raises:
        FileNotFoundError: no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    more = sorted(f"{MORE}/{path.name}" for path in (folder / MORE).glob("*.jinja"))
    return {name: (folder / name).read_bytes() for name in (*_FILES, TEMPLATE, *more) if (folder / name).is_file()}


def has_vocabulary(files: Mapping[str, bytes]) -> bool:
    """Return whether there is a tokenizer among the files."""
    return any(name in files for name in _VOCABULARY)


def read_object(files: Mapping[str, bytes], name: str, folder: Path) -> dict[str, Any]:
    """Parse a JSON file that must hold an object; an absent file is an empty one."""
    return parse_object(files[name], folder / name) if name in files else {}


def read_vocabulary(files: Mapping[str, bytes], name: str, folder: Path) -> dict[str, int]:
    """Parse a JSON file that maps tokens to ids."""
    content = read_object(files, name, folder)
    for token, id in content.items():
        if type(id) is not int or not 0 <= id < 2**31:
            raise ValueError(f"{folder / name} must map tokens to ids of 0 and up, got {token!r}: {id!r}")
    return content


def read_side(config: Mapping[str, Any], name: str, default: str, folder: Path) -> str:
    """Read `left` or `right`."""
    side = config.get(name, default)
    if side not in ("left", "right"):
        raise ValueError(f"{folder}: {name} must be left or right, got {side!r}")
    return side


def read_max_length(config: Mapping[str, Any], folder: Path) -> int | None:
    """Read how many tokens an input may have, None where there is no limit."""
    length = config.get("model_max_length")
    if length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int | float) or not length > 0:
        raise ValueError(f"{folder}: model_max_length must be a number above 0, got {length!r}")
    return None if length > _UNLIMITED else int(length)


def named_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the special token that the configuration names for each role, None where it says there is none."""
    return {
        role: None if config[key] is None else _special_token(config[key], key, folder)
        for role, key in ((role, f"{role}_token") for role in SPECIAL)
        if key in config
    }


def add_tokens(
    engine: Any,
    files: Mapping[str, bytes],
    config: Mapping[str, Any],
    named: Sequence[Any],
    assumed: Sequence[str],
    folder: Path,
) -> None:
    """Add the tokens that stand beside the vocabulary: those listed with an id, then the special ones.

    Args:
        engine: a ``tokenizers.Tokenizer``, changed in place.
        files: content by name.
        config: the content of ``tokenizer_config.json``.
        named: special tokens of the configuration, which must have an id.
        assumed: special tokens of the kind of tokenizers, left alone where they have none.
        folder: where all this came from, for messages.

    Raises:
        ValueError: a token whose id is not the next free one, or a named one that is in no vocabulary.
    """
    named = [*named, *extra_tokens(config, folder).values()]
    present = engine.get_added_tokens_decoder()
    for id, token in listed_tokens(files, config, {token.content for token in named}, folder):
        if repr(present.get(id)) != repr(token):
            engine.add_tokens([token])
        if engine.token_to_id(token.content) != id:
            got = engine.token_to_id(token.content)
            raise ValueError(f"{folder}: added token {token.content!r} must get id {id}, it gets {got}")
    known = {token.content for token in engine.get_added_tokens_decoder().values() if token.special}
    for token in named:
        if engine.token_to_id(token.content) is None:
            raise ValueError(f"{folder}: special tokens must be in the vocabulary, got {token.content!r}")
    assumed = [_special_token(token, "", folder) for token in assumed if engine.token_to_id(token) is not None]
    engine.add_special_tokens([token for token in (*named, *assumed) if token.content not in known])


def extra_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the special tokens that have no role, by the name that a class has for each, or by their places."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = dict(enumerate(extra)) if isinstance(extra, list) else extra
    own = config.get("model_specific_special_tokens") or {}
    if not isinstance(extra, dict) or not isinstance(own, dict):
        raise ValueError(f"{folder}: extra_special_tokens must be a list or an object, got {extra!r:.80}")
    return {name: _special_token(token, "extra_special_tokens", folder) for name, token in {**extra, **own}.items()}


def spelling(token: Any) -> Any:
    """Return how a token is spelled that a file has as a string or as an object, or that is one of `tokenizers`."""
    return token.get("content") if isinstance(token, Mapping) else getattr(token, "content", token)


def listed_tokens(
    files: Mapping[str, bytes], config: Mapping[str, Any], named: set[str], folder: Path
) -> list[tuple[int, Any]]:
    """Return the added tokens that the files list, in the order of their ids."""
    import tokenizers

    if "added_tokens_decoder" in config:
        with unreadable_is_value_error(folder / "tokenizer_config.json"):
            listed = config["added_tokens_decoder"].items()
            return sorted(((int(id), tokenizers.AddedToken(**token)) for id, token in listed), key=lambda pair: pair[0])
    listed = read_vocabulary(files, "added_tokens.json", folder)
    return [
        (id, tokenizers.AddedToken(token, normalized=token not in named, special=token in named))
        for token, id in sorted(listed.items(), key=lambda pair: pair[1])
    ]


def _special_token(value: Any, key: str, folder: Path) -> Any:
    import tokenizers

    if isinstance(value, str):
        value = {"content": value, "normalized": False}
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise ValueError(f"{folder}: {key} must be a string or an object with content, got {value!r}")
    flags = {name: value[name] for name in ("lstrip", "rstrip", "single_word", "normalized") if name in value}
    with unreadable_is_value_error(folder / "tokenizer_config.json"):
        return tokenizers.AddedToken(value["content"], special=True, **flags)
