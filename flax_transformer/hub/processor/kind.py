"""Families of tokenizers: what each takes for granted, and the ``tokenizers.Tokenizer`` it makes of a folder's files.

Besides ``tokenizer.json``: WordPiece from ``vocab.txt`` (Devlin et al. 2019), byte-level BPE from ``vocab.json`` and
``merges.txt`` (Radford et al. 2019), SentencePiece models (Kudo and Richardson 2018) through the optional package.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flax_transformer.data.text.tokenizer import parse_tokenizer, unreadable_is_value_error
from flax_transformer.hub.processor.dress import (
    Special,
    dress_bert,
    dress_clip,
    dress_gpt2,
    dress_llama,
    dress_mbart,
    dress_mbart50,
    dress_mpnet,
    dress_nllb,
    dress_pegasus,
    dress_qwen2,
    dress_roberta,
    dress_t5,
    dress_xlmr,
    set_ends,
    set_template,
)
from flax_transformer.hub.processor.file import read_vocabulary
from flax_transformer.hub.processor.pieces import require, sentencepiece_engine


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
_MPNET = _ROBERTA | {"unk": "[UNK]"}
_PEGASUS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask_2>"}
_MBART50 = {role: token for role, token in _ROBERTA.items() if role != "bos"}
_LETTERS = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_T5 = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
_KIND = {
    kind.name: kind
    for kind in (
        TokenizerType("bert", _BERT, True, "right", "WordPiece", dress_bert),
        TokenizerType("dprquestionencoder", _BERT, True, "right", "WordPiece", dress_bert),
        TokenizerType("dprcontextencoder", _BERT, True, "right", "WordPiece", dress_bert),
        TokenizerType("dprreader", _BERT, False, "right", "WordPiece", dress_bert),
        TokenizerType("electra", _BERT, True, "right", "WordPiece", dress_bert),
        TokenizerType("distilbert", _BERT, False, "right", "WordPiece", dress_bert),
        TokenizerType("roberta", _ROBERTA, False, "right", "BPE", dress_roberta),
        TokenizerType("bart", _ROBERTA, False, "right", "BPE", dress_roberta),
        TokenizerType("gpt2", _GPT2, False, "right", "BPE", dress_gpt2),
        TokenizerType("whisper", _GPT2, False),
        TokenizerType("clip", _CLIP, False, "right", "BPE", dress_clip),
        TokenizerType("llama", _LLAMA, False, "left", "BPE", dress_llama),
        TokenizerType("qwen2", _QWEN, False, "right", "BPE", dress_qwen2),
        TokenizerType("t5", _T5, False, "right", "Unigram", dress_t5),
        TokenizerType("xlmroberta", _ROBERTA, False, "right", "Unigram", dress_xlmr),
        TokenizerType("camembert", _ROBERTA, False, "right", "Unigram", dress_xlmr),
        TokenizerType("mpnet", _MPNET, False, "right", "WordPiece", dress_mpnet),
        TokenizerType("pegasus", _PEGASUS, False, "right", "Unigram", dress_pegasus),
        TokenizerType("mbart", _ROBERTA, False, "right", "Unigram", dress_mbart),
        TokenizerType("mbart50", _MBART50, False, "right", "Unigram", dress_mbart50),
        TokenizerType("nllb", _ROBERTA, False, "right", "BPE", dress_nllb),
        TokenizerType("m2m100", _LETTERS | {"sep": "</s>"}, False),
        TokenizerType("led", _ROBERTA, False, "right", "BPE", dress_roberta),
        TokenizerType("marian", _T5, False),
        TokenizerType("wav2vec2ctc", _LETTERS, False, "right", "WordLevel"),
    )
}
_OF_MODEL = {name: name for name in _KIND} | {
    "xlm-roberta": "xlmroberta",
    "qwen3": "qwen2",
    "qwen3_moe": "qwen2",
    "mt5": "t5",
    "wav2vec2": "wav2vec2ctc",
    "dpr": "bert",
    "blip": "bert",
    "git": "bert",
    "m2m_100": "m2m100",
}
"""Families of tokenizers by `model_type` of config.json, where no class is declared."""
_PYTHON = frozenset(
    (
        "bartpho", "bertjapanese", "bertweet", "biogpt", "blenderbotsmall", "byt5", "canine", "ctrl", "esm",
        "flaubert", "fsmt", "gptneoxjapanese", "phobert", "plbart", "prophetnet", "rocbert", "tapas", "xlm",
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
            return sentencepiece_engine(files[name], folder / name, _KIND.get(kind.name, kind), special, options)
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
            set_ends(engine, special, bos=options.get("add_bos_token", False), eos=options.get("add_eos_token", False))
    return engine


_NEEDED = {
    dress_bert: ("unk", "cls", "sep"), dress_roberta: ("cls", "sep"), dress_xlmr: ("bos", "eos"),
    dress_t5: ("eos", "unk"), dress_mpnet: ("unk", "cls", "sep"), dress_pegasus: ("eos", "unk"),
    dress_mbart: ("eos",), dress_mbart50: ("eos",), dress_nllb: ("eos", "unk"),
}  # fmt: skip
"""Roles without which a kind of tokenizers cannot split or end a text."""


def _dress(engine: Any, kind: TokenizerType, special: Special, options: Mapping[str, Any], folder: Path) -> None:
    if kind.dress is None:
        return
    vocabulary = type(engine.model).__name__
    if vocabulary != kind.model:
        raise ValueError(f"{folder}: a vocabulary of {kind.name} must be {kind.model}, tokenizer.json has {vocabulary}")
    require(special, _NEEDED.get(kind.dress, ()), folder)
    with unreadable_is_value_error(folder / "tokenizer_config.json"):
        kind.dress(engine, special, options)


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
