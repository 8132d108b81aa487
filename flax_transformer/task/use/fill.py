"""Fill in masked tokens."""

from dataclasses import dataclass

import jax
import numpy as np

from flax_transformer.hub import Pretrained
from flax_transformer.task.use.require import require_use, tokenizer_of


@dataclass(frozen=True)
class Guess:
    """A token for a mask, how probable it is, and the text with it in place."""

    token: str
    probability: float
    text: str


def fill_mask(pretrained: Pretrained, text: str, top: int = 5) -> list[list[Guess]]:
    """Guess the masked tokens of a text.

    Args:
      pretrained: a masked language model.
      text: has the tokenizer's mask token once or more.
      top: guesses for each mask.

    Returns:
      For each mask, by itself, the likeliest tokens, the best first.

    Raises:
      ValueError: a checkpoint of another kind, a text without a mask, or one longer than the positions.
    """
    require_use(pretrained, "fill")
    tokenizer = tokenizer_of(pretrained, text)
    if tokenizer.mask is None:
        raise ValueError("to fill in masks takes a mask token, the checkpoint's tokenizer has none")
    if top < 1:
        raise ValueError(f"top must be at least 1, got {top}")
    inputs = tokenizer([text])
    ids = inputs["input_ids"][0]
    places = np.flatnonzero(ids == tokenizer.mask)
    if not len(places):
        raise ValueError(f"the text must have the mask token {tokenizer.tokens([tokenizer.mask])[0]}, got {text!r}")
    output = pretrained(**inputs)
    logits = output.prediction_logits if output.logits is None else output.logits
    shares = np.asarray(jax.nn.softmax(logits[0, places].astype(np.float32)))
    hidden = {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.cls, tokenizer.sep}
    guesses = []
    for place, share in zip(places, shares, strict=True):
        found = []
        for token in np.argsort(-share, kind="stable")[:top]:
            filled = [int(id) for id in np.where(np.arange(len(ids)) == place, token, ids)]
            kept = [id for i, id in enumerate(filled) if i == place or id not in hidden]
            (said,) = tokenizer.decode([kept], skip_special_tokens=False)
            (piece,) = tokenizer.decode([[int(token)]], skip_special_tokens=False)
            found.append(Guess(piece.strip() or piece, float(share[token]), said.strip()))
        guesses.append(found)
    return guesses
