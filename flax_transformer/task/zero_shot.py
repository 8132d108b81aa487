"""Classification of texts into classes that nobody has trained: by entailment, or by vectors of sentences.

Axes: B texts, A classes.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from flax_transformer.hub import Pretrained
from flax_transformer.listing import listed
from flax_transformer.task.checkpoint import tokenizer_of
from flax_transformer.task.classification import Label, label_names
from flax_transformer.task.sentence_embedding import embed_sentences, is_sentence_encoder
from flax_transformer.task.text_batches import encode_texts, padded_batches

TEMPLATE = "This example is {}."
"""What a class becomes before it is read."""
SCALE = 20.0
"""What cosines are multiplied by, as where sentence encoders are trained."""
ROWS = 32
"""Pairs of a text and a class that are read together."""


def choose_among(
    pretrained: Pretrained,
    texts: Sequence[str],
    among: Sequence[str],
    *,
    template: str = TEMPLATE,
    several: bool = False,
) -> list[list[Label]]:
    """Return which of some classes texts are of, which the checkpoint has not learned as classes.

    A classifier with a class called entailment says how much each text entails the template with each class in it (Yin
    et al. 2019, https://arxiv.org/abs/1909.00161), as the zero-shot-classification pipeline of transformers computes
    it. A sentence encoder compares the vectors of text and template by their cosine.

    Args:
      among: the classes.
      template: has {} where the class stands.
      several: whether a text may be of several classes: then each has a probability by itself, entailment beside
        contradiction.

    Returns:
      For each text all classes, the most probable first.

    Raises:
      ValueError: no two classes, or with `several` none, a template without {}, an empty text, or a checkpoint that can
        do neither.
    """
    if len(set(among)) < (1 if several else 2) or not all(each.strip() for each in among):
        raise ValueError(f"to choose takes at least two texts, got {listed(list(map(repr, among)))}")
    if template.count("{}") != 1:
        raise ValueError(f"a template must have one {{}} where the class stands, got {template!r:.80}")
    if not all(text.strip() for text in texts):
        raise ValueError("a text to classify must not be empty")
    hypotheses = [template.replace("{}", each) for each in among]
    if is_sentence_encoder(pretrained):
        if several:
            raise ValueError("that each class has a probability of its own takes a classifier with entailment")
        logits = SCALE * _cosines(pretrained, texts, hypotheses)
        found = _softmax(logits)
    else:
        entails, denies = entailment_of(pretrained)
        logits = _entailment(pretrained, texts, hypotheses)
        found = _softmax(logits[..., [denies, entails]])[..., 1] if several else _softmax(logits[..., entails])
    order = np.argsort(-found, axis=1, kind="stable")
    return [[Label(among[i], float(row[i])) for i in best] for row, best in zip(found, order, strict=True)]


def entailment_of(pretrained: Pretrained) -> tuple[int, int]:
    """Return the numbers of the classes entailment and contradiction.

    Raises:
      ValueError: a checkpoint that classifies no texts, or that has no such class.
    """
    name = pretrained.config["architectures"][0]
    able = "classification" in pretrained.architecture.uses and "text" in pretrained.architecture.inputs.reads
    names = label_names(pretrained, pretrained.config.labels) if able else ()
    entails = next((i for i, each in enumerate(names) if each.lower().startswith("entail")), None)
    if entails is None or len(names) < 2:
        raise ValueError(
            "to choose among texts takes a checkpoint that matches images and texts, a sentence encoder, or a "
            f"classifier with a class entailment, got a {name}"
            + (f" with the classes {listed(names)}" if names else "")
        )
    return entails, len(names) - 1 if entails == 0 else 0


def _cosines(pretrained: Pretrained, texts: Sequence[str], others: Sequence[str]) -> Float[np.ndarray, "B A"]:
    one, two = (embed_sentences(pretrained, each) for each in (texts, others))
    one, two = (each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (one, two))
    return one @ two.T


def _entailment(pretrained: Pretrained, texts: Sequence[str], others: Sequence[str]) -> Float[np.ndarray, "B A E"]:
    """Score every text with every hypothesis; texts are cut where both are too long."""
    tokenizer_of(pretrained, *texts)  # refuses the names of images
    pairs = [(text, other) for text in texts for other in others]
    rows = encode_texts(pretrained, *map(list, zip(*pairs, strict=True)), cut="only_first")
    logits = np.zeros((len(pairs), pretrained.config.labels), np.float32)
    for numbers, inputs in padded_batches(pretrained, rows):
        logits[numbers] = np.asarray(pretrained(**inputs).logits, np.float32)
    return logits.reshape(len(texts), len(others), -1)


def _softmax(logits: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)
