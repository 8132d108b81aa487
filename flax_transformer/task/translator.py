"""A trained encoder-decoder as a translator of sentences.

Axes: B sentences, S source tokens, n hypotheses of a sentence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Shaped

from flax_transformer.data.text import Tokenizer
from flax_transformer.decode import Beam, Decoded, GNMTPenalty, Greedy, PowerPenalty, beam_search, gather_rows, greedy
from flax_transformer.frozen import frozen
from flax_transformer.models.protocol import EncoderDecoder
from flax_transformer.nn import own_tables
from flax_transformer.ops.eager import kept
from flax_transformer.ops.platform import platform


@frozen
class Search:
    """How to look for the best translation."""

    beams: int = 4
    """Hypotheses kept at each step; 1 is greedy."""
    length_penalty: float = 1.0
    """Exponent of the length that a hypothesis' log-probability is divided by."""
    penalty: Literal["power", "gnmt"] = "power"
    """Divide by length^α, or by ((5 + length) / 6)^α (Wu et al. 2016)."""
    n_best: int = 1
    """Hypotheses returned a sentence."""
    ratio: float = 2.0
    """Tokens a translation may have for each of the source, beside `extra`."""
    extra: int = 10
    batch: int = 64
    """Sentences decoded together."""

    def __post_init__(self):
        if self.beams < 1 or not 1 <= self.n_best <= self.beams:
            raise ValueError(f"n_best must be between 1 and beams, got n_best={self.n_best}, beams={self.beams}")
        if self.ratio < 0 or self.extra < 1 or self.batch < 1:
            raise ValueError(
                f"ratio must not be negative, extra and batch at least 1, got {self.ratio}, {self.extra}, {self.batch}"
            )

    def config(self, source_length: int, tokenizer: Tokenizer) -> Beam | Greedy:
        """Make the decoding config for sources padded to `source_length` tokens."""
        return self.within(math.ceil(self.ratio * source_length) + self.extra, tokenizer)

    def within(self, longest: int, tokenizer: Tokenizer) -> Beam | Greedy:
        """Make the decoding config for targets of at most `longest` tokens."""
        ends = {"max_length": longest, "eos": tokenizer.eos, "pad": tokenizer.pad}
        if self.beams == 1:
            return Greedy(**ends)
        penalty = {"power": PowerPenalty, "gnmt": GNMTPenalty}[self.penalty](alpha=self.length_penalty)
        return Beam(**ends, beams=self.beams, length_penalty=penalty, n_best=self.n_best)


@dataclass(frozen=True)
class Hypothesis:
    """A translation: text, score (length-penalised log-probability), tokens and the log-probability of each."""

    text: str
    score: float
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


@partial(jax.jit, static_argnames=("config", "bos"))
def decode_batch(
    model: EncoderDecoder,
    source: Shaped[Array, "B S ..."],
    lengths: Int[Array, "B"] | None,
    *,
    config: Beam | Greedy,
    bos: int,
) -> Decoded:
    """Translate a batch by any model with `encode`, `init_cache` and `step`, as `EncoderDecoder` says.

    Args:
      source: token ids, or what else the encoder reads.
      lengths: of the source; None: all of it counts.
      bos: what the target begins with.
    """
    model = own_tables(model)
    memory, step = model.encode(source, lengths), partial(type(model).step, model)
    beams = config.beams if isinstance(config, Beam) else 1
    cache = model.init_cache(memory, lengths, config.stages[0], beams=beams)
    reorder, grow = getattr(type(cache), "reorder", gather_rows), getattr(type(cache), "grow", None)
    prompt = jnp.full((source.shape[0],), bos, jnp.int32)
    if isinstance(config, Beam):
        return beam_search(step, cache, prompt, config, reorder=reorder, grow=grow)
    return greedy(step, cache, prompt, config, grow=grow)


def ready(model: EncoderDecoder) -> EncoderDecoder:
    """Lay a model out as the decoding loops want it here: on a CPU by its `for_decoding`, if any, else as it is."""
    lay_out = getattr(type(model), "for_decoding", None)
    return model if lay_out is None or platform() != "cpu" else jax.jit(lay_out)(model)


def padded_length(length: int) -> int:
    """Round up to one of few lengths, each compiled once: multiples of 8, above 32 of a quarter of a power of 2."""
    step = max(8, 2 ** (math.ceil(math.log2(max(length, 1))) - 2))
    return math.ceil(length / step) * step


@dataclass(frozen=True, eq=False)
class Translator:
    """A model with its tokenizer."""

    model: EncoderDecoder
    tokenizer: Tokenizer

    def __call__(self, texts: Sequence[str], search: Search | None = None) -> list[list[Hypothesis]]:
        """Translate sentences; each gets `n_best` hypotheses, the best first.

        Sentences of like length are decoded together. An empty sentence gets an empty translation.
        """
        search = Search() if search is None else search
        encoded = [[*ids, self.tokenizer.eos] for ids in self.tokenizer.encode(list(texts))]
        results: list[list[Hypothesis]] = [[Hypothesis("", 0.0, (), ())] * search.n_best for _ in texts]
        order = sorted((i for i, ids in enumerate(encoded) if len(ids) > 1), key=lambda i: -len(encoded[i]))
        for start in range(0, len(order), search.batch):
            rows = order[start : start + search.batch]
            for row, hypotheses in zip(rows, self._batch([encoded[i] for i in rows], search), strict=True):
                results[row] = hypotheses
        return results

    @kept
    def _decoder(self) -> EncoderDecoder:
        return ready(self.model)

    def _batch(self, encoded: list[list[int]], search: Search) -> list[list[Hypothesis]]:
        rows = search.batch if len(encoded) > 1 else 1
        length = padded_length(max(map(len, encoded)))
        source = np.full((rows, length), self.tokenizer.pad, np.int32)
        lengths = np.zeros(rows, np.int32)
        for i, ids in enumerate(encoded):
            source[i, : len(ids)], lengths[i] = ids, len(ids)
        # Rows that only fill the batch repeat the first sentence: they end when it does.
        source[len(encoded) :], lengths[len(encoded) :] = source[0], lengths[0]
        found = decode_batch(
            self._decoder, source, lengths, config=search.config(length, self.tokenizer), bos=self.tokenizer.bos
        )
        found = jax.device_get(found)
        return [self._hypotheses(found, row) for row in range(len(encoded))]

    def _hypotheses(self, found: Decoded, row: int) -> list[Hypothesis]:
        texts = self.tokenizer.decode(found.tokens[row])
        hypotheses = []
        for n, text in enumerate(texts):
            length = int(found.lengths[row, n])
            ids = found.tokens[row, n, :length].tolist()
            logprobs = tuple(float(value) for value in found.logprobs[row, n, :length])
            tokens = tuple(self.tokenizer.tokens(ids))
            hypotheses.append(Hypothesis(text, float(found.scores[row, n]), tokens, logprobs))
        return hypotheses
