"""Joint byte-pair encoding (Sennrich et al. 2016) in the ``tokenizer.json`` format that Hugging Face reads.

Two kinds: words, for text that is already split at spaces, and bytes, lossless on any text. The four special tokens
have fixed ids; their spelling inside a text is only text and never becomes one of those ids.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.atomic import write_file

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
PAD, BOS, EOS, UNK = range(4)
MASK, END = "<mask>", "<|endoftext|>"
_END = "</w>"
_GROWTH = 10_000
_RESERVED = re.compile("|".join(re.escape(text) for text in (*SPECIAL, MASK, END, _END)))


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Text to token ids and back; made by ``train_word_bpe``, ``train_byte_bpe`` or ``load_tokenizer``."""

    inner: Any  # a tokenizers.Tokenizer
    pad: int = PAD
    bos: int = BOS
    eos: int = EOS
    unk: int = UNK
    mask: int | None = None
    """What stands for a masked token; None where there is no such token."""

    def __post_init__(self) -> None:
        self.inner.encode_special_tokens = True  # reads "</s>" in a sentence as four characters

    @property
    def vocab_size(self) -> int:
        """Count all tokens, special ones included."""
        return self.inner.get_vocab_size()

    def with_mask(self) -> "Tokenizer":
        """Return a copy with one more special token, the last: what stands for a hidden one.

        >>> tokenizer = train_byte_bpe(["over and over"], vocab_size=260).with_mask()
        >>> tokenizer.mask, tokenizer.tokens([tokenizer.mask]), tokenizer.vocab_size
        (260, ['<mask>'], 261)
        """
        import tokenizers

        inner = tokenizers.Tokenizer.from_str(self.json())
        # A hidden word begins with its space, so the space before the mask is the mask's.
        inner.add_special_tokens([tokenizers.AddedToken(MASK, lstrip=True, normalized=False, special=True)])
        return replace(self, inner=inner, mask=inner.token_to_id(MASK))

    def with_marks(self, *marks: str) -> "Tokenizer":
        """Return a copy with more special tokens, the last, which stand before texts to say what they are.

        >>> train_byte_bpe(["over and over"], vocab_size=260).with_marks("[query]").inner.token_to_id("[query]")
        260
        """
        import tokenizers

        inner = tokenizers.Tokenizer.from_str(self.json())
        inner.add_special_tokens([tokenizers.AddedToken(mark, normalized=False, special=True) for mark in marks])
        return replace(self, inner=inner)

    def with_end(self) -> "Tokenizer":
        """Return a copy with one more special token, the last, to end texts: CLIP finds the end by the largest id."""
        import tokenizers

        inner = tokenizers.Tokenizer.from_str(self.json())
        inner.add_special_tokens([tokenizers.AddedToken(END, normalized=False, special=True)])
        return replace(self, inner=inner, eos=inner.token_to_id(END))

    def encode(self, texts: str | Sequence[str]) -> list[list[int]] | list[int]:
        """Turn texts into token ids, without begin or end marks; one text into those of that one."""
        if isinstance(texts, str):
            return self.encode([texts])[0]
        with _panic_is_value_error():
            rows = self.inner.encode_batch_fast(list(texts), add_special_tokens=False)
        return [row.ids for row in rows]

    def decode(self, rows: Sequence[Sequence[int]] | np.ndarray) -> list[str]:
        """Turn rows of token ids into texts; each ends before its first end mark, and special ids are left out."""
        special = (self.pad, self.bos, self.unk, self.mask)
        kept = []
        for row in rows:
            ids = np.asarray(row).tolist()
            ids = ids[: ids.index(self.eos)] if self.eos in ids else ids
            kept.append([token for token in ids if token not in special])
        with _panic_is_value_error():
            return self.inner.decode_batch(kept, skip_special_tokens=False)

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Name each token of one row as the vocabulary spells it."""
        return [self.inner.id_to_token(int(token)) for token in ids]

    def json(self) -> str:
        """Return the content of ``tokenizer.json``."""
        return self.inner.to_str(pretty=False)

    def save(self, path: str | os.PathLike) -> None:
        """Write ``tokenizer.json``; the file appears whole or not at all."""
        write_file(path, self.json())

    def fingerprint(self) -> str:
        """Return the SHA-256 of ``json()`` in hexadecimal."""
        return hashlib.sha256(self.json().encode()).hexdigest()


@contextmanager
def unreadable_is_value_error(path: str | os.PathLike) -> Iterator[None]:
    """Turn whatever the Rust library raises on a crafted file, panics too, into a ValueError that names the file."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic is a BaseException
        raise ValueError(f"{path} is not a readable {Path(path).name}: {error}") from error


@contextmanager
def _panic_is_value_error() -> Iterator[None]:
    """Turn the panic of a pattern that searches without end into a ValueError."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ValueError(f"tokenizer.json cannot be used on this text: {error}") from error


def parse_tokenizer(content: bytes, path: str | os.PathLike) -> Any:
    """Make a ``tokenizers.Tokenizer`` of the content of ``tokenizer.json``, without its padding and truncation.

    Raises:
        ValueError: not a tokenizer; names `path`.
    """
    import tokenizers

    with unreadable_is_value_error(path):
        inner = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        ids = inner.get_vocab(with_added_tokens=False).values()
        if not ids or len(set(ids)) < len(ids) or max(ids) >= 2**31:
            raise ValueError("a vocabulary must have tokens, each with its own id below 2**31")
        for part in (inner.normalizer, inner.decoder):
            if part is not None and _growth(json.loads(part.__getstate__())) > _GROWTH:
                raise ValueError(f"no character may become more than {_GROWTH} by replacing")
        inner.no_padding()
        inner.no_truncation()
        inner.decode(inner.encode("a b").ids)  # some broken files only show when used
    return inner


def _growth(part: dict[str, Any]) -> float:
    """Return how many times longer a normalizer or decoder may make a text; what fills memory does so by repetition."""
    growth = math.prod(map(_growth, (*part.get("normalizers", ()), *part.get("decoders", ()))), start=1.0)
    if part["type"] == "Replace":
        growth *= max(len(part["content"]) / max(len(part["pattern"].get("String", "")), 1), 1.0)
    return growth * (_GROWTH / 2 if part["type"] == "Precompiled" else 1)  # twice is once too often


def load_tokenizer(path: str | os.PathLike) -> Tokenizer:
    """Read ``tokenizer.json``.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a tokenizer, or one without this library's special tokens; names the file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no tokenizer file {path}")
    inner = parse_tokenizer(Path(path).read_bytes(), path)
    ids = [inner.token_to_id(token) for token in SPECIAL]
    if None in ids:
        missing = ", ".join(token for token, id in zip(SPECIAL, ids, strict=True) if id is None)
        raise ValueError(f"{path} must hold the special tokens {', '.join(SPECIAL)}, it lacks {missing}")
    added = {token.content for token in inner.get_added_tokens_decoder().values() if token.special}
    return Tokenizer(inner, *ids, inner.token_to_id(MASK) if MASK in added else None)


def train_word_bpe(texts: Iterable[str], *, merges: int) -> Tokenizer:
    """Learn at most ``merges`` merges of characters inside whitespace-separated words, as subword-nmt does.

    A word's last piece carries ``</w>``, so decoding restores the words exactly, joined by single spaces. Characters
    never seen in training become ``<unk>``. Pass the sentences of both languages for a joint vocabulary.

    >>> tokenizer = train_word_bpe(["low low lower"] * 3, merges=2)
    >>> tokenizer.tokens(tokenizer.encode(["low ewer"])[0])
    ['low</w>', 'e', 'w', 'e', 'r</w>']
    """
    import tokenizers

    if merges < 0:
        raise ValueError(f"merges must not be negative, got {merges}")
    texts = list(_scrub(texts))
    characters = sorted({character for text in texts for character in text if not character.isspace()})
    if not characters:
        raise ValueError("the texts to train a tokenizer on have no words")
    # Both forms of each character go in front, in sorted order: the trainer would else number the final forms in the
    # order of a hash table, another one in each process, and lack those no training word ends with.
    alphabet = [*characters, *(character + _END for character in characters)]
    model = tokenizers.models.BPE(unk_token=SPECIAL[UNK], end_of_word_suffix=_END)
    draft = tokenizers.Tokenizer(model)
    draft.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=len(SPECIAL) + len(alphabet) + merges,
        min_frequency=2,
        special_tokens=[*SPECIAL, *alphabet],
        end_of_word_suffix=_END,
        show_progress=False,
    )
    draft.train_from_iterator(texts, trainer)
    return _finish(draft, tokenizers.pre_tokenizers.WhitespaceSplit(), tokenizers.decoders.BPEDecoder(suffix=_END))


def train_byte_bpe(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Learn merges of UTF-8 bytes (Radford et al. 2019) up to ``vocab_size`` tokens; lossless on any text.

    >>> tokenizer = train_byte_bpe(["over and over"] * 3, vocab_size=262)
    >>> tokenizer.decode(tokenizer.encode(["über ☃"]))
    ['über ☃']
    """
    import tokenizers

    least = 256 + len(SPECIAL)
    if vocab_size < least:
        raise ValueError(f"vocab_size must be at least 256 bytes + {len(SPECIAL)} special tokens, got {vocab_size}")
    draft = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    draft.pre_tokenizer = split
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(split.alphabet()),
        show_progress=False,
    )
    draft.train_from_iterator(_scrub(texts), trainer)
    return _finish(draft, split, tokenizers.decoders.ByteLevel())


def _scrub(texts: Iterable[str]) -> Iterator[str]:
    """Keep merges from ever spelling a reserved token, which would then stand for user text."""
    return (_RESERVED.sub(" ", text) for text in texts)


def _finish(draft: Any, split: Any, decoder: Any) -> Tokenizer:
    """Rebuild the trained model with only the four special tokens registered as such."""
    import tokenizers

    model = json.loads(draft.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    options = {name: model[name] for name in ("unk_token", "end_of_word_suffix") if model[name] is not None}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=model["vocab"], merges=merges, **options))
    inner.pre_tokenizer, inner.decoder = split, decoder
    inner.add_special_tokens(list(SPECIAL))
    return Tokenizer(inner)
