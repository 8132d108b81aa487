"""Decoding with one running sequence per row: greedy and sampling, one jitted loop for both.

Axes: B batch, V vocabulary, M `max_length`. The loop runs a model it does not know through
`step(cache, token: [B]) -> (logits: [B, V], cache)`, a pure function; the cache is any pytree whose shapes and dtypes
the step keeps. Filling the cache with a prompt is the model's affair: the loop starts from the prompt's last token.

A step over a cache costs what the cache has room for, not what is in it. With `grow(cache, length) -> cache` the cache
is made for `config.stages[0]` generated tokens and grows with them, so that a generous `max_length` costs nothing.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.decode.config import Decoded, Greedy, Sampling
from flax_transformer.ops.sampling import Keys, each_row, filter_logits, largest, sample_logits

GROUP = 3
"""Sizes of the cache between which a loop does not look whether more are needed."""

Step = Callable[[Any, Array], tuple[Array, Any]]
Process = Callable[[Array, Array, Array], Array]
Grow = Callable[[Any, int], Any]


class State(NamedTuple):
    """What the loop carries from one token to the next."""

    t: Int[Array, ""]
    cache: Any
    token: Int[Array, "B"]
    done: Bool[Array, "B"]
    tokens: Int[Array, "B M"]
    logprobs: Float[Array, "B M"]
    score: Float[Array, "B"]
    """Their sum so far, so that it does not depend on M."""


def greedy(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    config: Greedy,
    *,
    process: Process | None = None,
    grow: Grow | None = None,
) -> Decoded:
    """Take the most probable token until every row has ended or `max_length`, or `limit`, is reached.

    `process(logits: [B, V], tokens: [B, M], t) -> logits` may change the logits: `tokens` holds what was generated
    so far in its first t columns and padding after them. Of equal logits the lowest token wins.

    Raises:
      ValueError: the step gave logits that are no numbers; inside a transform such rows end and score NaN instead.
    """
    return _run(step, cache, prompt, None, config, process, grow)


def sample(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    key: Keys,
    config: Sampling,
    *,
    process: Process | None = None,
    grow: Grow | None = None,
) -> Decoded:
    """Draw tokens until every row has ended or `max_length` is reached; `process` as in `greedy`, before the filters.

    Row i draws with `fold_in(key, i)`, or with a key of its own where `key` has one for each row; so a row draws the
    same in any batch and place, if it keeps its number: `ops.sampling.row_keys(key, numbers)`. Of that key the t-th
    token is drawn with `fold_in(key, t)`, so a longer `max_length` continues the same sequences.

    Raises:
      ValueError: as `greedy`.
    """
    return _run(step, cache, prompt, key, config, process, grow)


def sizes(config: Greedy, grow: Grow | None) -> tuple[tuple[int, ...], Grow]:
    """Return the stages and how to grow between them: without `grow` one stage, for which the cache is ready."""
    return (config.stages, grow) if grow else ((config.max_length,), lambda cache, length: cache)


def staged(running: Callable, advance: Callable, state: Any, stages: tuple[int, ...], grow: Grow) -> Any:
    """Run `advance` while `running`, in a loop for each size of the cache; give the last state without its cache.

    A group of loops is entered, and the cache enlarged for it, only if the one before has not finished. The cache with
    which a group is entered stays in memory to its end; those within a group give way to the next. Without groups
    twice the memory of the last cache would be needed, and with one alone a short answer to a generous limit would pay
    for the largest cache.
    """
    first = len(stages) % GROUP or GROUP
    for stage in stages[:first]:
        state = state._replace(cache=grow(state.cache, stage))
        state = jax.lax.while_loop(lambda s, stage=stage: running(s) & (s.t < stage), advance, state)

    def without(s):
        return s._replace(cache=None)

    if not (later := stages[first:]):
        return without(state)

    def more(s):
        return staged(running, advance, s, later, grow)

    return jax.lax.cond(running(state), more, without, state)


def _run(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    key: Keys | None,
    config: Greedy,
    process: Process | None,
    grow: Grow | None,
) -> Decoded:
    keys = None if key is None else each_row(key, prompt.shape)

    def forward(state):
        return advance(step, state, keys, config, process)

    def more(state):
        return running(state) & (state.t < config.last)

    return refuse_nan(finish(staged(more, forward, start(cache, prompt, config), *sizes(config, grow)), config))


def start(cache: Any, prompt: Int[Array, "B"], config: Greedy) -> State:
    """Return the state before the first token."""
    shape = (*prompt.shape, config.max_length)
    return State(
        t=jnp.zeros((), jnp.int32),
        cache=cache,
        token=prompt,
        done=jnp.zeros(prompt.shape, bool),
        tokens=jnp.full(shape, config.pad, prompt.dtype),
        logprobs=jnp.zeros(shape, jnp.float32),
        score=jnp.zeros(prompt.shape, jnp.float32),
    )


def running(state: Any) -> Bool[Array, ""]:
    """Return whether any row of a loop's state still has tokens to come."""
    return ~state.done.all()


def advance(step: Step, state: State, keys: Keys | None, config: Greedy, process: Process | None) -> State:
    """Decode one token of every row: the most probable one, or with keys one drawn as a `Sampling` config says."""
    logits, cache = step(state.cache, state.token)
    logits = logits.astype(jnp.float32)
    broken = jnp.isnan(logits).any(-1)
    if process is not None:
        logits = process(logits, state.tokens, state.t)
    logits, token = _choose(logits, state.t, keys, config)
    token = jnp.where(state.done | broken, config.pad, token.astype(state.token.dtype))
    logprob = jnp.where(state.done, 0.0, jnp.where(broken, jnp.nan, log_probability(logits, token)))
    done, tokens = state.done | broken | is_end(token, config), _put(state.tokens, token, state.t)
    if config.stop:
        done |= ends_with(tokens, state.t + 1, config.stop).any(-1)
    logprobs, score = _put(state.logprobs, logprob, state.t), state.score + logprob
    return State(state.t + 1, cache, token, done, tokens, logprobs, score)


def _choose(
    logits: Float[Array, "B V"], t: Int[Array, ""], keys: Keys | None, config: Greedy
) -> tuple[Float[Array, "B V"], Int[Array, "B"]]:
    if keys is None:
        return logits, largest(logits, 1)[1][:, 0]
    logits = filter_logits(logits, **config.filters)
    return logits, sample_logits(jax.vmap(jax.random.fold_in, (0, None))(keys, t), logits)


def log_probability(logits: Float[Array, "*B V"], token: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """Return the log-probability of a token of each row: -inf where a process has left none."""
    chosen = jnp.take_along_axis(logits, token[..., None], axis=-1)[..., 0]
    return jnp.where(chosen == -jnp.inf, -jnp.inf, chosen - jax.nn.logsumexp(logits, axis=-1))


def _put(old: Array, new: Array, t: Int[Array, ""]) -> Array:
    return jax.lax.dynamic_update_index_in_dim(old, new.astype(old.dtype), t, axis=1)


def finish(state: Any, config: Greedy) -> Decoded:
    """Return what a loop's state has decoded, with lengths and scores."""
    ended = is_end(state.tokens, config)
    if config.stop:

        def stopped(count):
            return ends_with(state.tokens, count, config.stop).any(-1)

        ended |= jax.vmap(stopped, out_axes=-1)(1 + jnp.arange(config.max_length))
    ended |= jnp.isnan(state.logprobs)
    # The first end closes a row, so that a pad token that is also an end token is not counted.
    lengths = jnp.minimum(jnp.where(ended.any(-1), jnp.argmax(ended, -1) + 1, config.max_length), config.last)
    lengths = lengths.astype(jnp.int32)
    return Decoded(state.tokens[:, None], lengths[:, None], state.score[:, None], state.logprobs[:, None])


def refuse_nan(decoded: Decoded) -> Decoded:
    """Return what was decoded, unless it is there to be looked at and was decoded from logits that are no numbers.

    Raises:
      ValueError: says which row, and where.
    """
    readable = not isinstance(decoded.scores, jax.core.Tracer) and decoded.scores.is_fully_addressable
    if readable and np.isnan(decoded.scores).any():
        row = int(np.isnan(decoded.scores).any(-1).argmax())
        raise ValueError(
            f"logits must be numbers, those of row {row} are NaN within {int(decoded.lengths[row].max())} tokens: the "
            "model or its cache has no more positions, or its parameters are not finite"
        )
    return decoded


def is_end(tokens: Int[Array, "*B"], config: Greedy) -> Bool[Array, "*B"]:
    """Return which tokens end a sequence."""
    if not config.ends:
        return jnp.zeros(tokens.shape, bool)
    return (tokens[..., None] == jnp.array(config.ends, tokens.dtype)).any(-1)


def ends_with(
    tokens: Int[Array, "R S"], count: int | Int[Array, ""], sequences: tuple[tuple[int, ...], ...]
) -> Bool[Array, "R {len(sequences)}"]:
    """Return, of the first `count` tokens of each row, which of the sequences they end with.

    >>> ends_with(jnp.array([[5, 6, 7, 0], [6, 5, 5, 0]]), 3, ((7,), (6, 7), (5, 5), ())).tolist()
    [[True, True, False, True], [False, False, True, True]]
    """
    longest = max(map(len, sequences))
    anything, nothing = -1, -2
    padded = [(anything,) * (longest - len(sequence)) + sequence for sequence in sequences]
    pattern = np.array(padded, np.int32).reshape(len(sequences), longest)
    position = count - longest + jnp.arange(longest)
    last = jnp.where(position >= 0, tokens[:, jnp.maximum(position, 0)], nothing)
    return ((pattern == anything) | (last[:, None] == pattern)).all(-1)
