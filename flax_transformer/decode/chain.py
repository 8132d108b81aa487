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
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.decode.config import Decoded, Greedy, Sampling
from flax_transformer.ops.sampling import filter_logits, largest, sample_logits

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


def greedy(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    config: Greedy,
    *,
    process: Process | None = None,
    grow: Grow | None = None,
) -> Decoded:
    """Take the most probable token until every row has ended or `max_length` is reached.

    `process(logits: [B, V], tokens: [B, M], t) -> logits` may change the logits: `tokens` holds what was generated
    so far in its first t columns and padding after them. Of equal logits the lowest token wins.
    """
    return _run(step, cache, prompt, None, config, process, grow)


def sample(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    key: PRNGKeyArray,
    config: Sampling,
    *,
    process: Process | None = None,
    grow: Grow | None = None,
) -> Decoded:
    """Draw tokens until every row has ended or `max_length` is reached; `process` as in `greedy`, before the filters.

    The t-th token is drawn with `fold_in(key, t)`, so a longer `max_length` continues the same sequences.
    """
    return _run(step, cache, prompt, key, config, process, grow)


def sizes(config: Greedy, grow: Grow | None) -> tuple[tuple[int, ...], Grow]:
    """Give the stages and how to grow between them: without `grow` one stage, for which the cache is ready."""
    return (config.stages, grow) if grow else ((config.max_length,), lambda cache, length: cache)


def staged(running: Callable, advance: Callable, state: Any, stages: tuple[int, ...], grow: Grow) -> Any:
    """Run `advance` while `running`, in a loop for each size of the cache; give the last state without its cache.

    A loop is entered, and the cache enlarged for it, only if the one before has not finished.
    """
    stage, *later = stages
    state = state._replace(cache=grow(state.cache, stage))
    state = jax.lax.while_loop(lambda s: running(s) & (s.t < stage), advance, state)
    without = lambda s: s._replace(cache=None)  # noqa: E731
    if not later:
        return without(state)
    more = lambda s: staged(running, advance, s, tuple(later), grow)  # noqa: E731
    return jax.lax.cond(running(state), more, without, state)


def _run(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    key: PRNGKeyArray | None,
    config: Greedy,
    process: Process | None,
    grow: Grow | None,
) -> Decoded:
    forward = lambda state: advance(step, state, key, config, process)  # noqa: E731
    return finish(staged(running, forward, start(cache, prompt, config), *sizes(config, grow)), config)


def start(cache: Any, prompt: Int[Array, "B"], config: Greedy) -> State:
    """Give the state before the first token."""
    shape = (*prompt.shape, config.max_length)
    return State(
        t=jnp.zeros((), jnp.int32),
        cache=cache,
        token=prompt,
        done=jnp.zeros(prompt.shape, bool),
        tokens=jnp.full(shape, config.pad, prompt.dtype),
        logprobs=jnp.zeros(shape, jnp.float32),
    )


def running(state: State) -> Bool[Array, ""]:
    """Say whether any row still has tokens to come."""
    return ~state.done.all()


def advance(step: Step, state: State, key: PRNGKeyArray | None, config: Greedy, process: Process | None) -> State:
    """Decode one token of every row: the most probable one, or with a key one drawn as a `Sampling` config says."""
    logits, cache = step(state.cache, state.token)
    logits = logits.astype(jnp.float32)
    if process is not None:
        logits = process(logits, state.tokens, state.t)
    logits, token = _choose(logits, state.t, key, config)
    token = token.astype(state.token.dtype)
    chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
    logprob = jnp.where(state.done, 0.0, chosen - jax.nn.logsumexp(logits, axis=-1))
    token = jnp.where(state.done, config.pad, token)
    done, tokens = state.done | is_end(token, config), _put(state.tokens, token, state.t)
    if config.stop:
        done |= ends_with(tokens, state.t + 1, config.stop).any(-1)
    return State(state.t + 1, cache, token, done, tokens, _put(state.logprobs, logprob, state.t))


def _choose(
    logits: Float[Array, "B V"], t: Int[Array, ""], key: PRNGKeyArray | None, config: Greedy
) -> tuple[Float[Array, "B V"], Int[Array, "B"]]:
    if key is None:
        return logits, largest(logits, 1)[1][:, 0]
    logits = filter_logits(logits, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
    return logits, sample_logits(jax.random.fold_in(key, t), logits)


def _put(old: Array, new: Array, t: Int[Array, ""]) -> Array:
    return jax.lax.dynamic_update_index_in_dim(old, new, t, axis=1)


def finish(state: State, config: Greedy) -> Decoded:
    """Give what was decoded, with lengths and scores."""
    ended = is_end(state.tokens, config)
    if config.stop:
        stopped = lambda count: ends_with(state.tokens, count, config.stop).any(-1)  # noqa: E731
        ended |= jax.vmap(stopped, out_axes=-1)(1 + jnp.arange(config.max_length))
    # The first end closes a row, so that a pad token that is also an end token is not counted.
    lengths = jnp.where(ended.any(-1), jnp.argmax(ended, -1) + 1, config.max_length).astype(jnp.int32)
    return Decoded(state.tokens[:, None], lengths[:, None], state.logprobs.sum(-1)[:, None], state.logprobs[:, None])


def is_end(tokens: Int[Array, "*B"], config: Greedy) -> Bool[Array, "*B"]:
    """Say which tokens end a sequence."""
    if not config.ends:
        return jnp.zeros(tokens.shape, bool)
    return (tokens[..., None] == jnp.array(config.ends, tokens.dtype)).any(-1)


def ends_with(
    tokens: Int[Array, "R S"], count: int | Int[Array, ""], sequences: tuple[tuple[int, ...], ...]
) -> Bool[Array, "R {len(sequences)}"]:
    """Say of the first `count` tokens of each row which of the sequences they end with.

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
