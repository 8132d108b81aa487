"""Contrastive search: of the k most probable tokens the one whose state is least like those before it.

A token v is taken that maximises (1 - α) p(v) - α max_j cos(h(v), h_j): p is its probability, h(v) the model's last
hidden state where v is read, and h_j those of all tokens before it (Su et al. 2022, https://arxiv.org/abs/2202.06417,
equation 5). Each step reads all k candidates at once.

Axes: B batch, k candidates, V vocabulary, D width, P prompt tokens, M `max_length`, S = P + M.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.decode.beam import gather_rows
from flax_transformer.decode.chain import (
    Grow,
    Process,
    ends_with,
    finish,
    is_end,
    log_probability,
    refuse_nan,
    sizes,
    staged,
)
from flax_transformer.decode.config import Decoded, Greedy
from flax_transformer.frozen import frozen
from flax_transformer.ops.sampling import largest

StateStep = Callable[[Any, Array], tuple[Array, Array, Any]]
"""`step(cache, token: [B·k]) -> (logits: [B·k, V], states: [B·k, D], cache)`, of the token after, and of this one."""


@jax.tree_util.register_pytree_node_class
@frozen
class Contrastive(Greedy):
    """Take of the most probable tokens the one that is least like what was written."""

    TRACED: ClassVar[tuple[str, ...]] = ("limit", "alpha")

    alpha: float | Float[Array, ""] = 0.6
    """How much it matters that states differ; 0 is greedy decoding."""
    top_k: int = 4
    """Candidates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.alpha, int | float) and not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, got {self.alpha}")
        if self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")


class Context(NamedTuple):
    """What a prompt has come to."""

    logits: Float[Array, "B V"]
    """Of the first token after it."""
    states: Float[Array, "B P D"]
    """The last hidden states of its tokens."""
    seen: Bool[Array, "B P"] | None = None
    """False where there is padding."""


class _State(NamedTuple):
    t: Int[Array, ""]
    cache: Any
    logits: Float[Array, "B V"]
    context: Float[Array, "B S D"]
    """States of length 1."""
    done: Bool[Array, "B"]
    tokens: Int[Array, "B M"]
    logprobs: Float[Array, "B M"]
    score: Float[Array, "B"]


def contrastive_search(
    step: StateStep,
    cache: Any,
    context: Context,
    config: Contrastive,
    *,
    reorder: Callable[[Any, Array], Any] = gather_rows,
    process: Process | None = None,
    grow: Grow | None = None,
) -> Decoded:
    """Decode by contrastive search until every row has ended or `max_length`, or `limit`, is reached.

    The cache has all of the prompt, and k hypotheses of each row as `beam_search` has them; `reorder` as there, and
    `process` and `grow` as in `greedy`. Tokens that a process leaves no probability are no candidates.

    Raises:
      ValueError: as `greedy`.
    """
    prompt = context.states.shape[1]
    rows = len(context.logits)
    seen = jnp.ones((rows, prompt), bool) if context.seen is None else context.seen
    seen = jnp.pad(seen, ((0, 0), (0, config.max_length)), constant_values=True)

    def forward(state):
        return _advance(step, state, seen & (jnp.arange(seen.shape[1]) < prompt + state.t), config, reorder, process)

    shape = rows, config.max_length
    begin = _State(
        t=jnp.zeros((), jnp.int32), cache=cache, logits=context.logits.astype(jnp.float32),
        context=jnp.pad(_unit(context.states), ((0, 0), (0, config.max_length), (0, 0))), done=jnp.zeros(rows, bool),
        tokens=jnp.full(shape, config.pad, jnp.int32), logprobs=jnp.zeros(shape, jnp.float32),
        score=jnp.zeros(rows, jnp.float32),
    )  # fmt: skip

    def running(state):
        return ~state.done.all() & (state.t < config.last)

    return refuse_nan(finish(staged(running, forward, begin, *sizes(config, grow)), config))


def _advance(
    step: StateStep, state: _State, seen: Bool[Array, "B S"], config: Contrastive, reorder: Callable,
    process: Process | None,
) -> _State:  # fmt: skip
    """Decode one token of every row."""
    broken, logits, t = jnp.isnan(state.logits).any(-1), state.logits, state.t
    if process is not None:
        logits = process(logits, state.tokens, t)
    k = min(config.top_k, logits.shape[-1])
    best, candidates = largest(logits, k)
    probability = jnp.exp(best - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
    following, states, cache = step(state.cache, candidates.astype(jnp.int32).reshape(-1))
    following, states = (x.reshape(-1, k, x.shape[-1]) for x in (following.astype(jnp.float32), _unit(states)))
    alike = jnp.einsum("BkD,BSD->BkS", states, state.context, precision="highest")
    alike = jnp.where(seen[:, None], alike, -jnp.inf).max(-1)
    score = jnp.where(best == -jnp.inf, -jnp.inf, (1 - config.alpha) * probability - config.alpha * alike)
    chosen = largest(score, 1)[1]

    def take(x):
        return jnp.take_along_axis(x, chosen.reshape(-1, *(1,) * (x.ndim - 1)), axis=1)[:, 0]

    token = jnp.where(state.done | broken, config.pad, take(candidates)).astype(state.tokens.dtype)
    logprob = jnp.where(state.done, 0.0, jnp.where(broken, jnp.nan, log_probability(logits, token)))
    tokens, logprobs, context = (
        jax.lax.dynamic_update_index_in_dim(old, new, at, axis=1)
        for old, new, at in (
            (state.tokens, token, t), (state.logprobs, logprob, t),
            (state.context, take(states), state.context.shape[1] - config.max_length + t),
        )
    )  # fmt: skip
    done = state.done | broken | is_end(token, config)
    if config.stop:
        done |= ends_with(tokens, t + 1, config.stop).any(-1)
    rows = jnp.repeat(jnp.arange(len(token)) * k + chosen[:, 0], k)
    return _State(t + 1, reorder(cache, rows), take(following), context, done, tokens, logprobs, state.score + logprob)


def _unit(states: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
    states = states.astype(jnp.float32)
    return states / jnp.maximum(jnp.linalg.norm(states, axis=-1, keepdims=True), 1e-12)
