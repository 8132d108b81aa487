"""Return a vector for each text.

Axes: B texts, T tokens, D width.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

from flax_transformer.hub import Pretrained
from flax_transformer.task.use.match import embed_texts
from flax_transformer.task.use.require import positions_of, tokenizer_of

ROWS = 32
"""Texts that are read together."""

Pooling = Literal["mean", "first", "last"]


def embed(
    pretrained: Pretrained, texts: Sequence[str], pooling: Pooling | None = None, *, normalise: bool = False
) -> Float[np.ndarray, "B D"]:
    """Return a vector for each text: its last hidden states, pooled over tokens; of an encoder-decoder the encoder's.

    A text longer than the model has positions is cut.

    Args:
      pooling: the mean, the state of the first token, or of the last, special tokens included; the mean by default. A
        model that matches images and texts has vectors of its own, of length 1, and no pooling.
      normalise: whether to divide each vector by its length.

    Raises:
      ValueError: a checkpoint that reads no text or has no tokenizer, an empty text, or pooling where there is none.
    """
    tokenizer = tokenizer_of(pretrained, *texts)
    if not all(text.strip() for text in texts):
        raise ValueError("a text to embed must not be empty")
    if "match" in pretrained.architecture.uses:
        if pooling is not None:
            name = pretrained.config["architectures"][0]
            raise ValueError(f"a {name} has vectors of texts of its own, nothing is pooled; got pooling={pooling}")
        return np.concatenate([embed_texts(pretrained, texts[i : i + ROWS]) for i in range(0, len(texts), ROWS)])
    room, found = positions_of(pretrained.model.cfg) or tokenizer.model_max_length, []
    rows = ROWS if tokenizer.pad is not None else 1
    for i in range(0, len(texts), rows):
        inputs = tokenizer(list(texts[i : i + rows]), max_length=room, truncate=room is not None)
        states = _states(pretrained, inputs)
        found.append(_pooled(states, np.asarray(inputs["attention_mask"]) > 0, pooling or "mean"))
    vectors = np.concatenate(found)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) if normalise else vectors


def _states(pretrained: Pretrained, inputs: Any) -> Float[np.ndarray, "B T D"]:
    """Compute the last hidden states of what is read."""
    if "decoder_input_ids" in pretrained.architecture.inputs.takes:
        start = np.full((len(inputs["input_ids"]), 1), pretrained.config.integer("decoder_start_token_id", 0))
        output = pretrained(**inputs, decoder_input_ids=start)
        return np.asarray(output.encoder_last_hidden_state.astype(np.float32))
    output = pretrained(**inputs, output_hidden_states=True)
    if output.last_hidden_state is None and output.hidden_states is None:
        raise ValueError(f"a {pretrained.config['architectures'][0]} gives no hidden states of a text to pool")
    states = output.hidden_states[-1] if output.last_hidden_state is None else output.last_hidden_state
    return np.asarray(states.astype(np.float32))


def _pooled(
    states: Float[np.ndarray, "B T D"], real: Bool[np.ndarray, "B T"], pooling: Pooling
) -> Float[np.ndarray, "B D"]:
    if pooling == "mean":
        return (states * real[..., None]).sum(1) / real.sum(1)[:, None]
    at = real.argmax(1) if pooling == "first" else real.shape[1] - 1 - real[:, ::-1].argmax(1)
    return states[np.arange(len(states)), at]
