"""Tokenizer files of a checkpoint folder, as a ``tokenizers.Tokenizer``.

Besides ``tokenizer.json``: WordPiece from ``vocab.txt`` (Devlin et al. 2019), byte-level BPE from ``vocab.json`` and
``merges.txt`` (Radford et al. 2019), SentencePiece models (Kudo and Richardson 2018) through the optional package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flax_transformer.data.tokenizer import parse_tokenizer, unreadable_is_value_error
from flax_transformer.train.config import parse_object

SPECIAL = ("pad", "bos", "eos", "unk", "cls", "sep", "mask")
_VOCABULARY = (
    "tokenizer.json", "source.spm", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model",
    "sentencepiece.bpe.model",
)  # fmt: skip
_FILES = (
    *_VOCABULARY, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "target.spm",
    "target_vocab.json", "chat_template.jinja",
)  # fmt: skip
_SPACE = "▁"


@dataclass(frozen=True, eq=False)
class Family:
    """What a family of tokenizers takes for granted where its files do not say it."""

    name: str = "other"
    special: Mapping[str, str] = field(default_factory=dict)
    types: bool | None = None
    """Whether models expect token_type_ids; None: as the template has them."""
    padding_side: str = "right"


_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {
    "bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"
}  # fmt: skip
_GPT2 = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_LLAMA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
_T5 = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_FAMILY = {
    family.name: family
    for family in (
        Family("bert", _BERT, True),
        Family("electra", _BERT, True),
        Family("distilbert", _BERT, False),
        Family("roberta", _ROBERTA, False),
        Family("bart", _ROBERTA, False),
        Family("gpt2", _GPT2, False),
        Family("llama", _LLAMA, False, "left"),
        Family("qwen2", {}, False),
        Family("t5", _T5, False),
        Family("marian", _T5, False),
    )
}


def read_files(folder: Path) -> dict[str, bytes]:
    """Read the tokenizer files of a folder; empty where it has none.

    Raises:
        FileNotFoundError: no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    files = {name: (folder / name).read_bytes() for name in _FILES if (folder / name).is_file()}
    return files if any(name in files for name in _VOCABULARY) else {}


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


def find_family(files: Mapping[str, bytes], tokenizer_class: str | None, model_type: str | None) -> Family:
    """Tell the family by the declared class, else by the model's type, else by the files."""
    if tokenizer_class is not None:
        return _FAMILY.get(tokenizer_class.removesuffix("Fast").removesuffix("Tokenizer").lower(), Family())
    if model_type is not None and model_type in _FAMILY:
        return _FAMILY[model_type]
    if "tokenizer.json" in files:
        return Family()
    signs = {"source.spm": "marian", "spiece.model": "t5", "tokenizer.model": "llama", "vocab.txt": "bert"}
    for name, family in signs.items():
        if name in files:
            return _FAMILY[family]
    return _FAMILY["gpt2" if b"<|endoftext|>" in files.get("vocab.json", b"") else "roberta"]


def build_engine(
    files: Mapping[str, bytes],
    folder: Path,
    family: Family,
    special: Mapping[str, str | None],
    options: Mapping[str, Any],
) -> Any:
    """Make the ``tokenizers.Tokenizer`` that a folder describes, before added tokens.

    Args:
        files: content by name, as `read_files` gives it.
        folder: where they came from, for messages.
        family: whose conventions hold where the files are silent.
        special: the spelling of each special token by its role.
        options: the content of ``tokenizer_config.json``.

    Raises:
        ValueError: a malformed file, a missing one, or a kind of vocabulary that is not supported.
    """
    if "tokenizer.json" in files:
        engine = parse_tokenizer(files["tokenizer.json"], folder / "tokenizer.json")
        if engine.post_processor is None:
            _set_template(engine, ["$A:0"], ["$A:0", "$B:1"])  # tells the texts of a pair apart, also when cut
        return engine
    for name in ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model"):
        if name in files:
            return _sentencepiece(files[name], folder / name, family, special, options)
    if "vocab.txt" in files and "merges.txt" not in files:
        _require(special, ("unk", "cls", "sep"), folder)
        with unreadable_is_value_error(folder / "vocab.txt"):
            return _wordpiece(files["vocab.txt"], special, options)
    if family.name not in ("gpt2", "roberta", "bart"):
        raise ValueError(
            f"{folder}: vocab.json is read for gpt2, roberta and bart, got {family.name}; save it with tokenizer.json"
        )
    if "merges.txt" not in files or "vocab.json" not in files:
        raise ValueError(f"{folder}: byte-level BPE needs vocab.json and merges.txt, got {sorted(files)}")
    _require(special, ("bos", "eos") if family.name == "gpt2" else ("cls", "sep"), folder)
    vocabulary = read_vocabulary(files, "vocab.json", folder)
    with unreadable_is_value_error(folder / "merges.txt"):
        return _byte_bpe(vocabulary, files["merges.txt"], family, special, options)


def _require(special: Mapping[str, str | None], roles: Sequence[str], folder: Path) -> None:
    absent = [role for role in roles if special.get(role) is None]
    if absent:
        raise ValueError(f"{folder}: this vocabulary needs the special tokens {', '.join(roles)}, it lacks {absent}")


def named_tokens(config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Give the special token that the configuration names for each role, None where it says there is none."""
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
        assumed: special tokens of the family, left alone where they have none.
        folder: where all this came from, for messages.

    Raises:
        ValueError: a token whose id is not the next free one, or a named one that is in no vocabulary.
    """
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    extra = list(extra.values()) if isinstance(extra, dict) else extra
    if not isinstance(extra, list):
        raise ValueError(f"{folder}: extra_special_tokens must be a list or an object, got {extra!r}")
    named = [*named, *(_special_token(token, "extra_special_tokens", folder) for token in extra)]
    present = engine.get_added_tokens_decoder()
    for id, token in _listed_tokens(files, config, {token.content for token in named}, folder):
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


def _listed_tokens(
    files: Mapping[str, bytes], config: Mapping[str, Any], named: set[str], folder: Path
) -> list[tuple[int, Any]]:
    """Give the added tokens that the files list, in the order of their ids."""
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


def _wordpiece(content: bytes, special: Mapping[str, str | None], options: Mapping[str, Any]) -> Any:
    import tokenizers

    lines = content.decode("utf-8").removesuffix("\n").split("\n")
    vocabulary = {line.rstrip(): id for id, line in enumerate(lines)}
    if special["unk"] not in vocabulary:
        raise ValueError(f"unknown words need {special['unk']!r}")
    engine = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=special["unk"]))
    engine.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),
        lowercase=options.get("do_lower_case", True),
    )
    engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    engine.decoder = tokenizers.decoders.WordPiece()
    cls, sep = special["cls"], special["sep"]
    _set_template(engine, [cls, "$A:0", f"{sep}:0"], [cls, "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"])
    return engine


def _byte_bpe(
    vocabulary: dict[str, int],
    merges: bytes,
    family: Family,
    special: Mapping[str, str | None],
    options: Mapping[str, Any],
) -> Any:
    import tokenizers

    if not merges.strip():
        raise ValueError("it is empty")
    lines = [line for line in merges.decode("utf-8").split("\n") if line.strip() and not line.startswith("#version")]
    pairs = [tuple(line.rstrip("\r").split(" ")) for line in lines]
    wrong = next((line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2), None)
    if wrong is not None:
        raise ValueError(f"a merge is two pieces and a space between, got {wrong!r}")
    prefix = options.get("add_prefix_space", False)
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    engine.decoder = tokenizers.decoders.ByteLevel()
    if family.name == "gpt2":
        _set_ends(engine, special, bos=options.get("add_bos_token", False), eos=options.get("add_eos_token", False))
    else:
        sep, cls = ((token, engine.token_to_id(token)) for token in (special["sep"], special["cls"]))
        trim = options.get("trim_offsets", True)
        engine.post_processor = tokenizers.processors.RobertaProcessing(sep, cls, trim, prefix)
    return engine


def _sentencepiece(
    content: bytes, path: Path, family: Family, special: Mapping[str, str | None], options: Mapping[str, Any]
) -> Any:
    if family.name not in ("t5", "llama"):
        raise ValueError(f"{path} is read for t5 and llama, got {family.name}; save it with tokenizer.json")
    _require(special, ("unk", "eos"), path)
    require_sentencepiece(path)
    from sentencepiece import sentencepiece_model_pb2

    with unreadable_is_value_error(path):
        model = sentencepiece_model_pb2.ModelProto.FromString(content)
        kind, expected = model.trainer_spec.model_type, {"t5": 1, "llama": 2}[family.name]
        if kind != expected:
            raise ValueError(f"{family.name} is a SentencePiece model of type {expected}, got {kind}")
        engine = _unigram(model, options) if family.name == "t5" else _fallback_bpe(model, special, options)
        import tokenizers

        engine.add_tokens(
            [
                tokenizers.AddedToken(piece.piece, normalized=False, special=piece.type == piece.CONTROL)
                for piece in model.pieces
                if piece.type in (piece.CONTROL, piece.USER_DEFINED)
            ]
        )
    return engine


def _unigram(model: Any, options: Mapping[str, Any]) -> Any:
    """T5: a unigram vocabulary, then sentinels numbered downwards (Raffel et al. 2020)."""
    import tokenizers

    count = options.get("extra_ids", 100)
    if not 0 <= count <= 10_000:
        raise ValueError(f"extra_ids must be between 0 and 10,000, got {count}")
    sentinels = [f"<extra_id_{i}>" for i in reversed(range(count))]
    pieces = [*((piece.piece, piece.score) for piece in model.pieces), *((token, 0.0) for token in sentinels)]
    engine = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=model.trainer_spec.unk_id))
    if model.normalizer_spec.precompiled_charsmap:
        engine.normalizer = tokenizers.normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    spaces = {"replacement": _SPACE, "prepend_scheme": "always", "split": True}
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.pre_tokenizers.Metaspace(**spaces)]
    )
    engine.decoder = tokenizers.decoders.Metaspace(**spaces)
    engine.add_special_tokens(sentinels)
    _set_template(engine, ["$A", "</s>"], ["$A", "</s>", "$B", "</s>"])
    return engine


def _fallback_bpe(model: Any, special: Mapping[str, str | None], options: Mapping[str, Any]) -> Any:
    """Llama: byte-pair encoding of characters that falls back to bytes (Touvron et al. 2023)."""
    import tokenizers

    vocabulary = {piece.piece: id for id, piece in enumerate(model.pieces)}
    # A SentencePiece model holds no merges; the earlier piece merges first, from whatever two pieces make it.
    merges = [
        (piece[:i], piece[i:])
        for piece in vocabulary
        for i in range(1, len(piece))
        if piece[:i] in vocabulary and piece[i:] in vocabulary
    ]
    engine = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary, merges=merges, fuse_unk=True, byte_fallback=True)
    )
    prefix = options.get("add_prefix_space") is not False
    scheme = "never" if not prefix else "always" if options.get("legacy", False) else "first"
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    decoders = tokenizers.decoders
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    engine.decoder = decoders.Sequence([*parts, decoders.Strip(content=" ", left=1)] if prefix else parts)
    _set_ends(engine, special, bos=options.get("add_bos_token", True), eos=options.get("add_eos_token", False))
    return engine


def require_sentencepiece(path: Path) -> None:
    """Refuse a SentencePiece model where the package is not installed."""
    try:
        import sentencepiece  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"{path} needs the sentencepiece package: pip install 'flax-transformer[sentencepiece]'"
        ) from error


def _set_ends(engine: Any, special: Mapping[str, str | None], *, bos: bool, eos: bool) -> None:
    """Begin and end each text by its marks, where wanted."""
    before = [special["bos"]] if bos else []
    after = [special["eos"]] if eos else []
    single = [*before, "$A:0", *after]
    _set_template(engine, single, [*single, *(f"{token}:1" for token in before), "$B:1", *(f"{t}:1" for t in after)])


def _set_template(engine: Any, single: list[str], pair: list[str]) -> None:
    import tokenizers

    tokens = {piece.removesuffix(":0").removesuffix(":1") for piece in pair if not piece.startswith("$")}
    known = [(token, engine.token_to_id(token)) for token in sorted(tokens)]
    engine.post_processor = tokenizers.processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
