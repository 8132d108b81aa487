"""Beam search as one jitted loop, in exact agreement with Hugging Face `generate`, ties and early stopping included.

Axes: B batch, W `beams`, V vocabulary, M `max_length`, n `n_best`. The step runs on B·W rows; row b·W + w is
beam w of batch row b. Histories are not copied along with the beams: each step writes its W tokens and which beam each
of them continues, and the winners are read off backwards at the end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.decode.chain import Grow, Process, Step, ends_with, is_end, refuse_nan, sizes, staged
from flax_transformer.decode.config import Beam, Decoded
from flax_transformer.ops.top_k import chunk_maxima, largest_after

_WORST = -1e9
"""Score of what is not there: finite, so that differences and products of such scores stay numbers."""


class _Links(NamedTuple):
    """One generated token, its log-probability, and the beam it continues."""

    token: Int[Array, "*B W"]
    logprob: Float[Array, "*B W"]
    beam: Int[Array, "*B W"]


class _Finished(NamedTuple):
    """The W best finished hypotheses of each row, best first; `length` 0 where there is none yet."""

    score: Float[Array, "B W"]
    done: Bool[Array, "B W"]
    length: Int[Array, "B W"]
    last: _Links


class Candidates(NamedTuple):
    """All continuations that a beam search has looked at: the best C at each of M steps, of each of B rows."""

    token: Int[Array, "B M C"]
    logprob: Float[Array, "B M C"]
    """Of the token, after those before it."""
    score: Float[Array, "B M C"]
    """The sum of the log-probabilities so far; -1e9 and below of what continues nothing."""
    beam: Int[Array, "B M C"]
    """Which beam of the step before it continues."""
    becomes: Int[Array, "B M C"]
    """Which beam it is after the step; -1 where it is none."""
    ends: Bool[Array, "B M C"]
    """Whether it is a finished hypothesis, which may be among the best ones at the end or not."""
    live: Bool[Array, "B M"]
    """Whether the search of the row went on at this step."""


class _State(NamedTuple):
    t: Int[Array, ""]
    running: Bool[Array, ""]
    cache: Any
    token: Int[Array, "BW"]
    score: Float[Array, "B W"]
    links: _Links
    finished: _Finished
    hopeful: Bool[Array, "B 1"]
    broken: Bool[Array, "B 1"]
    history: Int[Array, "BW M"] | None
    candidates: Candidates | None


def gather_rows(cache: Any, rows: Int[Array, "R"]) -> Any:
    """Select rows on the first axis of every leaf that has one: the `reorder` of caches with the batch in front.

    >>> moved = gather_rows({"k": jnp.arange(3) * 10, "t": jnp.array(7)}, jnp.array([2, 2, 0]))
    >>> moved["k"].tolist(), moved["t"].item()
    ([20, 20, 0], 7)
    """
    return jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds") if x.ndim else x, cache)


def beam_search(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    config: Beam,
    *,
    reorder: Callable[[Any, Array], Any] = gather_rows,
    process: Process | None = None,
    grow: Grow | None = None,
) -> Decoded:
    """Return the `n_best` hypotheses of each row, best first.

    `cache` holds B·W rows already: the caller repeats each row W times in a row (`jnp.repeat(x, W, axis=batch_axis)`)
    wherever the step reads it per row. `reorder(cache, rows: [B·W]) -> cache` makes row i continue what was row
    `rows[i]`, always of the same batch row, so what beams share need not move.

    `process(logprobs: [B·W, V], tokens: [B·W, M], t) -> logprobs` changes log-probabilities here, after the softmax
    and before the beams' scores are added, and the result is not normalised again.

    Lengths count generated tokens, end token or stop sequence included and prompt excluded. Each step looks at the
    best 2·W continuations (more with several end tokens); only those of the first W ranks may finish. At `max_length`,
    or `limit`, what still runs counts as finished. Of equal scores the earlier beam, then the lower token wins.

    Raises:
      ValueError: as `greedy`.
    """
    state, penalty = _search(step, cache, prompt, config, reorder, process, grow)
    return refuse_nan(_read(state, config, penalty))


def beam_search_with_candidates(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    config: Beam,
    *,
    reorder: Callable[[Any, Array], Any] = gather_rows,
    process: Process | None = None,
    grow: Grow | None = None,
) -> tuple[Decoded, Candidates]:
    """Return what `beam_search` does, and every continuation that it has looked at, kept or not.

    Args and Raises: as `beam_search`.
    """
    state, penalty = _search(step, cache, prompt, config, reorder, process, grow, watched=True)
    found = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), state.candidates)
    return refuse_nan(_read(state, config, penalty)), found


def _search(
    step: Step, cache: Any, prompt: Int[Array, "B"], config: Beam, reorder: Callable[[Any, Array], Any],
    process: Process | None, grow: Grow | None, watched: bool = False,
) -> tuple[_State, Float[Array, "M"]]:  # fmt: skip
    """Return the last state of a search and the divisors of lengths, with all candidates where they are `watched`."""
    beams = config.beams
    penalty, bound = _penalties(config)

    def advance(state: _State) -> _State:
        logits, cache = step(state.cache, state.token)
        logits = logits.astype(jnp.float32)
        total, links, broken = _continuations(logits.reshape(-1, beams, logits.shape[-1]), state, config, process)
        broken |= state.broken
        links = links._replace(token=links.token.astype(prompt.dtype))
        ends = _ending(state, links, config)
        finished = _finish(state, total, links, ends, penalty[state.t], config)
        score, order = jax.lax.top_k(total + ends * _WORST, beams)
        kept = _take(links, order)
        hopeful = state.hopeful & ~broken & _can_improve(score, finished, bound[state.t])
        satisfied = finished.done.all() if config.early_stopping is True else False
        rows = (jnp.arange(kept.beam.shape[0])[:, None] * beams + kept.beam).reshape(-1)
        token = kept.token.reshape(-1)
        return _State(
            t=state.t + 1,
            running=hopeful.any() & ~ends.all() & ~jnp.asarray(satisfied),
            cache=reorder(cache, rows),
            token=token,
            score=score,
            links=_write(state.links, kept, state.t),
            finished=finished,
            hopeful=hopeful,
            broken=broken,
            history=_extend(state.history, rows, token, state.t),
            candidates=_watch(state, total, links, ends, order, config),
        )

    start = _start(cache, prompt, config, with_history=process is not None or bool(config.stop))
    if watched:
        start = start._replace(candidates=_no_candidates(len(prompt), config, prompt.dtype))
    return staged(lambda state: state.running, advance, start, *sizes(config, grow)), penalty


def _no_candidates(rows: int, config: Beam, dtype: Any) -> Candidates:
    shape = (config.max_length, rows, _count(config))
    number, none = jnp.zeros(shape, jnp.float32), jnp.full(shape, -1, jnp.int32)
    token = jnp.full(shape, config.pad, dtype)
    return Candidates(token, number, number + _WORST, none, none, jnp.zeros(shape, bool), jnp.zeros(shape[:2], bool))


def _watch(
    state: _State, total: Float[Array, "B C"], links: _Links, ends: Bool[Array, "B C"], order: Int[Array, "B W"],
    config: Beam,
) -> Candidates | None:  # fmt: skip
    """Write down the candidates of a step, where they are watched."""
    if state.candidates is None:
        return None
    C, W = total.shape[-1], config.beams
    rank = jnp.where(order[:, :, None] == jnp.arange(C), jnp.arange(W)[:, None], -1).max(1)
    real = total > _WORST / 2
    becomes = jnp.where(real & ~ends, rank, -1).astype(jnp.int32)
    ended = real & ends & (jnp.arange(C) < W)
    new = Candidates(links.token, links.logprob, total, links.beam, becomes, ended, state.hopeful[:, 0])
    return _write(state.candidates, new, state.t)


def _penalties(config: Beam) -> tuple[Float[Array, "M"], Float[Array, "M"]]:
    """Return the divisor of each length, and the largest one that a hypothesis of that length may still come to."""
    penalty = jnp.array([config.length_penalty(n) for n in range(1, config.max_length + 1)], jnp.float32)
    if config.early_stopping != "never":
        return penalty, penalty
    # Log-probabilities only fall, so the largest divisor to come is a bound.
    reachable = jnp.where(jnp.arange(config.max_length) < config.last, penalty, -jnp.inf)
    return penalty, jax.lax.cummax(reachable, reverse=True)


def _start(cache: Any, prompt: Int[Array, "B"], config: Beam, *, with_history: bool) -> _State:
    rows, beams, length = prompt.shape[0], config.beams, config.max_length

    def links(*shape: int) -> _Links:
        token = jnp.full(shape, config.pad, prompt.dtype)
        return _Links(token, jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.int32))

    return _State(
        t=jnp.zeros((), jnp.int32),
        running=jnp.array(True),
        cache=cache,
        token=jnp.repeat(prompt, beams),
        # All beams start from the same prefix: only the first may be continued, or W equal hypotheses would result.
        score=jnp.full((rows, beams), _WORST, jnp.float32).at[:, 0].set(0.0),
        links=links(length, rows, beams),
        finished=_Finished(
            score=jnp.full((rows, beams), _WORST, jnp.float32),
            done=jnp.zeros((rows, beams), bool),
            length=jnp.zeros((rows, beams), jnp.int32),
            last=links(rows, beams),
        ),
        hopeful=jnp.ones((rows, 1), bool),
        broken=jnp.zeros((rows, 1), bool),
        history=jnp.full((rows * beams, length), config.pad, prompt.dtype) if with_history else None,
        candidates=None,
    )


def _count(config: Beam) -> int:
    """Return how many continuations a step looks at."""
    return max(2, 1 + len(config.ends)) * config.beams


def _continuations(
    logits: Float[Array, "B W V"], state: _State, config: Beam, process: Process | None
) -> tuple[Float[Array, "B C"], _Links, Bool[Array, "B 1"]]:
    """Return the best C continuations of all beams: enough that W stay even if every end token is among them.

    The softmax of the logits, and the scores of beams that are added, keep the order of a beam's tokens: without a
    `process` both are computed of the C chunks alone that hold the best ones.

    Returns:
      Scores and links of the continuations, and which rows have logits that are no numbers.
    """
    beams, vocabulary = logits.shape[1:]
    candidates = _count(config)
    if candidates > beams * vocabulary:
        raise ValueError(
            f"beam search needs a vocabulary of at least {candidates // beams} tokens, "
            f"one more than there are end tokens and at least 2, got V={vocabulary}"
        )
    peaks = chunk_maxima(logits)
    top = peaks.max(-1)
    sums = jnp.log(jnp.sum(jnp.exp(logits - top[..., None]), axis=-1))
    broken = jnp.isnan(sums).any(-1, keepdims=True)

    def logprob(logits: Array, top: Array, sums: Array) -> Array:
        return logits - top - sums

    def scored(logits: Array, of_beam: tuple[Array, Array, Array]) -> Array:
        top, sums, score = of_beam
        return score + logprob(logits, top, sums)

    if process is not None:  # which gives log-probabilities, of which nothing is taken any more
        logprobs = logprob(logits, top[..., None], sums[..., None]).reshape(-1, vocabulary)
        logits = process(logprobs, state.history, state.t).reshape(logits.shape)
        top, sums, peaks = jnp.zeros_like(top), jnp.zeros_like(sums), None
    total, index = largest_after(logits, candidates, scored, (top, sums, state.score), peaks)
    beam = index // vocabulary
    chosen = jnp.take_along_axis(logits.reshape(len(logits), -1), index, axis=-1)
    chosen = logprob(chosen, *_take((top, sums), beam))
    return total, _Links(token=index % vocabulary, logprob=chosen, beam=beam), broken


def _ending(state: _State, links: _Links, config: Beam) -> Bool[Array, "B C"]:
    """Return which continuations end: by a token, at the greatest length, or as they complete a stop sequence."""
    ends = is_end(links.token, config) | (state.t + 1 >= config.last)
    if not config.stop:
        return ends
    begun = ends_with(state.history, state.t, tuple(sequence[:-1] for sequence in config.stop))
    begun = jnp.take_along_axis(begun.reshape(*state.score.shape, -1), links.beam[..., None], axis=1)
    last = jnp.array([sequence[-1] for sequence in config.stop], links.token.dtype)
    return ends | (begun & (links.token[..., None] == last)).any(-1)


def _finish(
    state: _State,
    total: Float[Array, "B C"],
    links: _Links,
    ends: Bool[Array, "B C"],
    penalty: Float[Array, ""],
    config: Beam,
) -> _Finished:
    """Merge the continuations that end now into the best finished hypotheses.

    Exclusion subtracts 1e9 once per reason instead of masking: the order among excluded ones is then also that of
    Hugging Face, which decides between placeholders in rows with too few hypotheses.
    """
    finished = state.finished
    ending = ends & (jnp.arange(total.shape[-1]) < config.beams)
    score = total / penalty
    if config.early_stopping is True:
        score += finished.done.all(-1, keepdims=True) * _WORST
    score += ~state.hopeful * _WORST
    score += ~ending * _WORST
    new = _Finished(score=score, done=ending, length=jnp.full(total.shape, state.t + 1, jnp.int32), last=links)
    merged = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=-1), finished, new)
    return _take(merged, jax.lax.top_k(merged.score, config.beams)[1])


def _can_improve(score: Float[Array, "B W"], finished: _Finished, bound: Float[Array, ""]) -> Bool[Array, "B 1"]:
    """Return whether the best running prefix may still beat the worst finished hypothesis."""
    worst = jnp.where(finished.done, finished.score.min(-1, keepdims=True), _WORST)
    return (score[:, :1] / bound > worst).any(-1, keepdims=True)


def _take(tree: Any, index: Int[Array, "B K"]) -> Any:
    return jax.tree.map(lambda x: jnp.take_along_axis(x, index, axis=-1), tree)


def _extend(
    history: Int[Array, "R M"] | None, rows: Int[Array, "R"], token: Int[Array, "R"], t: Int[Array, ""]
) -> Int[Array, "R M"] | None:
    """Select the tokens so far, where a processor or a stop sequence wants them, and add the newest."""
    return None if history is None else jax.lax.dynamic_update_index_in_dim(history[rows], token, t, axis=1)


def _write(links: Any, new: Any, t: Int[Array, ""]) -> Any:
    return jax.tree.map(lambda old, x: jax.lax.dynamic_update_index_in_dim(old, x, t, axis=0), links, new)


def _read(state: _State, config: Beam, penalty: Float[Array, "M"]) -> Decoded:
    """Follow the links of the best hypotheses back to the prompt."""
    best = jax.tree.map(lambda x: x[:, : config.n_best], state.finished)
    # What continued no hypothesis, however long, or was excluded, is none, whatever tokens it carries.
    total = best.score * jnp.take(penalty, jnp.maximum(best.length - 1, 0))
    real = best.done & ~(jnp.isfinite(total) & (total < _WORST / 2))
    length = jnp.where(real, best.length, 0)
    shape = (config.max_length, *length.shape)
    tokens = jnp.full(shape, config.pad, state.token.dtype)
    logprobs = jnp.zeros(shape, jnp.float32)

    def back(carry: tuple) -> tuple:
        t, beam, tokens, logprobs = carry
        passed = _take(jax.tree.map(lambda x: x[t], state.links), beam)
        link = jax.tree.map(lambda last, inner: jnp.where(t + 1 == length, last, inner), best.last, passed)
        inside = t < length
        tokens = tokens.at[t].set(jnp.where(inside, link.token, config.pad))
        logprobs = logprobs.at[t].set(jnp.where(inside, link.logprob, 0.0))
        return t - 1, jnp.where(inside, link.beam, 0), tokens, logprobs

    start = (state.t - 1, jnp.zeros_like(length), tokens, logprobs)
    *_, tokens, logprobs = jax.lax.while_loop(lambda carry: carry[0] >= 0, back, start)
    scores = jnp.where(state.broken, jnp.nan, jnp.where(real, best.score, _WORST))
    return Decoded(jnp.moveaxis(tokens, 0, -1), length, scores, jnp.moveaxis(logprobs, 0, -1))
