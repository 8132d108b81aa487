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
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.decode.config import Decoded, Greedy, Sampling
from flax_transformer.ops.sampling import filter_logits, largest, sample_logits

Step = Callable[[Any, Array], tuple[Array, Any]]
Process = Callable[[Array, Array, Array], Array]
Grow = Callable[[Any, int], Any]


class _State(NamedTuple):
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

    def choose(logits: Float[Array, "B V"], t: Int[Array, ""]) -> tuple[Float[Array, "B V"], Int[Array, "B"]]:
        return logits, largest(logits, 1)[1][:, 0]

    return _run(step, cache, prompt, config, choose, process, grow)


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

    def choose(logits: Float[Array, "B V"], t: Int[Array, ""]) -> tuple[Float[Array, "B V"], Int[Array, "B"]]:
        logits = filter_logits(logits, temperature=config.temperature, top_k=config.top_k, top_p=config.top_p)
        return logits, sample_logits(jax.random.fold_in(key, t), logits)

    return _run(step, cache, prompt, config, choose, process, grow)


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
    config: Greedy,
    choose: Callable,
    process: Process | None,
    grow: Grow | None,
) -> Decoded:
    def advance(state: _State) -> _State:
        logits, cache = step(state.cache, state.token)
        logits = logits.astype(jnp.float32)
        if process is not None:
            logits = process(logits, state.tokens, state.t)
        logits, token = choose(logits, state.t)
        token = token.astype(prompt.dtype)
        chosen = jnp.take_along_axis(logits, token[:, None], axis=-1)[:, 0]
        logprob = jnp.where(state.done, 0.0, chosen - jax.nn.logsumexp(logits, axis=-1))
        token = jnp.where(state.done, config.pad, token)
        return _State(
            t=state.t + 1,
            cache=cache,
            token=token,
            done=state.done | is_end(token, config),
            tokens=jax.lax.dynamic_update_index_in_dim(state.tokens, token, state.t, axis=1),
            logprobs=jax.lax.dynamic_update_index_in_dim(state.logprobs, logprob, state.t, axis=1),
        )

    shape = (*prompt.shape, config.max_length)
    start = _State(
        t=jnp.zeros((), jnp.int32),
        cache=cache,
        token=prompt,
        done=jnp.zeros(prompt.shape, bool),
        tokens=jnp.full(shape, config.pad, prompt.dtype),
        logprobs=jnp.zeros(shape, jnp.float32),
    )
    end = staged(lambda s: ~s.done.all(), advance, start, *sizes(config, grow))
    ended = is_end(end.tokens, config)
    # The first end token closes a row, so that a pad token that is also an end token is not counted.
    lengths = jnp.where(ended.any(-1), jnp.argmax(ended, -1) + 1, config.max_length).astype(jnp.int32)
    return Decoded(end.tokens[:, None], lengths[:, None], end.logprobs.sum(-1)[:, None], end.logprobs[:, None])


def is_end(tokens: Int[Array, "*B"], config: Greedy) -> Bool[Array, "*B"]:
    """Say which tokens end a sequence."""
    if not config.ends:
        return jnp.zeros(tokens.shape, bool)
    return (tokens[..., None] == jnp.array(config.ends, tokens.dtype)).any(-1)
