"""What a checkpoint folder says about text: texts to a model's inputs, token ids to texts.

Axes: B texts or windows, T tokens.
"""

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
from jaxtyping import Bool, Int

from flax_transformer.data.text.tokenizer import Tokenizer, unreadable_is_value_error
from flax_transformer.hub.file import write_files
from flax_transformer.hub.processor.call import (
    Call,
    Inputs,
    as_tensors,
    check_text,
    pad_rows,
    plain_call,
    read_call,
    read_texts,
)
from flax_transformer.hub.processor.chat import apply_template, read_templates
from flax_transformer.hub.processor.ctc import build_letters
from flax_transformer.hub.processor.file import (
    SPECIAL,
    add_tokens,
    has_vocabulary,
    named_tokens,
    read_files,
    read_max_length,
    read_object,
    read_side,
)
from flax_transformer.hub.processor.kind import TokenizerType, build_engine, find_kind
from flax_transformer.hub.processor.vocabulary import Vocabulary
from flax_transformer.listing import listed

_TURN = threading.Lock()  # truncation is a setting of the Rust object


@dataclass(frozen=True)
class Windows:
    """A question beside each of the overlapping windows of a long passage.

    `inputs` are a model's inputs; `offsets` are where each token begins and ends in the passage, in characters;
    `inside` marks the tokens that are the passage's.
    """

    inputs: Inputs
    offsets: Int[np.ndarray, "B T 2"]
    inside: Bool[np.ndarray, "B T"]


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class HubTokenizer(Vocabulary):
    """A checkpoint's tokenizer; made by ``load_hub_tokenizer`` or ``HubTokenizer.of``.

    Special tokens are ids, None where the checkpoint has none.
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
    def of(cls, tokenizer: Tokenizer, *, single: str | None = None) -> "HubTokenizer":
        """Present a tokenizer trained here in the form that checkpoints have.

        With a mask token, special tokens are read in texts too: "the <mask> barks".

        Args:
            single: the marks around a text, as `<s> $A </s>`; those it has by itself, or none, by default.
        """
        if single is None:
            return _present(tokenizer.json(), _spelled(tokenizer))
        import tokenizers

        engine = tokenizers.Tokenizer.from_str(tokenizer.json())
        marks = [(mark, engine.token_to_id(mark)) for mark in single.split() if mark != "$A"]
        engine.post_processor = tokenizers.processors.TemplateProcessing(single=single, special_tokens=marks)
        return _present(engine.to_str(), _spelled(tokenizer))

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

    def __call__(
        self,
        texts: str | Sequence[str] | Sequence[tuple[str, str]],
        pairs: str | Sequence[str] | None = None,
        *,
        max_length: int | None = None,
        padding: str | int | None = "longest",
        side: str | None = None,
        truncate: bool | str = False,
        **theirs: Any,
    ) -> Inputs:
        """Turn texts, or pairs of texts, into a model's inputs, with the special tokens that the checkpoint adds.

        Args:
            texts: what to encode: one text, several, or several pairs of texts.
            pairs: a second text for each, in the same input.
            max_length: most tokens of an input, special ones included; `truncate` cuts to it, `model_max_length` if
                none.
            padding: to the longest input, to `max_length`, to a number of tokens, or none, where all are of one length.
            side: where padding goes; by default where the checkpoint says.
            truncate: cut longer inputs instead of refusing them; `only_first` and `only_second` of a pair.
            theirs: words of `transformers` for these and more: text_pair, truncation, padding_side, add_special_tokens,
                pad_to_multiple_of, return_token_type_ids, return_attention_mask; return_tensors="np" is so by default.

        Returns:
            A row for each text, for one too: ``input_ids``, ``attention_mask`` and, where the model reads them,
            ``token_type_ids``.

        Raises:
            ValueError: an input longer than allowed, padding without a pad token, texts that do not match pairs, or a
                word that is not understood.
        """
        given = {"pairs": pairs, "max_length": max_length, "padding": padding, "side": side, "truncate": truncate}
        call = read_call(given, theirs, self.model_max_length)
        inputs, call = read_texts(texts, call)
        return as_tensors(self.pad_rows(self.encode_rows(inputs, call), call), theirs.get("return_tensors"))

    @cached_property
    def chat_templates(self) -> Mapping[str, str]:
        """How a conversation is written, by name; `default` is what `apply_chat_template` takes unasked."""
        return read_templates(self.files, self.folder)

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **options: Any,
    ) -> str | list[str] | Inputs | Int[np.ndarray, "B T"]:
        """Write a conversation, or several, as the checkpoint's template has it, and turn it into a model's inputs.

        Args:
            conversation: messages, objects with role and content; or a list of conversations.
            tools: JSON schemas of functions.
            documents: objects with title and text.
            chat_template: the name of one of the checkpoint's, or a template.
            add_generation_prompt: end with what an answer begins with.
            tokenize: without it the text is given.
            options: continue_final_message, return_assistant_tokens_mask, return_dict, tokenizer_kwargs; padding,
                truncation, max_length and return_tensors as in a call; any other name is a variable of the template.

        Returns:
            Inputs of a row for each conversation; `input_ids` alone where return_dict is false.

        Raises:
            ValueError: no template, one that refuses the conversation, or one that asks for what it may not have.
        """
        asked = {"tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
        return apply_template(self, conversation, chat_template, asked, tokenize=tokenize, **options)

    def encode_windows(self, question: str, context: str, max_length: int, stride: int, multiple: int = 1) -> Windows:
        """Cut a passage into windows that fit beside the question (Devlin et al. 2019, SQuAD).

        Args:
            question: first in each input, whole.
            context: the passage.
            max_length: most tokens of an input, special ones included.
            stride: tokens that neighbouring windows share.
            multiple: windows are padded to a multiple of so many tokens, and no further than `max_length`.

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
        longest = max(len(row.ids) for row in rows)
        width = longest if multiple == 1 else min(-(-longest // multiple) * multiple, max_length)
        inputs = self.pad_rows(rows, plain_call(padding=width))
        offsets = np.zeros((*inputs["input_ids"].shape, 2), np.int32)
        inside = np.zeros(inputs["input_ids"].shape, bool)
        for i, row in enumerate(rows):
            place = np.flatnonzero(inputs["attention_mask"][i])
            offsets[i, place] = np.reshape(row.offsets, (-1, 2))
            inside[i, place] = [sequence == 1 for sequence in row.sequence_ids]
        return Windows(inputs, np.where(inside[..., None], offsets, 0), inside)

    def token_offsets(self, texts: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Return where each token of each text begins and ends, in characters, without special tokens."""
        return [row.offsets for row in self._encode(list(texts), special=False, offsets=True)]

    def save(self, folder: str | os.PathLike) -> None:
        """Write the files this was read from, byte for byte, into a folder, made if need be.

        What ``dataclasses.replace`` changed is not in them.
        """
        write_files(self.files, Path(folder))

    @property
    def _source(self) -> Path:
        return self.folder / next(iter(self.files))  # vocabularies come first

    def _encode(
        self, inputs: list, truncation: dict[str, Any] | None = None, *, special: bool = True, offsets: bool = False
    ) -> list[Any]:
        encode = self.engine.encode_batch if offsets else self.engine.encode_batch_fast
        for text in inputs:
            check_text(text)
        with _TURN, unreadable_is_value_error(self._source):
            if truncation is not None:
                self.engine.enable_truncation(**truncation)
            try:
                return encode(inputs, add_special_tokens=special)
            finally:
                self.engine.no_truncation()

    def encode_rows(self, inputs: list, call: Call, *, offsets: bool = False) -> list[Any]:
        """Encode texts, cut or refused where they are too long."""
        least = self.engine.num_special_tokens_to_add(call.pairs is not None) if call.special else 0
        truncation = None
        if call.cut is not None:
            if call.max_length <= least:
                raise ValueError(f"max_length must exceed the {least} special tokens, got {call.max_length}")
            truncation = {"max_length": call.max_length, "direction": self.truncation_side}
            truncation |= {} if call.pairs is None else {"strategy": call.cut}
        rows = self._encode(inputs, truncation, special=call.special, offsets=offsets)
        lengths = [len(row.ids) for row in rows]
        if call.max_length is not None and max(lengths, default=0) > call.max_length:
            raise ValueError(
                f"inputs must have at most {call.max_length} tokens, got {max(lengths)} in text"
                f" {int(np.argmax(lengths))}; truncate=True cuts them"
            )
        return rows

    def pad_rows(self, rows: list[Any], call: Call) -> Inputs:
        """Lay encoded texts out as a model's inputs."""
        left = (call.side or self.padding_side) == "left"
        return pad_rows(rows, call, pad=self.pad, left=left, types=self.types, folder=self.folder)


def _refuse(tokenizer: HubTokenizer, name: str, value: Any) -> None:
    """Return how a tokenizer with another token is made."""
    role = name.removesuffix("_id").removesuffix("_token")
    which = f"{role}=tokenizer.eos" if role in SPECIAL else f"{name}=…"
    raise AttributeError(
        f"a tokenizer stays as it is; dataclasses.replace(tokenizer, {which}) gives another, got {name}"
    )


HubTokenizer.__setattr__ = _refuse


def load_hub_tokenizer(folder: str | os.PathLike) -> HubTokenizer | None:
    """Read the tokenizer of a checkpoint folder; None where it has no tokenizer files.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: a malformed file, an unsupported one, or a special token that the vocabulary lacks; names it.
    """
    folder = Path(folder)
    files = read_files(folder)
    if not has_vocabulary(files):
        return None
    model = folder / "config.json"
    config = read_object({"config.json": model.read_bytes()}, "config.json", folder) if model.is_file() else {}
    return from_files(files, folder, config)


def _spelled(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the spelling of each special token there is, by its role."""
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
    return from_files(files, Path("."), {})


def from_files(files: Mapping[str, bytes], folder: Path, model: Mapping[str, Any]) -> HubTokenizer:
    """Make the tokenizer that files describe; `model` is what config.json says."""
    config = read_object(files, "tokenizer_config.json", folder)
    if "added_tokens_decoder" not in config:  # which repeats what older folders say in this file
        config = config | read_object(files, "special_tokens_map.json", folder)
    named = (each.get("tokenizer_class") for each in (config, model))
    declared = next((name for name in named if name not in (None, "")), None)
    if not isinstance(declared, str | None):
        raise ValueError(f"{folder / 'tokenizer_config.json'} must give tokenizer_class as a string, got {declared!r}")
    model_type = model.get("model_type")
    kind = find_kind(files, declared, model_type if isinstance(model_type, str) else None, folder)
    named = named_tokens(config, folder)
    special = {**kind.special, **{role: token and token.content for role, token in named.items()}}
    target, marian = None, "source.spm" in files and "tokenizer.json" not in files
    single = marian or kind.name == "m2m100"
    if kind.name == "m2m100":
        from flax_transformer.hub.processor.m2m100 import build_m2m100

        engine = build_m2m100(files, folder, special, config)
    elif marian:
        from flax_transformer.hub.processor.marian import build_marian

        engine, target = build_marian(files, folder, special)
    elif kind.name == "wav2vec2ctc" and "vocab.json" in files:
        engine = build_letters(files, folder, special, config)
        engine.encode_special_tokens = config.get("split_special_tokens") is True
    else:
        engine = build_engine(files, folder, kind, special, config)
        assumed = [token for role, token in kind.special.items() if role not in named]
        add_tokens(engine, files, config, [token for token in named.values() if token], assumed, folder)
        engine.encode_special_tokens = config.get("split_special_tokens") is True
    ids = {role: engine.token_to_id(token) for role, token in special.items() if token is not None}
    missing = [special[role] for role, id in ids.items() if id is None and role in named]
    if missing:
        raise ValueError(f"{folder}: special tokens must be in the vocabulary, got {listed(map(repr, missing))}")
    options = {
        "files": files, "folder": folder, **ids,
        "types": not single and _reads_types(engine, config, kind),
        "padding_side": read_side(config, "padding_side", kind.padding_side, folder),
        "truncation_side": read_side(config, "truncation_side", "right", folder),
        "model_max_length": read_max_length(config, folder),
        "cleaning": config.get("clean_up_tokenization_spaces") is True and not _is_bpe(engine),
    }  # fmt: skip
    return HubTokenizer(
        engine=engine, target=None if target is None else HubTokenizer(engine=target, **options), **options
    )


def _reads_types(engine: Any, config: Mapping[str, Any], kind: TokenizerType) -> bool:
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    if kind.types is not None:
        return kind.types
    template = json.loads(engine.post_processor.__getstate__())
    pair = template.get("pair", [])
    marks = [piece["SpecialToken"]["type_id"] for piece in pair if "SpecialToken" in piece]
    return template["type"] == "BertProcessing" or 1 in marks


def _is_bpe(engine: Any) -> bool:
    return type(engine.model).__name__ == "BPE"  # pieces of bytes keep their own spaces
