"""What `generate` returns: token ids, or with `return_dict_in_generate` also how probable each of them was.

Axes: R sequences, T prompt and generated tokens, M generated tokens.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flax_transformer.decode import Decoded, Drafted


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Generated:
    """Sequences and what is known of them, under Hugging Face's names where it has any."""

    sequences: Any
    """[R, T], as `generate` returns them."""
    transition_scores: Any
    """[R, M]: the log-probability of each generated token under the distribution it was chosen from, 0 after the end;
    as `compute_transition_scores` computes them of `scores`, with `normalize_logits` but for beams."""
    sequences_scores: Any
    """[R]: their sum, of beams divided by the length penalty."""
    lengths: Any
    """[R], of generated tokens, with an end token."""
    passes: Any = None
    """[R]: calls of the model for each sequence, where tokens were proposed; without, there is one for each token."""
    accepted: Any = None
    """[R]: tokens that were proposed and kept."""


def sequences_of(prompt: Any, decoded: Decoded, count: int) -> Array:
    """Put prompts before what was generated; outside of transforms, end with the longest.

    Args:
      count: tokens to generate at most.
    """
    tokens, count = decoded.tokens, _longest(decoded, count)
    if not isinstance(tokens, jax.core.Tracer) and isinstance(prompt, np.ndarray):
        tokens = np.asarray(tokens)
    tokens = tokens[..., :count]
    on, rows = np if isinstance(tokens, np.ndarray) else jnp, tokens.reshape(-1, count)
    whole = on.concatenate([on.repeat(prompt, tokens.shape[1], axis=0), rows.astype(prompt.dtype)], axis=1)
    return jax.device_put(whole) if on is np else whole


def generated_of(prompt: Any, decoded: Decoded, count: int, drafted: Drafted | None = None) -> Generated:
    """Return sequences with their scores; arguments as `sequences_of`'s."""
    longest, parts = _longest(decoded, count), (decoded.logprobs, decoded.scores, decoded.lengths)
    known = not isinstance(decoded.tokens, jax.core.Tracer)  # on the host, where nothing is compiled
    logprobs, scores, lengths = map(np.asarray, parts) if known else parts
    flat = logprobs[..., :longest].reshape(-1, longest), scores.reshape(-1), lengths.reshape(-1)
    return Generated(sequences_of(prompt, decoded, count), *(map(jax.device_put, flat) if known else flat),
                     *(drafted or ()))  # fmt: skip


def _longest(decoded: Decoded, count: int) -> int:
    return count if isinstance(decoded.tokens, jax.core.Tracer) else int(decoded.lengths.max())
