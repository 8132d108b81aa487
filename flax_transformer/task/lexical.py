"""Search by words: BM25 (Robertson & Zaragoza 2009), as `bm25s` computes it."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

_WORD = re.compile(r"\w+")
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "THAI", "LAO", "KHMER", "MYANMAR")
"""Scripts whose words are not parted by spaces, as Unicode names their letters (Hangul's particles are joined)."""


def terms(text: str) -> list[str]:
    """Return the terms of a text: its words in lower case; of scripts without spaces pairs of neighbouring letters.

    >>> terms("The Cat, 東京都")
    ['the', 'cat', '東京', '京都']
    """
    normal = unicodedata.normalize("NFKC", text).lower()
    return [term for word in _WORD.findall(normal) for term in _parts(word)]


def _parts(word: str) -> Iterator[str]:
    """Part a run of letters where the script changes, and runs without spaces into pairs."""
    runs: list[tuple[bool, str]] = []
    for letter in word:
        unspaced = ord(letter) > 0x0E00 and unicodedata.name(letter, "").startswith(_UNSPACED)
        if runs and runs[-1][0] == unspaced:
            runs[-1] = (unspaced, runs[-1][1] + letter)
        else:
            runs.append((unspaced, letter))
    for unspaced, run in runs:
        yield from (run[i : i + 2] for i in range(max(len(run) - 1, 1))) if unspaced else (run,)


class Lexical:
    """Texts to be searched by their words."""

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75):
        """Count the terms of texts.

        Args:
          k1: how soon a term that is repeated counts no more.
          b: how much longer texts are held back, from 0 to 1.

        Raises:
          ImportError: without `bm25s`, which the extra `documents` installs.
          ValueError: no texts, or none that has a term.
        """
        try:
            import bm25s
        except ImportError as error:
            raise ImportError("search by words takes bm25s: pip install 'flax-transformer[documents]'") from error
        if k1 < 0 or not 0 <= b <= 1:
            raise ValueError(f"k1 must not be negative and b must be in [0, 1], got k1={k1}, b={b}")
        rows = [terms(text) for text in texts]
        if not any(rows):
            raise ValueError(f"texts to search by words must have words, got {len(rows):,} texts without one")
        self._engine = bm25s.BM25(k1=k1, b=b, method="lucene")
        self._engine.index(rows, show_progress=False)
        self._known = self._engine.vocab_dict

    def scores(self, query: str) -> Float[np.ndarray, "N"]:
        """Score every text; 0 where it has no term of the query."""
        known = [term for term in terms(query) if term in self._known]
        count = self._engine.scores["num_docs"]
        return np.asarray(self._engine.get_scores(known), np.float32) if known else np.zeros(count, np.float32)
