"""How a tokenizer is called: the words of this package and those of `transformers`, rows of ids to arrays and back.

Axes: B texts, T tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from flax_transformer.frozen import frozen
from flax_transformer.listing import listed

Inputs = dict[str, Int[np.ndarray, "B T"]]

TENSORS = (None, "np", "jax")
"""What arrays may be asked for: NumPy's, or JAX's."""
_PADDING = {True: "longest", False: None, "do_not_pad": None}
_TRUNCATION = {True: "longest_first", False: None, None: None, "do_not_truncate": None}
_STRATEGIES = ("longest_first", "only_first", "only_second")
_TAKEN = (
    "text_pair", "truncation", "padding_side", "add_special_tokens", "pad_to_multiple_of", "return_tensors",
    "return_token_type_ids", "return_attention_mask",
)  # fmt: skip
_HINTS = {
    "return_tensors": "arrays are NumPy's, which JAX takes, or JAX's",
    "return_offsets_mapping": "encode_windows gives offsets",
    "return_overflowing_tokens": "encode_windows cuts a passage into windows",
    "stride": "encode_windows cuts a passage into windows",
    "text_target": "tokenizer.target reads the target language",
}


@frozen
class Call:
    """What is asked of a tokenizer, in one spelling."""

    pairs: str | Sequence[str] | None
    max_length: int | None
    """Most tokens of an input."""
    cut: str | None
    """Which text of a pair is cut to `max_length`, as `tokenizers` calls it; None: longer ones are refused."""
    width: int | str | None
    """A number of tokens, `longest`, or None: all must be of one length."""
    multiple: int
    """Of which the width must be a multiple."""
    side: str | None
    special: bool
    types: bool | None
    """Whether token types are given; None: where the model reads them."""
    mask: bool


_PLAIN = {"pairs": None, "max_length": None, "padding": "longest", "side": None, "truncate": False}


def plain_call(**given: Any) -> Call:
    """Return how a tokenizer is called with some of `pairs`, `max_length`, `padding`, `side` and `truncate`."""
    return read_call(_PLAIN | given, {}, None)


def read_call(given: Mapping[str, Any], theirs: Mapping[str, Any], limit: int | None) -> Call:
    """Understand how a tokenizer is called.

    Args:
        given: `pairs`, `max_length`, `padding`, `side` and `truncate`.
        theirs: further words, as `transformers` has them.
        limit: most tokens that the checkpoint allows.

    Raises:
        ValueError: a word that is not understood, or a value that makes no sense.
    """
    known = {name: value for name, value in theirs.items() if name in _TAKEN}
    refused = [name for name, value in theirs.items() if name not in _TAKEN and value not in (None, False, 0)]
    if known.get("return_tensors") not in TENSORS:
        refused.append("return_tensors")
    if refused:
        hint = _HINTS.get(refused[0])
        raise ValueError(
            f"a tokenizer takes max_length, padding, side, truncate, {', '.join(_TAKEN)}; got"
            f" {listed(f'{name}={theirs[name]!r:.40}' for name in refused)}" + (f"; {hint}" if hint else "")
        )
    max_length, padding = given["max_length"], given["padding"]
    truncate = known.get("truncation") or given["truncate"]
    cut = _TRUNCATION.get(truncate, truncate) if isinstance(truncate, bool | str | None) else truncate
    if cut is not None and cut not in _STRATEGIES:
        raise ValueError(f"truncation must be true, false, {', '.join(_STRATEGIES)}, got {truncate!r}")
    if isinstance(padding, bool) or padding == "do_not_pad":
        padding = _PADDING[padding]
    elif padding == "max_length":
        padding = limit if max_length is None else max_length
        if padding is None:
            raise ValueError("padding='max_length' needs max_length, the checkpoint has none")
    side = given["side"] or known.get("padding_side")
    if not (padding in ("longest", None) or isinstance(padding, int)) or side not in ("left", "right", None):
        raise ValueError(
            "padding must be 'longest', 'max_length', a number of tokens or None, side left, right or None,"
            f" got {given['padding']!r}, {side!r}"
        )
    multiple = known.get("pad_to_multiple_of") or 1
    if not isinstance(multiple, int) or multiple < 1:
        raise ValueError(f"pad_to_multiple_of must be a number above 0, got {multiple!r}")
    if cut is not None and max_length is None:
        max_length = limit
        if max_length is None:
            raise ValueError("truncate needs max_length, the checkpoint has none")
    return Call(
        pairs=given["pairs"] if known.get("text_pair") is None else known["text_pair"],
        max_length=max_length,
        cut=cut,
        width=padding,
        multiple=multiple,
        side=side,
        special=known.get("add_special_tokens", True),
        types=known.get("return_token_type_ids"),
        mask=known.get("return_attention_mask") is not False,
    )


def read_texts(texts: Any, call: Call) -> tuple[list, Call]:
    """Lay one text, several, or pairs of texts out as a list of what to encode, and say which it is in the call.

    Raises:
        ValueError: what is no text, or texts that do not match those beside them.
    """
    pairs = call.pairs
    alone = isinstance(texts, str)
    if not alone and (isinstance(texts, bytes | Mapping) or not hasattr(texts, "__iter__")):
        raise ValueError(f"texts must be one string or a sequence of them, got {texts!r:.60}")
    if pairs is not None and alone != isinstance(pairs, str):
        raise ValueError(
            "beside one text stands one text, and beside several a sequence of strings, as many, got one string "
            f"{texts if alone else pairs!r:.60}"
        )
    if alone:
        texts, pairs = [texts], [pairs] if pairs else None  # an empty one is none, as in `transformers`
    texts = list(texts)
    if pairs is None and texts and all(isinstance(text, tuple) and len(text) == 2 for text in texts):
        texts, pairs = map(list, zip(*texts, strict=True))
    if pairs is not None and len(texts) != len(pairs):
        raise ValueError(f"each text needs its pair, got {len(texts)} texts, {len(pairs)} pairs")
    return texts if pairs is None else list(zip(texts, pairs, strict=True)), replace(call, pairs=pairs)


def as_tensors(inputs: dict[str, Any], asked: str | None) -> dict[str, Any]:
    """Return arrays of the kind that is asked for, under the word of `transformers`: NumPy's, or JAX's.

    Raises:
        ValueError: another kind.
    """
    if asked not in TENSORS:
        raise ValueError(f"arrays are NumPy's, which JAX takes, or with 'jax' JAX's; got return_tensors={asked!r:.40}")
    return {name: jnp.asarray(array) for name, array in inputs.items()} if asked == "jax" else inputs


def pad_rows(rows: Sequence[Any], call: Call, *, pad: int | None, left: bool, types: bool, folder: Path) -> Inputs:
    """Lay encoded texts out as a model's inputs.

    Args:
        rows: what `tokenizers` gives.
        call: how wide they are to be.
        pad: what they are padded with.
        left: whether padding goes before them.
        types: whether the model reads token types.
        folder: of the tokenizer, for messages.

    Raises:
        ValueError: texts that do not fit the width, or padding without a pad token.
    """
    lengths = [len(row.ids) for row in rows]
    longest = max(lengths, default=0)
    width = call.width if isinstance(call.width, int) else longest
    width = -(-width // call.multiple) * call.multiple
    if longest > width or (call.width is None and min(lengths, default=0) < longest):
        allowed = f"at most {width}" if call.width is not None else "one number of"
        raise ValueError(f"with padding={call.width!r} inputs must have {allowed} tokens, got {sorted(set(lengths))}")
    if min(lengths, default=width) < width and pad is None:
        raise ValueError(
            "padding needs a pad token, the checkpoint has none: dataclasses.replace(tokenizer, pad=tokenizer.eos)"
        )
    shape = len(rows), width
    inputs = {"input_ids": np.full(shape, pad or 0, np.int64)}
    if types if call.types is None else call.types:
        inputs["token_type_ids"] = np.zeros(shape, np.int32)
    if call.mask:
        inputs["attention_mask"] = np.zeros(shape, np.int32)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        place = slice(width - length, width) if left else slice(length)
        inputs["input_ids"][i, place] = row.ids
        if call.mask:
            inputs["attention_mask"][i, place] = 1
        if "token_type_ids" in inputs:
            inputs["token_type_ids"][i, place] = row.type_ids
    if inputs["input_ids"].max(initial=0) >= 2**31:
        raise ValueError(f"{folder}: token ids must be below 2**31, got {inputs['input_ids'].max()}")
    return inputs | {"input_ids": inputs["input_ids"].astype(np.int32)}


def read_rows(ids: Any, *, rows: int | None = None) -> tuple[list[list[int]], bool]:
    """Take token ids as rows, and say whether they were one row, or one id.

    Args:
        ids: one, a row, or rows; or what a call of a tokenizer gave.
        rows: how many there must be.

    Raises:
        ValueError: what are no token ids.
    """
    most, ids = rows, ids["input_ids"] if isinstance(ids, Mapping) and "input_ids" in ids else ids
    if not hasattr(ids, "ndim") and not isinstance(ids, int | list | tuple | np.generic):
        raise ValueError(f"token ids must be one row or a list of rows, got {ids!r:.60}")
    single = isinstance(ids, int) or (hasattr(ids, "ndim") and np.ndim(ids) == 0)
    ids = [ids if isinstance(ids, int) else np.asarray(ids).item()] if single else ids
    alone = np.ndim(ids) < 2 if hasattr(ids, "ndim") else len(ids) == 0 or np.ndim(ids[0]) == 0
    rows = [np.asarray(row).tolist() for row in ([ids] if alone else ids)]
    if most is not None and len(rows) != most:
        raise ValueError(f"token ids must be one row, got {len(rows)}")
    if not all(isinstance(row, list) and not (row and isinstance(row[0], list)) for row in rows):
        raise ValueError(f"token ids must be one row or a list of rows, got {ids!r:.60}")
    wrong = [id for row in rows for id in row if type(id) is not int or not 0 <= id < 2**32]
    if wrong:
        rule = "not be negative" if isinstance(wrong[0], int) and wrong[0] < 0 else "be whole numbers below 2**32"
        raise ValueError(f"token ids must {rule}, got {wrong[0]!r:.40}")
    return rows, alone


def check_text(text: Any) -> None:
    """Refuse what is no text.

    Raises:
        ValueError: something else, or a string that UTF-8 cannot have.
    """
    for part in text if isinstance(text, tuple) else (text,):
        if not isinstance(part, str):
            raise ValueError(f"texts must be strings, got {part!r:.40}")
        try:
            part.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(f"texts must be Unicode without lone surrogates, got {part[:40]!r}") from error
