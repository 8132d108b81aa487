"""Vectors of texts by a sentence encoder: prompts, texts cut to its length, batches of few shapes.

Axes: B texts, T positions, E width of vectors.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from flax_transformer.hub import Pretrained
from flax_transformer.hub.sentence_folder import lengths_of, prompts_of
from flax_transformer.listing import listed
from flax_transformer.task.checkpoint import tokenizer_of
from flax_transformer.task.text_batches import encode_texts, padded_batches

QUERY, PASSAGE = ("query",), ("document", "passage", "corpus")
"""What sentence encoders call the prompts before what is asked, and before what is searched, the usual name first."""
CHUNK = 16_384
"""Texts that are tokenised, and sorted by their lengths, at a time."""


def is_sentence_encoder(pretrained: Pretrained) -> bool:
    """Return whether a checkpoint gives vectors of texts by itself."""
    return "sentence-similarity" in pretrained.architecture.uses


def resolve_prompt(pretrained: Pretrained, prompt: str | None) -> str:
    """Return the text that is put before others: the checkpoint's of that name, its default, or the text that is given.

    Raises:
      ValueError: a word that is no name of a prompt, of a checkpoint that has some.
    """
    prompts, default = prompts_of(pretrained.config)
    if prompt is None:
        return "" if default is None else prompts[default]
    if prompt in prompts:
        return prompts[prompt]
    if any(prompts.values()) and re.fullmatch(r"\w+", prompt):
        raise ValueError(
            f"a prompt must be the name of one, {listed(prompts)}, or a text with a space or a colon at its end, got "
            f"{prompt!r}"
        )
    return prompt


def prompt_of(pretrained: Pretrained, names: Sequence[str]) -> str | None:
    """Return the first of some names that a checkpoint has a prompt of; None where it has none of them."""
    return next((name for name in names if name in prompts_of(pretrained.config)[0]), None)


def embed_sentences(
    pretrained: Pretrained, texts: Sequence[str], prompt: str | None = None
) -> Float[np.ndarray, "B E"]:
    """Return the vector of each text, as `SentenceTransformer.encode` of sentence-transformers gives it.

    Texts longer than the checkpoint's max_seq_length are cut. They are sorted by their lengths, so that there is little
    padding, and put into batches of few shapes, each compiled once.

    Args:
      prompt: put before each text: the name of one of the checkpoint's prompts, or a text; its default if None.

    Raises:
      ValueError: as `resolve_prompt`; a checkpoint without a tokenizer.
    """
    before, lengths = resolve_prompt(pretrained, prompt), lengths_of(pretrained.config)
    tokenizer_of(pretrained, *texts)  # refuses the names of images
    texts = [text.lower() if lengths.lower else text for text in (before + text for text in texts)]
    given = {}
    if before and not pretrained.model.cfg.head.include_prompt:
        given["prompt_length"] = np.int32(_count_prompt(pretrained, before.lower() if lengths.lower else before))
    vectors = np.empty((len(texts), pretrained.model.cfg.head.width), np.float32)
    for start in range(0, len(texts), CHUNK):
        rows = encode_texts(pretrained, texts[start : start + CHUNK])
        for numbers, inputs in padded_batches(pretrained, rows):
            pretrained.check_ids("input_ids", inputs["input_ids"])
            vectors[start + numbers] = np.asarray(_vectors(pretrained, {**inputs, **given}))
    return vectors


@jax.jit
def _vectors(pretrained: Pretrained, inputs: Mapping[str, Any]) -> jax.Array:
    return pretrained(**inputs).sentence_embedding.astype(np.float32)


def _count_prompt(pretrained: Pretrained, prompt: str) -> int:
    """Count the tokens of a prompt with the marks before it, but not the mark that ends a text."""
    (row,) = encode_texts(pretrained, [prompt])
    return len(row.ids) - bool(row.special_tokens_mask[-1])
