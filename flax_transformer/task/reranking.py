"""Ranking passages anew by a cross-encoder, a classifier that reads query and passage together (Nogueira & Cho 2019,
https://arxiv.org/abs/1901.04085), or by late interaction.

Axes: N passages, E classes.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from flax_transformer.hub import Pretrained
from flax_transformer.task.checkpoint import read_length, require_use, tokenizer_of
from flax_transformer.task.late_interaction import token_relevance
from flax_transformer.task.text_batches import encode_texts, padded_batches
from flax_transformer.task.text_index import Found


def relevance(pretrained: Pretrained, query: str, texts: Sequence[str]) -> Float[np.ndarray, "N"]:
    """Score how well each text answers a query: the logit of a classifier with one output, the log-odds of two.

    The second of two classes is "relevant". A checkpoint of late interaction compares query and text token by token
    (`late_interaction.token_relevance`). A text too long for the positions is cut.

    Raises:
      ValueError: a checkpoint that does not classify, one of more than two classes, an empty query or text, or a query
        that leaves no room for a text.
    """
    if "late-interaction" in pretrained.architecture.uses:
        return token_relevance(pretrained, query, texts)
    require_use(pretrained, "classification")
    tokenizer = tokenizer_of(pretrained, query, *texts)
    if not query.strip() or not all(text.strip() for text in texts):
        raise ValueError("a query and texts must not be empty")
    room = read_length(pretrained)
    used = len(tokenizer.encode([query])[0]) + tokenizer.engine.num_special_tokens_to_add(True)
    if room is not None and used >= room:
        raise ValueError(f"a query must leave room for a text, got {used} tokens of {room}, special ones included")
    rows = encode_texts(pretrained, [query] * len(texts), texts, cut="only_second")
    scores = np.zeros(len(texts), np.float32)
    for numbers, inputs in padded_batches(pretrained, rows):
        scores[numbers] = _scores(pretrained, np.asarray(pretrained(**inputs).logits, np.float32))
    return scores


def _scores(pretrained: Pretrained, logits: Float[np.ndarray, "N E"]) -> Float[np.ndarray, "N"]:
    if (classes := logits.shape[-1]) > 2:
        name = pretrained.config["architectures"][0]
        raise ValueError(f"to rank takes a classifier of one output or two classes, a {name} has {classes}")
    return logits[:, 0] if classes == 1 else logits[:, 1] - logits[:, 0]


def rerank(pretrained: Pretrained, query: str, found: Sequence[Found]) -> list[Found]:
    """Sort what was found by `relevance`, which becomes its score; equal ones stay in their order."""
    if not found:
        return []
    scores = relevance(pretrained, query, [each.passage.text for each in found])
    order = np.argsort(-scores, kind="stable")
    return [replace(found[number], score=float(scores[number])) for number in order]
