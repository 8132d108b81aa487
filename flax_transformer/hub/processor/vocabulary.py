"""What a tokenizer's tokens are called, under the names of `transformers`; texts to ids alone, and ids to texts.

Axes: B texts, T tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Int

from flax_transformer.data.text.tokenizer import unreadable_is_value_error
from flax_transformer.hub.processor.attach import attach
from flax_transformer.hub.processor.call import read_rows
from flax_transformer.hub.processor.ctc import collapse
from flax_transformer.listing import listed

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""Of special tokens, in the order that `transformers` has them."""
_ELSEWHERE = {
    "save_pretrained": "save(folder) writes its files",
    "from_pretrained": "flax_transformer.hub.load(folder).tokenizer is one",
    "add_tokens": "a checkpoint's vocabulary stays as it is",
    "add_special_tokens": "a checkpoint's vocabulary stays as it is",
    "pad": "a call pads: tokenizer(texts, padding=True)",
    "encode_plus": "a call does: tokenizer(text)",
    "batch_encode_plus": "a call does: tokenizer(texts)",
}

Ids = int | Sequence[int] | Sequence[Sequence[int]] | Int[np.ndarray, "*B T"] | Int[Array, "*B T"] | Mapping[str, Any]


class Vocabulary:
    """The part of a `HubTokenizer` that knows single tokens.

    Beside what stands here, `pad_token` and `pad_token_id` spell and number the padding token, None where there is
    none, and so for bos, eos, unk, sep, cls and mask.
    """

    def __getattr__(self, name: str) -> Any:
        role = name.removesuffix("_id").removesuffix("_token")
        if role not in ROLES or name not in (f"{role}_token", f"{role}_token_id"):
            hint = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"a tokenizer has no {name!r}{hint}")
        id = getattr(self, role)
        return id if name.endswith("_id") or id is None else self.engine.id_to_token(id)

    def __repr__(self) -> str:
        special = listed(
            f"{role} {getattr(self, f'{role}_token')}" for role in ROLES if getattr(self, role) is not None
        )
        return f"HubTokenizer of {len(self):,} tokens: {special}"

    def __len__(self) -> int:
        return self.engine.get_vocab_size()

    def __bool__(self) -> bool:
        return True

    @property
    def vocab_size(self) -> int:
        """Count all tokens, added ones included."""
        return len(self)

    def get_vocab(self) -> dict[str, int]:
        """Return the id of every token."""
        return self.engine.get_vocab()

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The spelling of each special token that has a role: `{"pad_token": "[PAD]", …}`."""
        spelled = {f"{role}_token": getattr(self, f"{role}_token") for role in ROLES}
        return {name: token for name, token in spelled.items() if token is not None}

    @property
    def all_special_tokens(self) -> list[str]:
        """All special tokens that have a role, each once."""
        return list(dict.fromkeys(self.special_tokens_map.values()))

    @property
    def all_special_ids(self) -> list[int]:
        """Their ids."""
        return self.convert_tokens_to_ids(self.all_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> int | list[int | None] | None:
        """Look up tokens, or one; what the vocabulary lacks is the unknown token, None where there is none."""
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        id = self.engine.token_to_id(tokens)
        return self.unk if id is None else id

    def convert_ids_to_tokens(self, ids: Ids, skip_special_tokens: bool = False) -> str | list[str | None] | None:
        """Spell the tokens of one row, or one token, as the vocabulary does; None beyond it."""
        ((row,), _) = read_rows(ids, rows=1)
        skipped = self.all_special_ids if skip_special_tokens else ()
        tokens = [self.engine.id_to_token(id) for id in row if id not in skipped]
        return tokens[0] if np.ndim(ids) == 0 and tokens else tokens

    def tokens(self, ids: Sequence[int] | Int[np.ndarray, "T"]) -> list[str | None]:
        """Name each token of one row as the vocabulary spells it; None beyond the vocabulary."""
        return [self.engine.id_to_token(int(token)) for token in ids]

    def tokenize(self, text: str, pair: str | None = None, *, add_special_tokens: bool = False) -> list[str]:
        """Split one text, or one pair of texts, into tokens."""
        if not isinstance(text, str) or not isinstance(pair, str | None):
            raise ValueError(
                f"tokenize splits one text, got {text!r:.40}{'' if pair is None else f' and {pair!r:.40}'}"
            )
        (row,) = self._encode([text if pair is None else (text, pair)], special=add_special_tokens, offsets=True)
        return list(row.tokens)

    def encode(
        self,
        texts: str | Sequence[str],
        text_pair: str | None = None,
        *,
        add_special_tokens: bool | None = None,
        return_tensors: str | None = None,
        **words: Any,
    ) -> list[int] | list[list[int]] | Int[np.ndarray, "1 T"]:
        """Turn one text into its token ids, as `transformers` does, or several into a list of ids for each.

        Args:
            texts: one, with or without a second text beside it, or several.
            text_pair: the second text of one.
            add_special_tokens: whether to add the marks that ``__call__`` adds; by default to one text, as in
                `transformers`, and not to several, as tokenizers of this package do.
            return_tensors: `np` or `jax` for an array [1, T] of one text.
            words: of ``__call__``, about one text.
        """
        if isinstance(texts, str):
            defaults = {"padding": None, **words, "add_special_tokens": add_special_tokens is not False}
            ids = self(texts, text_pair, return_tensors=return_tensors, **defaults)["input_ids"]
            return ids[0].tolist() if return_tensors is None else ids
        if text_pair is not None or return_tensors is not None or words:
            got = ", ".join(
                [*words, *["text_pair"] * (text_pair is not None), *["return_tensors"] * bool(return_tensors)]
            )
            raise ValueError(f"encode takes {got} of one text; call the tokenizer for several")
        return [row.ids for row in self._encode(list(texts), special=bool(add_special_tokens))]

    def decode(
        self,
        ids: Ids,
        skip_special_tokens: bool = True,
        *,
        clean_up_tokenization_spaces: bool | None = None,
        group_tokens: bool = False,
    ) -> str | list[str]:
        """Turn a row of token ids, or one id, into its text, and rows into theirs; unknown ids are left out.

        Args:
            ids: numbers, arrays of them, or what a call gave.
            skip_special_tokens: leave special tokens out, unlike `transformers` unless it is told not to.
            clean_up_tokenization_spaces: draw punctuation to the word before it; by default as the checkpoint says.
            group_tokens: of tokens for CTC: read repetitions as one, and then leave blanks out.

        Raises:
            ValueError: negative ids, as labels have for what does not count, or what are no rows.
        """
        rows, alone = read_rows(ids)
        if group_tokens and (blank := getattr(self.engine, "blank", None)) is not None:
            rows = [collapse(np.array(row, np.int64), blank) if row else row for row in rows]
        with unreadable_is_value_error(self._source):
            texts = self.engine.decode_batch(rows, skip_special_tokens=skip_special_tokens)
        asked = clean_up_tokenization_spaces
        cleaning = self.cleaning if asked is None else asked and type(self.engine.model).__name__ != "BPE"
        texts = [attach(text) for text in texts] if cleaning else texts
        return texts[0] if alone else texts

    def batch_decode(
        self,
        ids: Ids,
        skip_special_tokens: bool = True,
        *,
        clean_up_tokenization_spaces: bool | None = None,
        group_tokens: bool = True,
    ) -> list[str]:
        """Turn rows of token ids into a list of texts: `decode`, but for CTC's tokens, which are those of positions."""
        rows, alone = read_rows(ids)
        if alone and not rows[0]:
            return []
        return self.decode(
            rows, skip_special_tokens, clean_up_tokenization_spaces=clean_up_tokenization_spaces,
            group_tokens=group_tokens,
        )  # fmt: skip
