"""A prompt that is read once, for many texts that begin with it.

Axes: B rows, P tokens of the prompt, R tokens after it.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from flax_transformer.hub.generation_input import GenerationInput, fitting, start_of
from flax_transformer.hub.given import name_of


@dataclass(frozen=True)
class Past:
    """What a decoder-only model has read: see `read_prompt` and `read_prompt_adapter`."""

    cache: Any
    """Keys and values of one row."""
    tokens: Any
    """[P], with which each row begins."""
    virtual: int = 0
    """Positions in the cache that are of no tokens, before them."""

    def rest(self, read: GenerationInput, config: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens after the prompt and where they are, [B, R] padded on the left.

        Padding there lies between the prompt and what follows it, where it would count as distance: windows and biases
        of distances have none.

        Raises:
          ValueError: tokens that are not known yet, as within a transform, a row that does not begin with the prompt or
            has no token after it, or rows of several lengths where attention goes by distances.
        """
        if not isinstance(read.source, np.ndarray):
            raise ValueError("past is for prompts of tokens that are known, not within a transform")
        count, ids = len(self.tokens), read.source
        mask = np.ones_like(ids) if read.mask is None else np.asarray(read.mask)
        begin = mask.argmax(1)
        lengths = ids.shape[1] - begin - count
        for row, (first, length) in enumerate(zip(begin, lengths, strict=True)):
            if length < 1 or not mask[row, first:].all() or (ids[row, first : first + count] != self.tokens).any():
                raise ValueError(
                    f"each row begins with the {count} tokens of past and has others after them, row {row} does not"
                )
        size = int(lengths.max())
        if config.window is None and config.relative is None:
            size = fitting(config.embedding, size, more=1)
        elif lengths.min() < size:
            raise ValueError(
                "after past rows must be of one length where attention has windows or biases of distances, got "
                f"{lengths.tolist()} tokens"
            )
        seen = np.arange(size) >= size - lengths[:, None]
        whole = np.pad(ids, ((0, 0), (max(size - ids.shape[1], 0), 0)))[:, -size:]
        return np.where(seen, whole, 0), seen.astype(np.int32)


def read_prompt(pretrained: Any, input_ids: Int[Array | np.ndarray, "P"] | Int[Array | np.ndarray, "1 P"]) -> Past:
    """Read a prompt once; `pretrained.generate(ids, past=past)` goes on from it in every row, which begins with it.

    What is generated is what it would be without: only the tokens after the prompt are still to be read. The result is
    of this checkpoint alone, and is not changed by its use.

    Raises:
      ValueError: a model that is no decoder-only one of text, or no tokens.
    """
    start = start_of(pretrained)
    if not start.continues or not hasattr(pretrained.model, "read_on"):
        raise ValueError(f"a prompt is read once by decoder-only models of text, a {name_of(pretrained)} is another")
    ids = np.asarray(input_ids).reshape(-1)
    if not ids.size or ids.dtype.kind not in "iu":
        raise ValueError(f"a prompt to read has tokens, whole numbers, got {ids.size} of type {ids.dtype}")
    pretrained.check_ids("input_ids", ids)
    config = pretrained.model.cfg
    if config.embedding.position == "learned" and len(ids) > config.embedding.max_length:
        raise ValueError(f"a prompt must fit into {config.embedding.max_length} positions, got {len(ids)} tokens")
    before = fitting(config.embedding, len(ids)) - len(ids)
    padding = np.arange(before + len(ids))[None] < before
    return Past(_read(pretrained.decoder, np.pad(ids, (before, 0))[None], padding), ids)


@jax.jit
def _read(model: Any, ids: Int[Array, "1 P"], padding: Bool[Array, "1 P"]) -> Any:
    return model.read(jnp.asarray(ids), jnp.asarray(padding))[1]
