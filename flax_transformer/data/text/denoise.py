"""Texts to restore: denoising (Lewis et al. 2020, https://arxiv.org/abs/1910.13461, section 2.2) and span corruption
(Raffel et al. 2020, https://arxiv.org/abs/1910.10683, section 3.1.4).

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


@frozen
class SpanCorruption:
    """Replace random spans of ``tokens`` by sentinels; ``source`` has the sentinels, ``target`` what they stand for.

    Of n ≥ 2 tokens, m = round(density · n) go, in k = round(m / mean) spans (each at least 1, and at least one token
    stays before each span). The source is then n − m + k + 1 long and the target m + k + 1: for a given n the shapes
    never vary. Both end with ``eos``. Sentinels descend from ``sentinel``. Feed it with
    ``Blocks(..., least=2)``, or for rows of one length with ``TokenWindows`` of a stride as long as themselves.

    Raises:
        ValueError: fewer than 2 tokens, a token that is a sentinel, or more spans than sentinels.
    """

    sentinel: int
    """The id of the first sentinel, the top of the vocabulary: 32099 for T5."""
    eos: int = 1
    sentinels: int = 100
    density: float = 0.15
    mean: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.density < 1 or self.mean < 1:
            raise ValueError(f"density must be in (0, 1) and mean at least 1, got {self.density}, {self.mean}")
        if not 1 <= self.sentinels <= self.sentinel + 1:
            raise ValueError(f"sentinels must be in 1..{self.sentinel + 1}, got {self.sentinels}")

    def counts(self, n: int) -> tuple[int, int]:
        """Count the tokens that go, and the spans they go in, of n tokens."""
        if n < 2:
            raise ValueError(f"span corruption needs at least 2 tokens, got {n}")
        gone = min(max(round(n * self.density), 1), n - 1)
        return gone, min(max(round(gone / self.mean), 1), gone, n - gone)

    def lengths(self, n: int) -> tuple[int, int]:
        """Count the tokens of source and target of n tokens, end marks included.

        >>> SpanCorruption(sentinel=32099).lengths(568)
        (512, 114)
        """
        gone, spans = self.counts(n)
        return n - gone + spans + 1, gone + spans + 1

    def room(self, source_length: int) -> int:
        """Find the largest n whose source has at most ``source_length`` tokens.

        >>> SpanCorruption(sentinel=32099).room(512)
        568
        """
        if source_length < 3:
            raise ValueError(f"a source needs a token, a sentinel and an end mark, got length {source_length}")
        n = source_length - 1
        while self.lengths(n + 1)[0] <= source_length:
            n += 1
        return n

    def __call__(self, example: Example, rng: np.random.Generator) -> Example:
        """Corrupt one example."""
        tokens = np.asarray(example["tokens"], np.int32)
        gone, spans = self.counts(len(tokens))
        if spans > self.sentinels:
            raise ValueError(f"each span needs its sentinel, got {spans} spans, {self.sentinels} sentinels")
        if self._marks(tokens).any():
            raise ValueError(f"tokens must not be sentinels, got {int(tokens.max())}, first sentinel {self.sentinel}")
        kept = _split(len(tokens) - gone, spans, rng)
        lost = _split(gone, spans, rng)
        pieces = np.split(tokens, np.cumsum(np.stack([kept, lost], axis=1).ravel())[:-1])
        marks = [np.array([self.sentinel - span], np.int32) for span in range(spans)]
        end = np.array([self.eos], np.int32)
        source = [part for pair in zip(pieces[::2], marks, strict=True) for part in pair]
        target = [part for pair in zip(marks, pieces[1::2], strict=True) for part in pair]
        return {"source": np.concatenate([*source, end]), "target": np.concatenate([*target, end])}

    def restore(self, source: Tokens, target: Tokens) -> Tokens:
        """Put the spans of ``target`` back where ``source`` has their sentinels.

        Raises:
            ValueError: not both end with ``eos``, or their sentinels differ.
        """
        for side in (source, target):
            if not len(side) or side[-1] != self.eos:
                raise ValueError(f"source and target must end with eos={self.eos}, got {side[-1:]}")
        source, target = source[:-1], target[:-1]
        gaps, begins = np.flatnonzero(self._marks(source)), np.flatnonzero(self._marks(target))
        if not np.array_equal(source[gaps], target[begins]) or (len(target) and not self._marks(target[:1]).all()):
            raise ValueError(
                f"source and target must have the same sentinels, got {source[gaps].tolist()}, "
                f"{target[begins].tolist()}"
            )
        kept = [piece[position > 0 :] for position, piece in enumerate(np.split(source, gaps))]
        lost = [piece[1:] for piece in np.split(target, begins)[1:]]
        parts = [part for pair in zip(kept, [*lost, source[:0]], strict=True) for part in pair]
        return np.concatenate(parts).astype(np.int32)

    def _marks(self, tokens: Tokens) -> np.ndarray:
        return (tokens <= self.sentinel) & (tokens > self.sentinel - self.sentinels)


def _split(total: int, parts: int, rng: np.random.Generator) -> Int[np.ndarray, " parts"]:
    """Draw ``parts`` positive numbers of the given sum, every choice alike."""
    cuts = 1 + np.sort(rng.choice(total - 1, parts - 1, replace=False)) if parts > 1 else np.empty(0, np.int64)
    return np.diff(np.concatenate([[0], cuts, [total]])).astype(np.int64)
