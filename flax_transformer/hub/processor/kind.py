"""Families of tokenizers: what each takes for granted, and the ``tokenizers.Tokenizer`` it makes of a folder's files.

Besides ``tokenizer.json``: WordPiece from ``vocab.txt`` (Devlin et al. 2019), byte-level BPE from ``vocab.json`` and
``merges.txt`` (Radford et al. 2019), SentencePiece models (Kudo and Richardson 2018) through the optional package.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flax_transformer.data.text.tokenizer import parse_tokenizer, unreadable_is_value_error
from flax_transformer.hub.processor.file import read_vocabulary

_SPACE = "▁"
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Special = Mapping[str, str | None]
"""The spelling of each special token by its role."""


def _dress_bert(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    from tokenizers import decoders, normalizers, pre_tokenizers

    engine.model.unk_token = special["unk"]
    engine.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
        strip_accents=options.get("strip_accents"),
        lowercase=options.get("do_lower_case", True),
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece()
    cls, sep = special["cls"], special["sep"]
    set_template(engine, [cls, "$A:0", f"{sep}:0"], [cls, "$A:0", f"{sep}:0", "$B:1", f"{sep}:1"])


def _dress_gpt2(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    from tokenizers import decoders, pre_tokenizers

    _reset(engine)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=options.get("add_prefix_space", False))
    engine.decoder = decoders.ByteLevel()


def _dress_roberta(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    from tokenizers import processors

    _dress_gpt2(engine, special, options)
    sep, cls = ((token, engine.token_to_id(token)) for token in (special["sep"], special["cls"]))
    trim, prefix = options.get("trim_offsets", True), options.get("add_prefix_space", False)
    engine.post_processor = processors.RobertaProcessing(sep, cls, trim, prefix)


def _dress_qwen2(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    _reset(engine)
    engine.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated", invert=False)
    prefix = options.get("add_prefix_space") or False
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)]
    )
    engine.decoder = decoders.ByteLevel()


def _dress_llama(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Byte-pair encoding of characters that falls back to bytes (Touvron et al. 2023)."""
    from tokenizers import decoders, pre_tokenizers

    _reset(engine)
    engine.model.fuse_unk = engine.model.byte_fallback = True
    prefix = options.get("add_prefix_space") is not False
    scheme = "never" if not prefix else "always" if options.get("legacy", False) else "first"
    engine.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    parts = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    engine.decoder = decoders.Sequence([*parts, decoders.Strip(content=" ", left=1)] if prefix else parts)


def _dress_t5(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    _dress_pieces(engine, prefix=True)
    set_template(engine, ["$A", "</s>"], ["$A", "</s>", "$B", "</s>"])


def _dress_xlmr(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    _dress_pieces(engine, prefix=options.get("add_prefix_space", True))
    bos, eos = special["bos"], special["eos"]
    set_template(engine, [bos, "$A", eos], [bos, "$A", eos, eos, "$B", eos])


def _dress_clip(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Write words without the marks at their ends (Radford et al. 2021); how text is split stands in tokenizer.json."""
    from tokenizers import Regex, decoders

    end = decoders.Replace(engine.model.end_of_word_suffix or "</w>", " ")
    around = decoders.Replace(Regex(r"\A\s+|\s+\z"), "")
    engine.decoder = decoders.Sequence([decoders.ByteLevel(), end, around])


def _dress_pieces(engine: Any, *, prefix: bool) -> None:
    """Unigram pieces of words between spaces; of the normalizer only the SentencePiece model's own map stays."""
    from tokenizers import decoders, normalizers, pre_tokenizers

    found = None if engine.normalizer is None else json.loads(engine.normalizer.__getstate__())
    steps = [] if found is None else found.get("normalizers", [found])
    charsmap = next((step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"), None)
    engine.normalizer = None if charsmap is None else normalizers.Precompiled(base64.b64decode(charsmap))
    spaces = {"replacement": _SPACE, "prepend_scheme": "always" if prefix else "never", "split": True}
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**spaces)]
    )
    engine.decoder = decoders.Metaspace(**spaces)


def _reset(engine: Any) -> None:
    """Merge as plain BPE does, of the text as it is."""
    model = engine.model
    model.dropout = model.unk_token = model.continuing_subword_prefix = model.end_of_word_suffix = None
    model.fuse_unk = model.byte_fallback = model.ignore_merges = False
    engine.normalizer = None


@dataclass(frozen=True, eq=False)
class TokenizerType:
    """What a kind of tokenizers takes for granted where its files do not say it."""

    name: str = "other"
    special: Mapping[str, str] = field(default_factory=dict)
    types: bool | None = None
    """Whether models expect token_type_ids; None: as the template has them."""
    padding_side: str = "right"
    model: str = ""
    """Kind of the vocabulary, as `tokenizers` calls it; empty where any will do."""
    dress: Callable[[Any, Special, Mapping[str, Any]], None] | None = None
    """`dress(engine, special, options)` sets by tokenizer_config.json all that stands around the vocabulary: how a text
    is normalised, split, ended and joined again, whatever tokenizer.json has there. None: as tokenizer.json has it."""


_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA = {
    "bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"
}  # fmt: skip
_GPT2 = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_QWEN = dict.fromkeys(("eos", "pad", "unk"), "<|endoftext|>")
_LLAMA = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
_CLIP = {"bos": "<|startoftext|>"} | dict.fromkeys(("eos", "unk", "pad"), "<|endoftext|>")
_LETTERS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_T5 = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_KIND = {
    kind.name: kind
    for kind in (
        TokenizerType("bert", _BERT, True, "right", "WordPiece", _dress_bert),
        TokenizerType("electra", _BERT, True, "right", "WordPiece", _dress_bert),
        TokenizerType("distilbert", _BERT, False, "right", "WordPiece", _dress_bert),
        TokenizerType("roberta", _ROBERTA, False, "right", "BPE", _dress_roberta),
        TokenizerType("bart", _ROBERTA, False, "right", "BPE", _dress_roberta),
        TokenizerType("gpt2", _GPT2, False, "right", "BPE", _dress_gpt2),
        TokenizerType("whisper", _GPT2, False),
        TokenizerType("clip", _CLIP, False, "right", "BPE", _dress_clip),
        TokenizerType("llama", _LLAMA, False, "left", "BPE", _dress_llama),
        TokenizerType("qwen2", _QWEN, False, "right", "BPE", _dress_qwen2),
        TokenizerType("t5", _T5, False, "right", "Unigram", _dress_t5),
        TokenizerType("xlmroberta", _ROBERTA, False, "right", "Unigram", _dress_xlmr),
        TokenizerType("camembert", _ROBERTA, False, "right", "Unigram", _dress_xlmr),
        TokenizerType("marian", _T5, False),
        TokenizerType("wav2vec2ctc", _LETTERS, False, "right", "WordLevel"),
    )
}
_OF_MODEL = {name: name for name in _KIND} | {
    "xlm-roberta": "xlmroberta",
    "qwen3": "qwen2",
    "mt5": "t5",
    "wav2vec2": "wav2vec2ctc",
    "blip": "bert",
    "git": "bert",
}
"""Families of tokenizers by `model_type` of config.json, where no class is declared."""
_PYTHON = frozenset(
    (
        "bartpho", "bertjapanese", "bertweet", "biogpt", "blenderbotsmall", "byt5", "canine", "ctrl", "esm",
        "flaubert", "fsmt", "gptneoxjapanese", "m2m100", "phobert", "plbart", "prophetnet", "rocbert", "tapas", "xlm",
    )
)  # fmt: skip
"""Classes that split text by programs of their own, whatever files lie there."""


def find_kind(files: Mapping[str, bytes], declared: str | None, model_type: str | None, folder: Path) -> TokenizerType:
    """Return the kind, by the declared class, else by the model's type, else by the files; as `transformers` 5 does.

    Raises:
        ValueError: a class that is not read at all.
    """
    named = "" if declared is None else declared.removesuffix("Fast").removesuffix("Tokenizer").lower()
    if named in _PYTHON:
        raise ValueError(f"{folder}: a {declared} splits text by a program of its own, which is not in this package")
    if "tokenizer.json" in files and model_type == "qwen2":
        return _KIND["qwen2"]  # whatever is declared: published files are known to be wrong
    if declared is not None:
        known = _KIND.get(named, TokenizerType(declared))
        bytewise = named == "llama" and b'"ByteLevel"' in files.get("tokenizer.json", b"")
        return replace(known, dress=None) if bytewise or model_type == "mistral" else known
    if model_type in _OF_MODEL:
        return _KIND[_OF_MODEL[model_type]]
    if "tokenizer.json" in files:
        return TokenizerType()
    signs = {"source.spm": "marian", "spiece.model": "t5", "tokenizer.model": "llama", "vocab.txt": "bert"}
    for name, kind in signs.items():
        if name in files:
            return _KIND[kind]
    return _KIND["gpt2" if b"<|endoftext|>" in files.get("vocab.json", b"") else "roberta"]


def build_engine(
    files: Mapping[str, bytes], folder: Path, kind: TokenizerType, special: Special, options: Mapping[str, Any]
) -> Any:
    """Make the ``tokenizers.Tokenizer`` that a folder describes, before added tokens.

    Args:
        files: content by name, as `read_files` gives it.
        folder: where they came from, for messages.
        kind: whose conventions hold where the files are silent.
        special: the spelling of each special token by its role.
        options: the content of ``tokenizer_config.json``.

    Raises:
        ValueError: a malformed file, a missing one, or a kind of vocabulary that is not supported.
    """
    if "tokenizer.json" in files:
        engine = parse_tokenizer(files["tokenizer.json"], folder / "tokenizer.json")
        if engine.post_processor is None:
            set_template(engine, ["$A:0"], ["$A:0", "$B:1"])  # tells the texts of a pair apart, also when cut
        _dress(engine, kind, special, options, folder)
        return engine
    for name in ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model"):
        if name in files:
            return _sentencepiece(files[name], folder / name, _KIND.get(kind.name, kind), special, options)
    if "vocab.txt" in files and "merges.txt" not in files:
        if kind.model != "WordPiece":
            raise ValueError(
                f"{folder}: vocab.txt is read for bert, distilbert and electra, got {kind.name}; save it with"
                " tokenizer.json"
            )
        with unreadable_is_value_error(folder / "vocab.txt"):
            engine = _wordpiece(files["vocab.txt"], special)
    elif kind.model != "BPE" or kind.name in ("clip", "llama"):
        raise ValueError(
            f"{folder}: vocab.json is read for gpt2, roberta, bart and qwen2, got {kind.name}; save it with"
            " tokenizer.json"
        )
    elif "merges.txt" not in files or "vocab.json" not in files:
        raise ValueError(f"{folder}: byte-level BPE needs vocab.json and merges.txt, got {sorted(files)}")
    else:
        vocabulary = read_vocabulary(files, "vocab.json", folder)
        with unreadable_is_value_error(folder / "merges.txt"):
            engine = _byte_bpe(vocabulary, files["merges.txt"])
    _dress(engine, kind, special, options, folder)
    if kind.name in ("gpt2", "qwen2"):
        with unreadable_is_value_error(folder / "tokenizer_config.json"):
            _set_ends(engine, special, bos=options.get("add_bos_token", False), eos=options.get("add_eos_token", False))
    return engine


_NEEDED = {
    _dress_bert: ("unk", "cls", "sep"), _dress_roberta: ("cls", "sep"), _dress_xlmr: ("bos", "eos"),
    _dress_t5: ("eos", "unk"),
}  # fmt: skip
"""Roles without which a kind of tokenizers cannot split or end a text."""


def _dress(engine: Any, kind: TokenizerType, special: Special, options: Mapping[str, Any], folder: Path) -> None:
    if kind.dress is None:
        return
    vocabulary = type(engine.model).__name__
    if vocabulary != kind.model:
        raise ValueError(f"{folder}: a vocabulary of {kind.name} must be {kind.model}, tokenizer.json has {vocabulary}")
    _require(special, _NEEDED.get(kind.dress, ()), folder)
    with unreadable_is_value_error(folder / "tokenizer_config.json"):
        kind.dress(engine, special, options)


def _require(special: Special, roles: Sequence[str], folder: Path) -> None:
    absent = [role for role in roles if special.get(role) is None]
    if absent:
        raise ValueError(f"{folder}: this vocabulary needs the special tokens {', '.join(roles)}, it lacks {absent}")


def _wordpiece(content: bytes, special: Special) -> Any:
    import tokenizers

    lines = content.decode("utf-8").removesuffix("\n").split("\n")
    vocabulary = {line.rstrip(): id for id, line in enumerate(lines)}
    if special.get("unk") not in vocabulary:
        raise ValueError(f"unknown words need {special.get('unk')!r}")
    return tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token=special["unk"]))


def _byte_bpe(vocabulary: dict[str, int], merges: bytes) -> Any:
    import tokenizers

    if not merges.strip():
        raise ValueError("it is empty")
    lines = [line for line in merges.decode("utf-8").split("\n") if line.strip() and not line.startswith("#version")]
    pairs = [tuple(line.rstrip("\r").split(" ")) for line in lines]
    wrong = next((line for line, pair in zip(lines, pairs, strict=True) if len(pair) != 2), None)
    if wrong is not None:
        raise ValueError(f"a merge is two pieces and a space between, got {wrong!r}")
    return tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))


def _sentencepiece(
    content: bytes, path: Path, kind: TokenizerType, special: Special, options: Mapping[str, Any]
) -> Any:
    if kind.name not in ("t5", "llama"):
        raise ValueError(f"{path} is read for t5 and llama, got {kind.name}; save it with tokenizer.json")
    _require(special, ("unk", "eos"), path)
    require_sentencepiece(path)
    import tokenizers
    from sentencepiece import sentencepiece_model_pb2

    with unreadable_is_value_error(path):
        model = sentencepiece_model_pb2.ModelProto.FromString(content)
        number, expected = model.trainer_spec.model_type, {"t5": 1, "llama": 2}[kind.name]
        if number != expected:
            raise ValueError(f"{kind.name} is a SentencePiece model of type {expected}, got {number}")
        engine = _unigram(model, options) if kind.name == "t5" else _fallback_bpe(model)
        kind.dress(engine, special, options)
        if kind.name == "llama":
            _set_ends(engine, special, bos=options.get("add_bos_token", True), eos=options.get("add_eos_token", False))
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
    engine.add_special_tokens(sentinels)
    return engine


def _fallback_bpe(model: Any) -> Any:
    import tokenizers

    vocabulary = {piece.piece: id for id, piece in enumerate(model.pieces)}
    # A SentencePiece model holds no merges; the earlier piece merges first, from whatever two pieces make it.
    merges = [
        (piece[:i], piece[i:])
        for piece in vocabulary
        for i in range(1, len(piece))
        if piece[:i] in vocabulary and piece[i:] in vocabulary
    ]
    return tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))


def require_sentencepiece(path: Path) -> None:
    """Refuse a SentencePiece model where the package is not installed."""
    try:
        import sentencepiece  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"{path} needs the sentencepiece package: pip install 'flax-transformer[sentencepiece]'"
        ) from error


def _set_ends(engine: Any, special: Special, *, bos: bool, eos: bool) -> None:
    """Begin and end each text by its marks, where wanted."""
    before = [special["bos"]] if bos and special.get("bos") else []
    after = [special["eos"]] if eos and special.get("eos") else []
    single = [*before, "$A:0", *after]
    set_template(engine, single, [*single, *(f"{token}:1" for token in before), "$B:1", *(f"{t}:1" for t in after)])


def set_template(engine: Any, single: list[str], pair: list[str]) -> None:
    """Return what stands around a text and around a pair of them, in the notation of `tokenizers`."""
    import tokenizers

    tokens = {piece.removesuffix(":0").removesuffix(":1") for piece in pair if not piece.startswith("$")}
    known = [(token, engine.token_to_id(token)) for token in sorted(tokens)]
    engine.post_processor = tokenizers.processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
