"""Greedy decoding and sampling that hand out tokens while they are decoded.

Axes: B batch, C tokens handed out together.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from flax_transformer.decode.chain import Grow, Process, State, Step, advance, finish, refuse_nan, running, sizes, start
from flax_transformer.decode.compose import traceable
from flax_transformer.decode.config import Beam, Decoded, Greedy, Sampling, room
from flax_transformer.ops.sampling import Keys, each_row


def stream(
    step: Step,
    cache: Any,
    prompt: Int[Array, "B"],
    config: Greedy,
    *,
    key: Keys | None = None,
    process: Process | None = None,
    grow: Grow | None = None,
    chunk: int = 1,
) -> Generator[Int[np.ndarray, "B C"], None, Decoded]:
    """Yield the tokens of `greedy`, or with a key those of `sample`, `chunk` of every row at a time.

    The last chunk may be shorter, and so may the one before the cache grows. Rows that have ended are padded; decoding
    stops when all have. The generator returns what the loop would have: `decoded = yield from stream(...)`.

    A chunk is one call of a compiled function, which costs some tenths of a millisecond beside its tokens; the next one
    runs while the caller uses the last. So that streams share what was compiled, and the weights are no constants in
    it, give as `step` a `jax.tree_util.Partial` of a function and the model, `Partial(Model.step, model)`; a new
    closure is compiled anew. Another number of tokens (of the same `decode.room`) or other filters are not. The cache
    given is copied once and stays valid.

    Raises:
      ValueError: for `Beam`, whose tokens may change until the end, and for `Sampling` without a key or the reverse.
    """
    if isinstance(config, Beam):
        raise ValueError(f"beam search cannot be streamed, as its tokens may change until the end, got {config}")
    if isinstance(config, Sampling) != (key is not None):
        raise ValueError(f"sampling needs a key and greedy decoding none, got {config} and key={key}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    count, keys = int(config.last), None if key is None else each_row(key, prompt.shape)
    config = replace(config, max_length=room(count), limit=count)
    # Own buffers, because each call of the compiled function consumes those of the one before.
    state = jax.tree.map(jnp.copy, _start(cache, prompt, config))
    # Taken apart once: doing so at each call costs half a millisecond for a model of 200 arrays.
    leaves, tree = jax.tree.flatten((traceable(step), keys, traceable(process), config))
    forward = partial(_advance, leaves, tree=tree, chunk=chunk)
    return _stream(forward, state, config, grow, chunk)


def _stream(
    forward: Callable, state: State, config: Greedy, grow: Grow | None, chunk: int
) -> Generator[Int[np.ndarray, "B C"], None, Decoded]:
    """Keep one call ahead of what is handed out: a call after the end runs no step, so that it costs nothing."""
    stages, grow = sizes(config, grow)
    size, waiting, count = 0, None, config.last
    for until in sorted({*range(chunk, count, chunk), *(min(stage, count) for stage in stages)}):
        if until > size:
            size = min(stage for stage in stages if stage >= until)
            state = state._replace(cache=grow(state.cache, size))
        state, produced = forward(state, np.int32(until))
        if waiting is not None:
            tokens, more = _fetch(waiting)
            yield tokens
            if not more:
                break
        waiting = produced
    else:
        yield _fetch(waiting)[0]
    decoded = refuse_nan(_finish(state._replace(cache=None), config))
    tokens, logprobs = (jax.device_put(np.asarray(x)[..., :count]) for x in (decoded.tokens, decoded.logprobs))
    return decoded._replace(tokens=tokens, logprobs=logprobs)


def _fetch(produced: tuple[Array, Array, Array]) -> tuple[Int[np.ndarray, "B C"], bool]:
    tokens, count, more = jax.device_get(produced)
    return tokens[:, :count], bool(more)


_start, _finish = jax.jit(start), jax.jit(finish)


@partial(jax.jit, static_argnames=("tree", "chunk"), donate_argnames=("state",))
def _advance(
    leaves: list[Array], state: State, until: Int[Array | np.ndarray | np.integer, ""], *, tree: Any, chunk: int
) -> tuple[State, tuple[Int[Array, "B {chunk}"], Int[Array, ""], Bool[Array, ""]]]:
    """Decode up to position `until`; give the new tokens too, how many they are, and whether there is more to come."""
    step, keys, process, config = jax.tree.unflatten(tree, leaves)
    end = jax.lax.while_loop(
        lambda s: running(s) & (s.t < until), lambda s: advance(step, s, keys, config, process), state
    )
    tokens = end.tokens.at[:, state.t + jnp.arange(chunk)].get(mode="fill", fill_value=config.pad)
    return end, (tokens, end.t - state.t, running(end))
