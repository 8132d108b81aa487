"""What stands around a vocabulary: how a text is normalised, split, ended and joined again, by kind of tokenizer."""

import base64
import json
from collections.abc import Mapping
from typing import Any

SPACE = "▁"
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Special = Mapping[str, str | None]
"""The spelling of each special token by its role."""


def dress_bert(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Words and their pieces between BERT's marks (Devlin et al. 2019)."""
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


def dress_gpt2(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Bytes merged into pieces, without marks (Radford et al. 2019)."""
    from tokenizers import decoders, pre_tokenizers

    _reset(engine)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=options.get("add_prefix_space", False))
    engine.decoder = decoders.ByteLevel()


def dress_roberta(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """GPT-2's pieces between marks (Liu et al. 2019)."""
    from tokenizers import processors

    dress_gpt2(engine, special, options)
    sep, cls = ((token, engine.token_to_id(token)) for token in (special["sep"], special["cls"]))
    trim, prefix = options.get("trim_offsets", True), options.get("add_prefix_space", False)
    engine.post_processor = processors.RobertaProcessing(sep, cls, trim, prefix)


def dress_qwen2(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Bytes merged into pieces, digits one by one (Bai et al. 2023)."""
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    _reset(engine)
    engine.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(_QWEN_WORDS), behavior="isolated", invert=False)
    prefix = options.get("add_prefix_space") or False
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)]
    )
    engine.decoder = decoders.ByteLevel()


def dress_llama(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Byte-pair encoding of characters that falls back to bytes (Touvron et al. 2023)."""
    from tokenizers import decoders, pre_tokenizers

    _reset(engine)
    engine.model.fuse_unk = engine.model.byte_fallback = True
    prefix = options.get("add_prefix_space") is not False
    scheme = "never" if not prefix else "always" if options.get("legacy", False) else "first"
    engine.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    engine.decoder = decoders.Sequence([*parts, decoders.Strip(content=" ", left=1)] if prefix else parts)


def dress_t5(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Pieces of words, and an end mark (Raffel et al. 2020)."""
    dress_pieces(engine, prefix=True)
    set_template(engine, ["$A", "</s>"], ["$A", "</s>", "$B", "</s>"])


def dress_xlmr(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Pieces of words between marks (Conneau et al. 2020)."""
    dress_pieces(engine, prefix=options.get("add_prefix_space", True))
    bos, eos = special["bos"], special["eos"]
    set_template(engine, [bos, "$A", eos], [bos, "$A", eos, eos, "$B", eos])


def dress_clip(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Write words without the marks at their ends (Radford et al. 2021); how text is split stands in tokenizer.json."""
    from tokenizers import Regex, decoders

    end = decoders.Replace(engine.model.end_of_word_suffix or "</w>", " ")
    around = decoders.Replace(Regex(r"\A\s+|\s+\z"), "")
    engine.decoder = decoders.Sequence([decoders.ByteLevel(), end, around])


def dress_mpnet(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Split words as BERT does, between RoBERTa's marks (Song et al. 2020)."""
    from tokenizers import processors

    dress_bert(engine, special, options)
    sep, cls = ((token, engine.token_to_id(token)) for token in (special["sep"], special["cls"]))
    engine.post_processor = processors.RobertaProcessing(sep, cls, True, False)


def dress_pegasus(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Pieces of texts whose runs of spaces are one (Zhang et al. 2020)."""
    _dress_spaced(engine, breaks=True)
    eos = special["eos"]
    set_template(engine, ["$A", eos], ["$A", "$B", eos])


def dress_mbart(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Pieces with the language behind the end mark (Liu et al. 2020)."""
    dress_pieces(engine, prefix=True)
    engine.normalizer = None
    _set_language(engine, special, options.get("src_lang") or "en_XX", first=False)


def dress_mbart50(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Pieces with the language in front (Tang et al. 2020)."""
    _dress_spaced(engine, always=True)
    _set_language(engine, special, options.get("src_lang") or "en_XX")


def dress_nllb(engine: Any, special: Special, options: Mapping[str, Any]) -> None:
    """Byte-pair encoding of characters with the language in front, or, as it once was, behind the end mark (2022)."""
    engine.model.dropout = engine.model.continuing_subword_prefix = engine.model.end_of_word_suffix = None
    engine.model.unk_token, engine.model.fuse_unk, engine.model.byte_fallback = special["unk"], True, False
    _dress_spaced(engine)
    legacy = options.get("legacy_behaviour", False)
    _set_language(engine, special, options.get("src_lang") or "eng_Latn", first=not legacy)


def _set_language(engine: Any, special: Special, language: str, *, first: bool = True) -> None:
    """Mark each text by its language, in front or behind the end mark."""
    if engine.token_to_id(language) is None:
        raise ValueError(f"src_lang must be the token of a language, the vocabulary has no {language!r}")
    eos = special["eos"]
    before, after = ([language], [eos]) if first else ([], [eos, language])
    set_template(engine, [*before, "$A", *after], [*before, "$A", "$B", *after])


def _dress_spaced(engine: Any, *, always: bool = False, breaks: bool = False) -> None:
    """Pieces of whole texts, in which runs of spaces are one where there is a map of characters, or else `always`.

    Args:
      breaks: without a map, read line breaks as spaces too, and runs as one.
    """
    from tokenizers import Regex, decoders, normalizers, pre_tokenizers

    runs, found = normalizers.Replace(Regex(r" {2,}"), " "), _map_of(engine)
    steps = [] if found is None and not (always or breaks) else [runs]
    lines = [normalizers.Replace(Regex(r"\n"), " ")] if found is None and breaks else []
    engine.normalizer = normalizers.Sequence([*([] if found is None else [found]), *lines, *steps]) if steps else None
    spaces = {"replacement": SPACE, "prepend_scheme": "always", "split": True}
    engine.pre_tokenizer = pre_tokenizers.Metaspace(**spaces)
    engine.decoder = decoders.Metaspace(**spaces)


def _map_of(engine: Any) -> Any:
    """Return the map of characters that a SentencePiece model has, None where there is none."""
    from tokenizers import normalizers

    found = None if engine.normalizer is None else json.loads(engine.normalizer.__getstate__())
    steps = [] if found is None else found.get("normalizers", [found])
    charsmap = next((step["precompiled_charsmap"] for step in steps if step["type"] == "Precompiled"), None)
    return None if charsmap is None else normalizers.Precompiled(base64.b64decode(charsmap))


def dress_pieces(engine: Any, *, prefix: bool) -> None:
    """Unigram pieces of words between spaces; of the normalizer only the SentencePiece model's own map stays."""
    from tokenizers import decoders, pre_tokenizers

    engine.normalizer = _map_of(engine)
    spaces = {"replacement": SPACE, "prepend_scheme": "always" if prefix else "never", "split": True}
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


def set_ends(engine: Any, special: Special, *, bos: bool, eos: bool) -> None:
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
