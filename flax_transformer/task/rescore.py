"""Hypotheses of one translator put in order by another: an autoregressive one says how likely each text is.

Axes: B pairs, T target positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.models.protocol import ParallelWriter
from flax_transformer.task.translator import Hypothesis, Search, Translator, padded_length


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
