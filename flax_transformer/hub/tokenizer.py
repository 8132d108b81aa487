"""What a checkpoint folder says about text: texts to a model's inputs, token ids to texts.

Axes: B texts or windows, T tokens.
"""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
from jaxtyping import Array, Bool, Int

from flax_transformer.data.tokenizer import Tokenizer, unreadable_is_value_error
from flax_transformer.hub.file import write_file
from flax_transformer.hub.tokenizer_family import Family, build_engine, find_family
from flax_transformer.hub.tokenizer_file import SPECIAL, add_tokens, named_tokens, read_files, read_object

_UNLIMITED = 10**9  # checkpoints without a limit say so by a huge number
_TURN = threading.Lock()  # truncation is a setting of the Rust object
_DETACHED = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m", "'s", "'ve", "'re")),
)

Inputs = dict[str, Int[np.ndarray, "B T"]]


@dataclass(frozen=True)
class Windows:
    """A question beside each of the overlapping windows of a long passage.

    `inputs` are a model's inputs; `offsets` are where each token begins and ends in the passage, in characters;
    `inside` marks the tokens that are the passage's.
    """

    inputs: Inputs
    offsets: Int[np.ndarray, "B T 2"]
    inside: Bool[np.ndarray, "B T"]


@dataclass(frozen=True, eq=False, kw_only=True)
class HubTokenizer:
    """A checkpoint's tokenizer; made by ``load_hub_tokenizer`` or ``HubTokenizer.of``.

    Special tokens are ids, None where the checkpoint has none. A chat template is kept but never run: it is code.
    """

    engine: Any = field(repr=False)
    files: Mapping[str, bytes] = field(repr=False)
    folder: Path
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    types: bool = False
    """Whether the model reads token_type_ids."""
    padding_side: Literal["left", "right"] = "right"
    truncation_side: Literal["left", "right"] = "right"
    model_max_length: int | None = None
    cleaning: bool = False
    """Whether decoding draws punctuation to the word before it."""
    target: Optional["HubTokenizer"] = field(default=None, repr=False)
    """The tokenizer of the target language, where that is another."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "HubTokenizer":
        """Present a tokenizer trained here in the form that checkpoints have; it adds no begin or end marks.

        With a mask token, special tokens are read in texts too: "the <mask> barks".
        """
        return _present(tokenizer.json(), _spelled(tokenizer))

    @classmethod
    def of_encoder(cls, tokenizer: Tokenizer) -> "HubTokenizer":
        """Present a tokenizer trained here as BERT has its own: <s> text </s>, or <s> text </s> pair </s>.

        <s> is [CLS], </s> is [SEP], and token types tell the second text from the first.
        """
        import tokenizers

        engine, special = tokenizers.Tokenizer.from_str(tokenizer.json()), _spelled(tokenizer)
        begin, end = special["bos"], special["eos"]
        engine.post_processor = tokenizers.processors.TemplateProcessing(
            single=[begin, "$A", end], pair=[begin, "$A", end, "$B:1", f"{end}:1"],
            special_tokens=[(begin, tokenizer.bos), (end, tokenizer.eos)],
        )  # fmt: skip
        return _present(engine.to_str(), {**special, "cls": begin, "sep": end}, types=True)

    @property
    def vocab_size(self) -> int:
        """Count all tokens, added ones included."""
        return self.engine.get_vocab_size()

    def __call__(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        padding: str | int | None = "longest",
        side: str | None = None,
        truncate: bool = False,
    ) -> Inputs:
        """Turn texts, or pairs of texts, into a model's inputs, with the special tokens that the checkpoint adds.

        Args:
            texts: what to encode.
            pairs: a second text for each, in the same input.
            max_length: most tokens of an input, special ones included; `truncate` cuts to it, `model_max_length` if
                none.
            padding: to the longest input, to a number of tokens, or none, where all are of one length.
            side: where padding goes; by default where the checkpoint says.
            truncate: cut longer inputs instead of refusing them.

        Returns:
            ``input_ids``, ``attention_mask`` and, where the model reads them, ``token_type_ids``.

        Raises:
            ValueError: an input longer than allowed, padding without a pad token, or texts that do not match pairs.
        """
        if isinstance(texts, str) or isinstance(pairs, str):
            raise ValueError(
                f"texts must be a sequence of strings, got one string {texts if pairs is None else pairs!r}"
            )
        if pairs is not None and len(texts) != len(pairs):
            raise ValueError(f"each text needs its pair, got {len(texts)} texts, {len(pairs)} pairs")
        least = self.engine.num_special_tokens_to_add(pairs is not None)
        truncation = None
        if truncate:
            max_length = self.model_max_length if max_length is None else max_length
            if max_length is None:
                raise ValueError("truncate needs max_length, the checkpoint has none")
            if max_length <= least:
                raise ValueError(f"max_length must exceed the {least} special tokens, got {max_length}")
            truncation = {"max_length": max_length, "direction": self.truncation_side}
        rows = self._encode(list(texts) if pairs is None else list(zip(texts, pairs, strict=True)), truncation)
        lengths = [len(row.ids) for row in rows]
        if max_length is not None and max(lengths, default=0) > max_length:
            raise ValueError(
                f"inputs must have at most {max_length} tokens, got {max(lengths)} in text {int(np.argmax(lengths))};"
                " truncate=True cuts them"
            )
        return self._inputs(rows, padding, side)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Turn texts into token ids, without the special tokens that ``__call__`` adds."""
        return [row.ids for row in self._encode(list(texts), special=False)]

    def decode(
        self,
        ids: Sequence[Sequence[int]] | Int[np.ndarray, "B T"] | Int[Array, "B T"],
        skip_special_tokens: bool = True,
    ) -> list[str]:
        """Turn rows of token ids into texts; ids beyond the vocabulary are left out.

        Raises:
            ValueError: negative ids, as labels have for what does not count.
        """
        rows = np.asarray(ids).tolist() if isinstance(ids, Array) else [np.asarray(row).tolist() for row in ids]
        least = min((min(row) for row in rows if row), default=0)
        if least < 0:
            raise ValueError(f"token ids must not be negative, got {least}")
        with unreadable_is_value_error(self._source):
            texts = self.engine.decode_batch(rows, skip_special_tokens=skip_special_tokens)
        return [_attach(text) for text in texts] if self.cleaning else texts

    def tokens(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> list[str | None]:
        """Name each token of one row as the vocabulary spells it; None beyond the vocabulary."""
        return [self.engine.id_to_token(int(token)) for token in ids]

    def encode_windows(self, question: str, context: str, max_length: int, stride: int) -> Windows:
        """Cut a passage into windows that fit beside the question (Devlin et al. 2019, SQuAD).

        Args:
            question: first in each input, whole.
            context: the passage.
            max_length: most tokens of an input, special ones included.
            stride: tokens that neighbouring windows share.

        Raises:
            ValueError: the question leaves no room for more than `stride` tokens of the passage.
        """
        taken = self.engine.num_special_tokens_to_add(True) + len(self.encode([question])[0])
        if not 0 <= stride < max_length - taken:
            raise ValueError(
                f"max_length must leave the passage more than stride={stride} tokens beside the {taken} of the"
                f" question, got {max_length}"
            )
        truncation = {"max_length": max_length, "stride": stride, "strategy": "only_second"}
        (first,) = self._encode([(question, context)], truncation, offsets=True)
        rows = [first, *first.overflowing]
        inputs = self._inputs(rows, "longest", None)
        offsets = np.zeros((*inputs["input_ids"].shape, 2), np.int32)
        inside = np.zeros(inputs["input_ids"].shape, bool)
        for i, row in enumerate(rows):
            place = np.flatnonzero(inputs["attention_mask"][i])
            offsets[i, place] = np.reshape(row.offsets, (-1, 2))
            inside[i, place] = [sequence == 1 for sequence in row.sequence_ids]
        return Windows(inputs, np.where(inside[..., None], offsets, 0), inside)

    def save(self, folder: str | os.PathLike) -> None:
        """Write the files this was read from, byte for byte, into a folder, made if need be.

        What ``dataclasses.replace`` changed is not in them.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            write_file(Path(folder) / name, content)

    @property
    def _source(self) -> Path:
        return self.folder / next(iter(self.files))  # vocabularies come first

    def _encode(
        self, inputs: list, truncation: dict[str, Any] | None = None, *, special: bool = True, offsets: bool = False
    ) -> list[Any]:
        encode = self.engine.encode_batch if offsets else self.engine.encode_batch_fast
        for text in inputs:
            _check_text(text)
        with _TURN, unreadable_is_value_error(self._source):
            if truncation is not None:
                self.engine.enable_truncation(**truncation)
            try:
                return encode(inputs, add_special_tokens=special)
            finally:
                self.engine.no_truncation()

    def _inputs(self, rows: list[Any], padding: str | int | None, side: str | None) -> Inputs:
        if not (padding in ("longest", None) or isinstance(padding, int)) or side not in ("left", "right", None):
            raise ValueError(
                "padding must be 'longest', a number of tokens or None, side left, right or None,"
                f" got {padding!r}, {side!r}"
            )
        lengths = [len(row.ids) for row in rows]
        longest = max(lengths, default=0)
        width = padding if isinstance(padding, int) else longest
        if longest > width or (padding is None and min(lengths, default=0) < longest):
            allowed = f"at most {width}" if padding is not None else "one number of"
            raise ValueError(f"with padding={padding!r} inputs must have {allowed} tokens, got {sorted(set(lengths))}")
        if min(lengths, default=width) < width and self.pad is None:
            raise ValueError(
                "padding needs a pad token, the checkpoint has none: dataclasses.replace(tokenizer, pad=tokenizer.eos)"
            )
        shape, left = (len(rows), width), (side or self.padding_side) == "left"
        inputs = {"input_ids": np.full(shape, self.pad or 0, np.int64)}
        if self.types:
            inputs["token_type_ids"] = np.zeros(shape, np.int32)
        inputs["attention_mask"] = np.zeros(shape, np.int32)
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            place = slice(width - length, width) if left else slice(length)
            inputs["input_ids"][i, place] = row.ids
            inputs["attention_mask"][i, place] = 1
            if self.types:
                inputs["token_type_ids"][i, place] = row.type_ids
        if inputs["input_ids"].max(initial=0) >= 2**31:
            raise ValueError(f"{self.folder}: token ids must be below 2**31, got {inputs['input_ids'].max()}")
        return inputs | {"input_ids": inputs["input_ids"].astype(np.int32)}


def load_hub_tokenizer(folder: str | os.PathLike) -> HubTokenizer | None:
    """Read the tokenizer of a checkpoint folder; None where it has no tokenizer files.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a malformed file, an unsupported one, or a special token that the vocabulary lacks; names it.
    """
    folder = Path(folder)
    files = read_files(folder)
    if not files:
        return None
    model = folder / "config.json"
    config = read_object({"config.json": model.read_bytes()}, "config.json", folder) if model.is_file() else {}
    return _from_files(files, folder, config)


def _spelled(tokenizer: Tokenizer) -> dict[str, str]:
    """Give the spelling of each special token there is, by its role."""
    ids = {role: getattr(tokenizer, role, None) for role in SPECIAL}
    return {role: tokenizer.tokens([id])[0] for role, id in ids.items() if id is not None}


def _present(engine: str, special: Mapping[str, str], *, types: bool = False) -> HubTokenizer:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": token for role, token in special.items()},
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", *["token_type_ids"] * types, "attention_mask"],
        "split_special_tokens": "mask" not in special,
    }
    files = {
        "tokenizer.json": engine.encode(),
        "tokenizer_config.json": (json.dumps(config, indent=2) + "\n").encode(),
    }
    return _from_files(files, Path("."), {})


def _from_files(files: Mapping[str, bytes], folder: Path, model: Mapping[str, Any]) -> HubTokenizer:
    config = read_object(files, "tokenizer_config.json", folder)
    if "added_tokens_decoder" not in config:  # which repeats what older folders say in this file
        config = config | read_object(files, "special_tokens_map.json", folder)
    named = (each.get("tokenizer_class") for each in (config, model))
    declared = next((name for name in named if name not in (None, "")), None)
    if not isinstance(declared, str | None):
        raise ValueError(f"{folder / 'tokenizer_config.json'} must give tokenizer_class as a string, got {declared!r}")
    kind = model.get("model_type")
    family = find_family(files, declared, kind if isinstance(kind, str) else None, folder)
    named = named_tokens(config, folder)
    special = {**family.special, **{role: token and token.content for role, token in named.items()}}
    target, marian = None, "source.spm" in files and "tokenizer.json" not in files
    if marian:
        from flax_transformer.hub.marian_tokenizer import build_marian

        engine, target = build_marian(files, folder, special)
    else:
        engine = build_engine(files, folder, family, special, config)
        assumed = [token for role, token in family.special.items() if role not in named]
        add_tokens(engine, files, config, [token for token in named.values() if token], assumed, folder)
        engine.encode_special_tokens = config.get("split_special_tokens") is True
    ids = {role: engine.token_to_id(token) for role, token in special.items() if token is not None}
    missing = [special[role] for role, id in ids.items() if id is None and role in named]
    if missing:
        raise ValueError(f"{folder}: special tokens must be in the vocabulary, got {', '.join(map(repr, missing))}")
    options = {
        "files": files, "folder": folder, **ids,
        "types": not marian and _reads_types(engine, config, family),
        "padding_side": _side(config, "padding_side", family.padding_side, folder),
        "truncation_side": _side(config, "truncation_side", "right", folder),
        "model_max_length": _max_length(config, folder),
        "cleaning": config.get("clean_up_tokenization_spaces") is True and not _is_bpe(engine),
    }  # fmt: skip
    return HubTokenizer(
        engine=engine, target=None if target is None else HubTokenizer(engine=target, **options), **options
    )


def _reads_types(engine: Any, config: Mapping[str, Any], family: Family) -> bool:
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    if family.types is not None:
        return family.types
    template = json.loads(engine.post_processor.__getstate__())
    pair = template.get("pair", [])
    marks = [piece["SpecialToken"]["type_id"] for piece in pair if "SpecialToken" in piece]
    return template["type"] == "BertProcessing" or 1 in marks


def _is_bpe(engine: Any) -> bool:
    return type(engine.model).__name__ == "BPE"  # pieces of bytes keep their own spaces


def _side(config: Mapping[str, Any], name: str, default: str, folder: Path) -> str:
    side = config.get(name, default)
    if side not in ("left", "right"):
        raise ValueError(f"{folder}: {name} must be left or right, got {side!r}")
    return side


def _max_length(config: Mapping[str, Any], folder: Path) -> int | None:
    length = config.get("model_max_length")
    if length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int | float) or not length > 0:
        raise ValueError(f"{folder}: model_max_length must be a number above 0, got {length!r}")
    return None if length > _UNLIMITED else int(length)


def _check_text(text: str | tuple[str, str]) -> None:
    for part in (text,) if isinstance(text, str) else text:
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"texts must be Unicode without lone surrogates, got {part[:40]!r}") from error


def _attach(text: str) -> str:
    """Draw punctuation and English contractions to the word before, as the original WordPiece models' output does."""
    for detached, attached in _DETACHED:
        text = text.replace(detached, attached)
    return text
