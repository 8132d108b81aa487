"""Denoising (Lewis et al. 2020, https://arxiv.org/abs/1910.13461, section 2.2): restore a damaged text.

A noise is ``noise(tokens, rng) -> tokens`` on tokens without marks; noises compose in a tuple, in its order.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Int

from flax_transformer.data.examples import Example
from flax_transformer.frozen import frozen

Tokens = Int[np.ndarray, "_"]
Noise = Callable[[Tokens, np.random.Generator], Tokens]


@frozen
class Denoise:
    """Damage ``tokens`` by every noise in turn: ``source`` is damaged, ``target`` whole, both with their marks."""

    noises: tuple[Noise, ...]
    begin: tuple[int, ...] = (0,)
    end: tuple[int, ...] = (2,)

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Make a pair of one document."""
        whole = np.asarray(example["tokens"], np.int32)
        damaged = whole
        for noise in self.noises:
            damaged = noise(damaged, rng)
        return {"source": self._mark(damaged), "target": self._mark(whole)}

    def _mark(self, tokens: Tokens) -> Tokens:
        return np.concatenate([self.begin, tokens, self.end]).astype(np.int32)


@frozen
class Infill:
    """Replace spans of Poisson length by one mask each; a span of length 0 puts a mask between two tokens.

    The spans hold round(share · n) of n tokens together (the last drawn is cut to fit) and do not touch, as far as
    there are tokens left to part them.
    """

    mask: int
    share: float = 0.3
    mean: float = 3.0

    def __post_init__(self) -> None:
        _check_share(self.share)
        if self.mean <= 0:
            raise ValueError(f"the mean length of a span must be positive, got {self.mean}")

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Damage one document."""
        gone = round(self.share * len(tokens))
        spans = self._spans(gone, rng)
        gaps = len(tokens) - gone + 1  # before, between and behind the tokens that stay
        places = np.sort(rng.choice(gaps, len(spans), replace=len(spans) > gaps))
        out, read = [], 0
        for begin, span in zip(places + np.cumsum(spans) - spans, spans, strict=True):
            out += [tokens[read:begin], np.array([self.mask], np.int32)]
            read = begin + span
        return np.concatenate([*out, tokens[read:]]).astype(np.int32)

    def _spans(self, total: int, rng: np.random.Generator) -> Int[np.ndarray, " k"]:
        spans: list[int] = []
        while total > 0:
            spans.append(min(int(rng.poisson(self.mean)), total))
            total -= spans[-1]
        return rng.permutation(np.array(spans, np.int64))


@frozen
class MaskTokens:
    """Replace round(share · n) of n tokens by the mask."""

    mask: int
    share: float = 0.15

    def __post_init__(self) -> None:
        _check_share(self.share)

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Damage one document."""
        masked = tokens.copy()
        masked[_choose(len(tokens), self.share, rng)] = self.mask
        return masked


@frozen
class DeleteTokens:
    """Delete round(share · n) of n tokens; where they were is for the model to find out."""

    share: float = 0.15

    def __post_init__(self) -> None:
        _check_share(self.share)

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Damage one document."""
        return np.delete(tokens, _choose(len(tokens), self.share, rng))


@frozen
class PermuteSentences:
    """Put the sentences into random order; a sentence reaches to a token of ``ends``, such as the full stop."""

    ends: tuple[int, ...]

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Damage one document."""
        sentences = np.split(tokens, np.flatnonzero(np.isin(tokens[:-1], self.ends)) + 1)
        return np.concatenate([sentences[index] for index in rng.permutation(len(sentences))])


@frozen
class Rotate:
    """Begin at a random token and put what was before it at the end."""

    def __call__(self, tokens: Tokens, rng: np.random.Generator) -> Tokens:
        """Damage one document."""
        return np.roll(tokens, -int(rng.integers(max(len(tokens), 1))))


def _choose(n: int, share: float, rng: np.random.Generator) -> Int[np.ndarray, " m"]:
    return rng.choice(n, round(share * n), replace=False)


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share must be in (0, 1), got {share}")
