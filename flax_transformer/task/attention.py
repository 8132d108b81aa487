"""Attention weights of a translation model, sentence by sentence.

Axes: L layers, N heads, S source tokens, T target tokens.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from flax_transformer.data.text import Tokenizer
from flax_transformer.models.protocol import EncoderDecoder
from flax_transformer.ops import capture
from flax_transformer.ops.capture import UnmarkedError, marks
from flax_transformer.parallel import MeshConfig, make_mesh
from flax_transformer.report import AttentionMaps, TextAttention
from flax_transformer.task.translator import Search, Translator, padded_length

SEES_ALL = "Rows: the generated token; columns: the tokens of the last pass that it attends to, before and after it."
"""Of a decoder that generates all tokens at once."""

LONGEST = 128
"""Tokens a sentence may have to be drawn."""

KINDS = {
    "encoder self": "Rows: source tokens; columns: the source tokens that they attend to.",
    "decoder self": "Rows: the generated token; columns: the tokens before it that it attends to.",
    "cross": "Rows: the generated token; columns: the source tokens that it attends to.",
}

TWICE = {
    "encoder self": KINDS["encoder self"],
    "decoder self, first": KINDS["decoder self"],
    "cross, first": KINDS["cross"],
    "decoder self": KINDS["decoder self"],
    "cross": KINDS["cross"],
}
"""Of decoders whose layers attend twice to either side, as those of the Evolved Transformer do."""
SIDES = {"encoder": ("encoded", "encoded"), "decoder": ("written", "read"), "cross": ("written", "source")}
"""Whose tokens are rows and columns, by how the name of a kind begins."""


def attention_weights(
    model: EncoderDecoder,
    source: Shaped[Array | np.ndarray, "B S ..."],
    lengths: Int[Array | np.ndarray, "B"] | None,
    target: Int[Array | np.ndarray, "B T"],
) -> list[Float[np.ndarray, "L B N _ _"]]:
    """Compute encoder self-, decoder self- and cross-attention while a decoder is fed targets.

    Where both sides recur it is cross-attention alone, of an Evolved Transformer what is in `TWICE`.

    Raises:
      ValueError: as `where_weights_are`, and of a model that reads no target.
    """
    with where_weights_are():
        found = jax.device_get(_weights(jax.tree.map(np.asarray, model), source, lengths, target))
    if len(found) not in (1, len(KINDS), len(TWICE)):
        raise ValueError(f"attention that is drawn must be {', '.join(KINDS)}; got {len(found)} values that are marked")
    return found


@contextlib.contextmanager
def where_weights_are() -> Iterator[None]:
    """Run models on the CPU by the `xla` backend, whatever they were trained on: only that one has the weights.

    Raises:
      ValueError: when a model that is run there marks no weights.
    """
    # The mesh, even of one device, is what `attention` goes by in choosing its backend.
    with jax.set_mesh(make_mesh(MeshConfig(data=1), jax.devices("cpu")[:1])):
        try:
            yield
        except UnmarkedError as error:
            rule = "attention is drawn where layers attend by `ops.attention`, which marks its weights"
            raise ValueError(f"{rule}; this model has none") from error


@jax.jit
def _weights(
    model: EncoderDecoder, source: Shaped[Array, "B S ..."], lengths: Int[Array, "B"] | None, target: Int[Array, "B T"]
) -> list[Float[Array, "L B N _ _"]]:
    name, encode, decode = "attention_weights", type(model).encode, type(model).decode
    recurs = name not in marks(encode, model, source, lengths)
    memory, encoder = (encode(model, source, lengths), []) if recurs else capture(encode, name)(model, source, lengths)
    decoder = capture(decode, name)(model, target, memory, lengths)[1]
    sides = zip(("encoder", "decoder"), (encoder, decoder), strict=True)
    return [weights for side, found in sides for weights in _stacked(found, getattr(model, side, None))]


def _stacked(found: list[Array], side: Any) -> list[Array]:
    """Return an array of all layers for each kind, whether the layers ran as a scan or one by one."""
    if all(weights.ndim == 5 for weights in found):
        return found
    kinds = len(found) // getattr(getattr(side, "cfg", None), "depth", len(found))
    return [jnp.stack(found[kind::kinds]) for kind in range(kinds)]


def attention_maps(translator: Translator, source: Sequence[int], target: Sequence[int]) -> tuple[AttentionMaps, ...]:
    """Compute encoder self-, decoder self- and cross-attention, as `attention_weights`, while a translation is fed.

    Args:
      source: token ids, end token included.
      target: token ids to be written, end token included where there is one.

    Raises:
      ValueError: when a side is empty or too long to draw, or the model attends by a function that does not show its
        weights.
    """
    for side, ids in (("source", source), ("translation", target)):
        if not 0 < len(ids) <= LONGEST:
            raise ValueError(f"a {side} must have 1 to {LONGEST} tokens to be drawn, got {len(ids)}")
    tokenizer, model = translator.tokenizer, type(translator.model)
    shifted = getattr(model, "shifted", True)
    read = [tokenizer.bos, *target[:-1]] if shifted else target
    rows = [_padded(source, tokenizer.pad), _padded(read, tokenizer.pad) if shifted else np.array([read], np.int32)]
    found = attention_weights(translator.model, rows[0], jnp.array([len(source)]), rows[1])
    sides = {"source": spell(tokenizer, source), "read": spell(tokenizer, read), "written": spell(tokenizer, target)}
    sides["encoded"] = (*getattr(model, "front", ()), *sides["source"])
    kinds = TWICE if len(found) == len(TWICE) else KINDS
    kinds = kinds if shifted else {**kinds, "decoder self": SEES_ALL}
    tokens = [SIDES[name.split(" ")[0].strip(",")] for name in kinds]
    return tuple(
        AttentionMaps(
            name, weights[:, 0, :, : len(sides[row]), : len(sides[column])], sides[row], sides[column], caption=caption
        )
        for (name, caption), weights, (row, column) in zip(
            [*kinds.items()][-len(found) :], found, tokens[-len(found) :], strict=True
        )
    )


def draw(translator: Translator, source: str, tokens: Sequence[str]) -> TextAttention:
    """Make the image of a sentence and its translation, the latter as a `Hypothesis` has it.

    Raises:
      ValueError: as `attention_maps` does.
    """
    tokenizer = translator.tokenizer
    ids = [*tokenizer.encode([source])[0], tokenizer.eos]
    known = [tokenizer.inner.token_to_id(token) for token in tokens]
    if None in known:
        raise ValueError(f"the vocabulary must hold every token of a translation, got {tokens[known.index(None)]!r}")
    return TextAttention(source, tokenizer.decode([known])[0], attention_maps(translator, ids, known))


def draw_sentence(translator: Translator, sentence: str, search: Search) -> tuple[TextAttention, dict]:
    """Translate a sentence; give its image, and the translation as a sample with readable tokens.

    Raises:
      ValueError: when the sentence or its translation is empty or too long to be drawn.
    """
    tokenizer = translator.tokenizer
    count = len(tokenizer.encode([sentence])[0])
    if not sentence.strip() or not count:
        raise ValueError(f"the sentence must not be empty, got {sentence!r}")
    if count >= LONGEST:
        raise ValueError(f"a sentence must have fewer than {LONGEST} tokens to be drawn, got {count}")
    best = translator([sentence], search)[0][0]
    return draw(translator, sentence, best.tokens[:LONGEST]), {
        "source": sentence,
        "hypothesis": best.text,
        "tokens": spell(tokenizer, token_ids(tokenizer, best.tokens)),
        "logprobs": best.logprobs,
    }


def token_ids(tokenizer: Tokenizer, tokens: Sequence[str]) -> list[int]:
    """Look up tokens; those that are not in the vocabulary become `<unk>`."""
    ids = map(tokenizer.inner.token_to_id, tokens)
    return [tokenizer.unk if token is None else token for token in ids]


def spell(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """Spell tokens for people: as text, with · where a space goes before; bytes that are no character stay as they are.

    Args:
      tokenizer: a `Tokenizer`, or a checkpoint's.

    >>> from flax_transformer.data.text import train_byte_bpe
    >>> tokenizer = train_byte_bpe(["über uns"] * 2, vocab_size=300)
    >>> spell(tokenizer, [*tokenizer.encode(["über uns"])[0], tokenizer.eos])
    ('über', '·uns', '</s>')
    """
    special = {getattr(tokenizer, role, None) for role in ("pad", "bos", "eos", "unk", "cls", "sep", "mask")}
    spelt, after_word = [], False
    for token, name in zip(ids, tokenizer.tokens(ids), strict=True):
        name = f"<{token}>" if name is None else name
        (text,) = [name] if token in special else tokenizer.decode([[token]])
        text = name if "\ufffd" in text else text
        space = text.startswith(" ") or name.startswith("▁") or (after_word and token != tokenizer.eos)
        spelt.append("·" + text.removeprefix(" ") if space else text or name)
        after_word = name.endswith("</w>")
    return tuple(spelt)


def _padded(ids: Sequence[int], pad: int) -> np.ndarray:
    row = np.full((1, padded_length(len(ids))), pad, np.int32)
    row[0, : len(ids)] = ids
    return row
