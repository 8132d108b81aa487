"""How good captions are, by what several people said of the same images: BLEU (Papineni et al. 2002) and CIDEr-D
(Vedantam et al. 2015, https://arxiv.org/abs/1411.5726).

Axes: B images.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

ORDERS = 4
"""Words of the longest n-grams."""


SIGMA = 6.0
"""How fast CIDEr-D falls with the difference of lengths, in words."""


WORD = re.compile(r"[^\W_]+(?:['’.-][^\W_]+)*")


Vector = dict[tuple[str, ...], float]


def words(text: str) -> list[str]:
    """Split a caption into words as captions are compared: small letters, without punctuation.

    >>> words("A man's dog, well-fed .")
    ['a', "man's", 'dog', 'well-fed']
    """
    return WORD.findall(text.lower())


def caption_scores(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """Score captions of images by all that is said of each.

    Returns:
      `bleu1` to `bleu4`, of the corpus and without smoothing; `cider`, which is 10 at the most; `exact`, the share of
      captions whose words are those of one that somebody said. All but `cider` in percent.

    Raises:
      ValueError: no captions, or not as many as images, or an image of which nothing is said.
    """
    if not hypotheses or len(hypotheses) != len(references) or not all(references):
        raise ValueError(
            f"captions are scored by one or more references each, got {len(hypotheses)} captions, references of "
            f"{sum(map(bool, references))} images"
        )
    said = [words(text) for text in hypotheses]
    known = [[words(text) for text in each] for each in references]
    exact = sum(one in every for one, every in zip(said, known, strict=True)) / len(said)
    return {**_bleu(said, known), "cider": cider(said, known), "exact": 100 * exact}


def _bleu(said: list[list[str]], known: list[list[list[str]]]) -> dict[str, float]:
    from sacrebleu.metrics import BLEU

    most = max(map(len, known))
    streams = [[" ".join(each[i]) if i < len(each) else None for each in known] for i in range(most)]
    found = {}
    for n in range(1, ORDERS + 1):
        bleu = BLEU(max_ngram_order=n, tokenize="none", smooth_method="none", force=True)
        score = bleu.corpus_score([" ".join(each) for each in said], streams).score
        found[f"bleu{n}"] = min(score, 100.0)  # what rounding leaves above it
    return found


def cider(said: Sequence[Sequence[str]], known: Sequence[Sequence[Sequence[str]]]) -> float:
    """Return the mean over images of CIDEr-D: how alike n-grams of words are, each the more the fewer images have it.

    Args:
      said: the words of each image's caption.
      known: those of its references.
    """
    documents: Counter[tuple[str, ...]] = Counter()
    for each in known:
        documents.update({gram for text in each for gram in _grams(text)})
    scores = []
    for text, texts in zip(said, known, strict=True):
        one = _weighed(text, documents, len(known))
        others = [_weighed(other, documents, len(known)) for other in texts]
        falls = [math.exp(-((_length(text) - _length(other)) ** 2) / (2 * SIGMA**2)) for other in texts]
        similarities = [fall * sum(map(_cosine, one, other)) for fall, other in zip(falls, others, strict=True)]
        scores.append(10 * sum(similarities) / len(similarities) / ORDERS)
    return float(np.mean(scores))


def _grams(text: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for n in range(1, ORDERS + 1):
        yield from zip(*(text[i:] for i in range(n)), strict=False)


def _length(text: Sequence[str]) -> int:
    """Count pairs of words, which is what the reference implementation calls a length."""
    return max(len(text) - 1, 0)


def _weighed(text: Sequence[str], documents: Counter, count: int) -> list[Vector]:
    """Weigh the n-grams of a text by how few images have them: a vector for each n."""
    found: list[Vector] = [{} for _ in range(ORDERS)]
    for gram, times in Counter(_grams(text)).items():
        found[len(gram) - 1][gram] = times * (math.log(count) - math.log(max(documents[gram], 1)))
    return found


def _cosine(one: Vector, other: Vector) -> float:
    """Return how alike a caption's weights are to a reference's, which they must not exceed."""
    both = sum(min(weight, other.get(gram, 0.0)) * other.get(gram, 0.0) for gram, weight in one.items())
    lengths = [math.sqrt(sum(weight**2 for weight in each.values())) for each in (one, other)]
    return both / math.prod(lengths) if all(lengths) else 0.0
