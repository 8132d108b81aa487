"""A trained encoder-decoder as a translator of sentences; hypotheses of one put in order by another.

Axes: B sentences or pairs, S source tokens, T target tokens, n hypotheses of a sentence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from flax_transformer.data.text import Tokenizer
from flax_transformer.decode import (
    Beam,
    Decoded,
    GNMTPenalty,
    Greedy,
    Parallel,
    PowerPenalty,
    beam_search,
    gather_rows,
    greedy,
)
from flax_transformer.decode.chain import Process
from flax_transformer.frozen import frozen
from flax_transformer.models.protocol import EncoderDecoder, ParallelWriter
from flax_transformer.nn import own_tables, quantize_cache
from flax_transformer.ops.eager_call import kept
from flax_transformer.ops.platform import platform
from flax_transformer.task.spec import longest_sides


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
    cache: Literal["int8", "float8_e4m3fn"] | None = None
    """What keys and values of sources and earlier tokens are rounded to; None: they are not."""

    def __post_init__(self):
        if self.beams < 1 or not 1 <= self.n_best <= self.beams:
            raise ValueError(f"n_best must be between 1 and beams, got n_best={self.n_best}, beams={self.beams}")
        if self.ratio < 0 or self.extra < 1 or self.batch < 1:
            raise ValueError(
                f"ratio must not be negative, extra and batch at least 1, got {self.ratio}, {self.extra}, {self.batch}"
            )

    def config(self, source_length: int, tokenizer: Tokenizer, room: int | None = None) -> Beam | Greedy | Parallel:
        """Make the decoding config for sources padded to `source_length` tokens, of a model with so much `room`."""
        most = math.ceil(self.ratio * source_length) + self.extra
        return self.within(most if room is None else min(most, room), tokenizer)

    def within(self, longest: int, tokenizer: Tokenizer) -> Beam | Greedy | Parallel:
        """Make the decoding config for targets of at most `longest` tokens."""
        ends = {"max_length": longest, "eos": tokenizer.eos, "pad": tokenizer.pad}
        if self.beams == 1:
            return Greedy(**ends)
        return Beam(**ends, beams=self.beams, length_penalty=self.divisor, n_best=self.n_best)

    def rules(self, tokenizer: Any, rows: int) -> dict[str, Any]:
        """Return what `decode_batch` must know besides `beginning`; nothing, unless a subclass has rules of its own."""
        return {}

    @property
    def divisor(self) -> PowerPenalty | GNMTPenalty:
        """What gives the divisor of a hypothesis' log-probability, by its length."""
        return {"power": PowerPenalty, "gnmt": GNMTPenalty}[self.penalty](alpha=self.length_penalty)


@frozen
class ParallelSearch(Search):
    """How a model that writes all tokens at once looks for the best translation: `beams` lengths are tried of each."""

    beams: int = 5
    """Lengths that are tried; 1 is the likeliest alone. A model by CTC tries none: 1."""
    iterations: int = 10
    """Passes over all tokens, in each of which those least sure are guessed again; 1 for a model by CTC."""

    def __post_init__(self):
        super().__post_init__()
        if self.cache is not None:
            raise ValueError(f"a model that writes all tokens at once has no cache to round, got cache={self.cache!r}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")

    def within(self, longest: int, tokenizer: Tokenizer) -> Parallel:
        """Make the decoding config for targets of at most `longest` tokens; the start token stands for masked ones."""
        return Parallel(
            max_length=longest, mask=tokenizer.bos, pad=tokenizer.pad, iterations=self.iterations, beams=self.beams,
            n_best=self.n_best, length_penalty=self.divisor, never=(tokenizer.pad, tokenizer.bos, tokenizer.eos),
        )  # fmt: skip


@dataclass(frozen=True)
class Hypothesis:
    """A translation: text, score (length-penalised log-probability), tokens and the log-probability of each."""

    text: str
    score: float
    tokens: tuple[str, ...]
    logprobs: tuple[float, ...]


def room_of(model: Any, tokenizer: Any) -> int | None:
    """Return how many tokens a model has positions to write, after those of a checkpoint's prompt; None: any number."""
    positions = longest_sides(getattr(model, "cfg", None))[1]
    return None if positions is None else positions - len(getattr(tokenizer, "prompt", ()))


def beginning(tokenizer: Any, rows: int) -> dict[str, Any]:
    """Return what `decode_batch` must know of a tokenizer: what targets begin with, and a checkpoint's rules."""
    if not hasattr(tokenizer, "prompt"):
        return {"bos": tokenizer.bos}
    return {"bos": tokenizer.prompt, "process": tokenizer.process(rows)}


@partial(jax.jit, static_argnames=("config", "bos", "rounds"))
def decode_batch(
    model: EncoderDecoder | ParallelWriter,
    source: Shaped[Array, "B S ..."],
    lengths: Int[Array, "B"] | None,
    *,
    config: Beam | Greedy | Parallel,
    bos: int | tuple[int, ...],
    process: Process | None = None,
    rounds: str | None = None,
) -> Decoded:
    """Translate a batch by any model with `encode`, `init_cache` and `step`, as `EncoderDecoder` says, or `write`.

    Args:
      source: token ids, or what else the encoder reads.
      lengths: of the source; None: all of it counts.
      config: a `Parallel` for a model that writes all tokens at once, as `ParallelWriter` says.
      bos: what the target begins with, a token or several.
      process: constraints on what is generated, as `decode.make_process` makes them.
      rounds: what keys and values in the cache are rounded to, as `nn.quantize_cache` has it.

    Raises:
      ValueError: a model that cannot write in that way.
    """
    model = own_tables(model)
    if isinstance(config, Parallel):
        if not isinstance(model, ParallelWriter):
            raise ValueError(
                "ParallelSearch is for models that write all tokens at once; others are searched by Search, got "
                f"{type(model).__name__}"
            )
        return model.write(source, lengths, config)
    memory, step = model.encode(source, lengths), partial(type(model).step, model)
    beams = config.beams if isinstance(config, Beam) else 1
    *before, last = (bos,) if isinstance(bos, int) else bos
    begun = {"begun": jnp.tile(jnp.array(before, jnp.int32), (len(memory), 1))} if before else {}
    cache = quantize_cache(model.init_cache(memory, lengths, config.stages[0], beams=beams, **begun), rounds)
    reorder, grow = getattr(type(cache), "reorder", gather_rows), getattr(type(cache), "grow", None)
    options = {"process": process, "grow": grow and partial(_grow, len(before))}
    prompt = jnp.full((source.shape[0],), last, jnp.int32)
    if isinstance(config, Beam):
        return beam_search(step, cache, prompt, config, reorder=reorder, **options)
    return greedy(step, cache, prompt, config, **options)


def _grow(before: int, cache: Any, length: int) -> Any:
    """Make room for what is generated, behind what it begins with."""
    return cache.grow(before + length)


def ready(model: EncoderDecoder | ParallelWriter) -> EncoderDecoder | ParallelWriter:
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

    model: EncoderDecoder | ParallelWriter
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
    def _decoder(self) -> EncoderDecoder | ParallelWriter:
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
        config = search.config(length, self.tokenizer, room_of(self.model, self.tokenizer))
        begun = {**beginning(self.tokenizer, rows), **search.rules(self.tokenizer, rows)}
        found = decode_batch(self._decoder, source, lengths, config=config, rounds=search.cache, **begun)
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


@dataclass(frozen=True, eq=False)
class Rescored:
    """A translator whose hypotheses, as many as it has beams, are put in order by what a judge thinks of their texts.

    Each text is read in one pass by the judge, which writes a token at a time and may have another vocabulary
    (Ghazvininejad et al. 2019 choose among lengths by the model itself; Gu et al. 2018,
    https://arxiv.org/abs/1711.02281, section 4.3, by an autoregressive teacher). Scores are the judge's
    log-probabilities, the end of the text included, divided as the search says.
    """

    translator: Translator
    judge: Translator

    def __post_init__(self):
        if isinstance(self.judge.model, ParallelWriter):
            raise ValueError(
                "a rescorer must write one token at a time, as only then a text has one probability, got "
                f"{type(self.judge.model).__name__}"
            )

    def __call__(self, texts: Sequence[str], search: Search | None = None) -> list[list[Hypothesis]]:
        """Translate sentences; each gets `n_best` hypotheses, the best first."""
        search = Search() if search is None else search
        found = self.translator(texts, replace(search, n_best=search.beams))
        pairs = [(text, each.text) for text, several in zip(texts, found, strict=True) for each in several]
        scores = iter(score_pairs(self.judge, pairs, search))
        ranked = []
        for several in found:
            judged = [replace(each, score=next(scores)) for each in several]
            ranked.append(sorted(judged, key=lambda each: -each.score)[: search.n_best])
        return ranked


def score_pairs(judge: Translator, pairs: Sequence[tuple[str, str]], search: Search) -> list[float]:
    """Return the log-probability of each target by its source, divided by its length as the search says.

    Targets that are as they would be written are scored as the judge's own beam search does; an empty source or
    target has the score 0, as an empty sentence's translation has.
    """
    tokenizer = judge.tokenizer
    sides = [[[*ids, tokenizer.eos] for ids in tokenizer.encode(list(side))] for side in zip(*pairs, strict=True)]
    order = [at for at in range(len(pairs)) if min(len(side[at]) for side in sides) > 1]
    order.sort(key=lambda at: [-len(side[at]) for side in sides])
    scores = [0.0] * len(pairs)
    for start in range(0, len(order), search.batch):
        rows = order[start : start + search.batch]
        (source, lengths), (target, counts) = (
            _laid_out([side[at] for at in rows], search.batch, tokenizer.pad) for side in sides
        )
        sums = np.asarray(_score(judge.model, source, lengths, target, counts, bos=tokenizer.bos))
        for row, at in enumerate(rows):
            scores[at] = float(sums[row]) / search.divisor(int(counts[row]))
    return scores


def _laid_out(rows: list[list[int]], count: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Lay rows out in one of few widths; those that fill the batch up repeat the first."""
    rows = [*rows, *rows[:1] * (count - len(rows))]
    out = np.full((count, padded_length(max(map(len, rows)))), pad, np.int32)
    for at, ids in enumerate(rows):
        out[at, : len(ids)] = ids
    return out, np.array([len(ids) for ids in rows], np.int32)


@partial(jax.jit, static_argnames="bos")
def _score(
    model: object,
    source: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    target: Int[Array, "B T"],
    counts: Int[Array, "B"],
    *,
    bos: int,
) -> Float[Array, "B"]:
    read = jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=bos)
    logits = model.output(model.hidden_states(source, read, lengths=lengths)).logits()
    each = jnp.take_along_axis(jax.nn.log_softmax(logits), target[..., None], axis=-1)[..., 0]
    return jnp.sum(jnp.where(jnp.arange(target.shape[1]) < counts[:, None], each, 0.0), axis=-1)
