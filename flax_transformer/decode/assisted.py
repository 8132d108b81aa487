"""Assisted decoding: a draft proposes K tokens, the model reads them all at once and keeps those it would have written.

Greedily the tokens are those of `greedy`. Drawn ones have the distribution of `sample`, whatever the draft is: a token
x that was drawn from q is kept with probability min(1, p(x) / q(x)), and where it is not another one is drawn from
max(p - q, 0), made a distribution (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192; Chen et al. 2023,
https://arxiv.org/abs/2302.01318). A draft is a function: of a smaller model, or of what was written before, "prompt
lookup" (Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding).

Axes: B batch, V vocabulary, M `max_length`, K proposed tokens, T = K + 1 tokens that are read at once, P prompt tokens.

Rows keep different numbers of tokens, and none waits for another: row b has written t[b] of them, and the model is told
at which places the tokens of each row stand. What its cache has from there on is forgotten.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.decode.chain import (
    Grow,
    Process,
    ends_with,
    finish,
    is_end,
    log_probability,
    refuse_nan,
    running,
    sizes,
    staged,
)
from flax_transformer.decode.config import Decoded, Greedy, Sampling
from flax_transformer.decode.process import process_rows
from flax_transformer.ops.sampling import Keys, each_row, filter_logits, largest, sample_logits

Extend = Callable[[Any, Array, Array], tuple[Array, Any]]
"""`extend(cache, tokens: [B, T], t: [B]) -> (logits: [B, T, V], cache)`: read the tokens of row b, of which the first
is its t[b]-th generated token, or for 0 the prompt's last; what the cache has of that place on is forgotten."""


class Seen(NamedTuple):
    """What a draft proposes from."""

    last: Int[Array, "B"]
    """The newest token of each row, which no cache has yet."""
    tokens: Int[Array, "B M"]
    """Generated tokens, `last` included, the first `t` of each row."""
    t: Int[Array, "B"]


class Proposal(NamedTuple):
    """What a draft proposes to go on with."""

    tokens: Int[Array, "B K"]
    logits: Float[Array, "B K V"] | None
    """Those of the distributions that tokens were drawn from; None where nothing was drawn."""


class Drafted(NamedTuple):
    """How far the draft was right."""

    passes: Int[Array, "B"]
    """Calls of the model until a row had ended; `greedy` needs one for each of its tokens."""
    accepted: Int[Array, "B"]
    """Generated tokens that the draft had proposed."""


@dataclass(frozen=True)
class Draft:
    """How tokens are proposed."""

    propose: Callable[..., tuple[Proposal, Any]]
    """`propose(state, seen, choose)`: K tokens of each row, and the state. `choose(logits: [B, V], tokens: [B, M],
    t: [B], i)` chooses the i-th of them as the loop itself would: it returns the tokens, and the logits of the
    distribution that they were drawn from or None."""
    count: int
    """K."""
    state: Any = None
    grow: Grow | None = None
    """As that of the loop, of the state."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"a draft proposes at least 1 token, got {self.count}")


def model_draft(extend: Extend, cache: Any, count: int, grow: Grow | None = None) -> Draft:
    """Propose what a smaller model would write.

    Args:
      extend, cache: those of the smaller model, which has read the same prompt but its last token.
      grow: as `assisted` has it, of this cache.
    """

    def propose(cache: Any, seen: Seen, choose: Callable) -> tuple[Proposal, Any]:
        rows = jnp.arange(len(seen.last))

        def one(state, i):
            cache, token, tokens = state
            logits, cache = extend(cache, token[:, None], seen.t + i)
            token, logits = choose(logits[:, 0], tokens, seen.t + i, i)
            return (cache, token, tokens.at[rows, seen.t + i].set(token, mode="drop")), (token, logits)

        start = cache, seen.last, seen.tokens
        (cache, token, _), (tokens, logits) = jax.lax.scan(one, start, jnp.arange(count))
        # Should all be kept, the next proposal goes on after the last of these, which is then to be in the cache.
        cache = extend(cache, token[:, None], seen.t + count)[1]
        tokens, logits = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), (tokens, logits))
        return Proposal(tokens, logits), cache

    return Draft(propose, count, cache, grow)


def lookup_draft(prompt: Int[Array | np.ndarray, "B P"], count: int, longest: int = 2) -> Draft:
    """Propose what followed the last tokens where they first occurred, in the prompt or what was generated.

    Args:
      prompt: with its last token; negative where there is none.
      longest: tokens that are looked for; where they do not occur, fewer, and where the last one is new, nothing good
        is proposed.

    Raises:
      ValueError: no token to look for, or a draft of none.
    """
    if longest < 1:
        raise ValueError(f"prompt lookup looks for at least 1 token, got {longest}")

    def propose(prompt: Array | np.ndarray, seen: Seen, choose: Callable) -> tuple[Proposal, Array | np.ndarray]:
        found = partial(_follow, count=count, longest=longest)
        return Proposal(jax.vmap(found)(prompt, seen.tokens, seen.t), None), prompt

    return Draft(propose, count, prompt)


def _follow(
    prompt: Int[Array, "P"], tokens: Int[Array, "M"], t: Int[Array, ""], *, count: int, longest: int
) -> Int[Array, "K"]:
    whole, end = jnp.concatenate([prompt.astype(tokens.dtype), tokens]), len(prompt) + t
    place = jnp.arange(len(whole))
    match, start = place >= 0, jnp.zeros((), jnp.int32)
    for n in range(1, longest + 1):  # match: the last n tokens end here, before the end
        last = whole[jnp.maximum(end - n, 0)]
        before = jnp.where(place >= n - 1, jnp.roll(whole, n - 1), -1)
        match = match & (before == last) & (before >= 0) & (end >= n) & (place < end - 1)
        start = jnp.where(match.any(), 1 + jnp.argmax(match), start)
    follows = start + jnp.arange(count)
    found = whole[jnp.minimum(follows, len(whole) - 1)]
    return jnp.where((start > 0) & (follows < end) & (found >= 0), found, whole[end - 1])


class _State(NamedTuple):
    t: Int[Array, ""]
    """Generated tokens of the row that has most of those that have not ended."""
    cache: Any
    """The model's, and the draft's state."""
    token: Int[Array, "B"]
    at: Int[Array, "B"]
    """Generated tokens of each row."""
    done: Bool[Array, "B"]
    tokens: Int[Array, "B M"]
    logprobs: Float[Array, "B M"]
    score: Float[Array, "B"]
    drafted: Drafted


def assisted(
    extend: Extend,
    cache: Any,
    prompt: Int[Array, "B"],
    config: Greedy | Sampling,
    draft: Draft,
    *,
    key: Keys | None = None,
    process: Process | None = None,
    grow: Grow | None = None,
) -> tuple[Decoded, Drafted]:
    """Decode greedily, or with a key draw as a `Sampling` config says, several tokens a pass where a draft is right.

    The cache, and that of the draft, have room for `config.max_length + draft.count` tokens after the prompt, or for as
    many as `grow` is asked for. Near the end they are given tokens that are beyond it, and that nobody uses.

    Row i draws with `fold_in(key, i)` or a key of its own as in `sample`, and the same in any batch, but other tokens
    than there. Greedy tokens are those of `greedy` as far as logits are the same: several positions at once are rounded
    otherwise than one.

    Args:
      process: as in `greedy`, of the model's logits and those of the draft: see `process_rows`.

    Raises:
      ValueError: as `greedy`; a `Sampling` config without a key or the reverse; another vocabulary than the draft's.
    """
    if isinstance(config, Sampling) != (key is not None) or not isinstance(config, Greedy) or hasattr(config, "beams"):
        raise ValueError(f"a draft is for greedy decoding, or for sampling with a key, got {config} and key={key}")
    keys = None if key is None else each_row(key, prompt.shape)

    def forward(state):
        return _advance(extend, draft, state, keys, config, process)

    def enlarge(caches, length):
        model, drafts = caches
        length += draft.count
        return model if grow is None else grow(model, length), drafts if draft.grow is None else draft.grow(
            drafts, length
        )

    begin = _start((cache, draft.state), prompt, config)
    state = staged(running, forward, begin, *sizes(config, None if grow is draft.grow is None else enlarge))
    return refuse_nan(finish(state, config)), state.drafted


def _start(caches: Any, prompt: Int[Array, "B"], config: Greedy) -> _State:
    shape, none = (*prompt.shape, config.max_length), jnp.zeros(prompt.shape, jnp.int32)
    return _State(
        t=jnp.zeros((), jnp.int32), cache=caches, token=prompt, at=none, done=none > 0,
        tokens=jnp.full(shape, config.pad, prompt.dtype), logprobs=jnp.zeros(shape, jnp.float32),
        score=jnp.zeros(prompt.shape, jnp.float32), drafted=Drafted(none, none),
    )  # fmt: skip


def _advance(
    extend: Extend, draft: Draft, state: _State, keys: Keys | None, config: Greedy, process: Process | None
) -> _State:
    """Propose, read, keep; rows that have ended take part, and nothing of it is kept."""
    at, rows, K = jnp.where(state.done, 0, state.at), jnp.arange(len(state.token))[:, None], draft.count
    keys = None if keys is None else jax.vmap(jax.random.fold_in)(keys, at)
    choose = partial(_choose, keys=keys, config=config, process=process)
    proposal, drafts = draft.propose(state.cache[1], Seen(state.token, state.tokens, at), choose)
    proposed, places = proposal.tokens.astype(state.tokens.dtype), at[:, None] + jnp.arange(K + 1)
    logits, cache = extend(state.cache[0], jnp.concatenate([state.token[:, None], proposed], axis=1), at)
    logits = logits.astype(jnp.float32)
    broken = jnp.isnan(logits).any(-1)

    # What comes before each place, as if all proposed before it were kept.
    history = state.tokens.at[rows, places[:, :-1]].set(proposed, mode="drop")[:, None]
    history = jnp.where(jnp.arange(config.max_length) < places[..., None], history, config.pad)
    flat = [x.reshape(-1, *x.shape[2:]) for x in (logits, history, places)]
    logits = process_rows(process, *flat).reshape(logits.shape)
    if keys is None:
        chosen = largest(logits, 1)[1][..., 0].astype(proposed.dtype)
        kept = jnp.cumprod(proposed == chosen[:, :-1], axis=1).sum(1)
    else:
        logits = filter_logits(logits, **config.filters)
        kept, chosen, odd = _keep(proposed, logits, proposal.logits, keys)
        broken |= odd[:, None]
    chosen = jnp.where(broken, config.pad, chosen)

    ends = is_end(chosen, config) | broken | (places + 1 >= config.last)
    if config.stop:
        written = state.tokens.at[rows, places].set(chosen, mode="drop")
        stopped = jax.vmap(lambda row, n: jax.vmap(lambda n: ends_with(row[None], n, config.stop).any())(n))
        ends |= stopped(written, places + 1)
    count = jnp.where(state.done, 0, jnp.minimum(kept, jnp.where(ends.any(1), jnp.argmax(ends, 1), K)) + 1)
    return _take(state, (cache, drafts), chosen, jnp.where(broken, jnp.nan, log_probability(logits, chosen)), ends,
                 (count, kept))  # fmt: skip


def _take(state: _State, caches: Any, chosen: Array, logprobs: Array, ends: Array, counts: Any) -> _State:
    """Write the first `count` of the chosen tokens of each row."""
    count, kept = counts
    rows, place = jnp.arange(len(count))[:, None], jnp.arange(chosen.shape[1])
    inside = place < count[:, None]
    into = jnp.where(inside, state.at[:, None] + place, state.tokens.shape[1])
    last, at = jnp.maximum(count - 1, 0)[:, None], state.at + count
    done = state.done | jnp.take_along_axis(ends, last, axis=1)[:, 0]
    return _State(
        t=jnp.where(done, 0, at).max(),
        cache=caches,
        token=jnp.where(count > 0, jnp.take_along_axis(chosen, last, axis=1)[:, 0], state.token),
        at=at,
        done=done,
        tokens=state.tokens.at[rows, into].set(chosen, mode="drop"),
        logprobs=state.logprobs.at[rows, into].set(logprobs, mode="drop"),
        score=state.score + jnp.where(inside, logprobs, 0.0).sum(1),
        drafted=Drafted(state.drafted.passes + (count > 0), state.drafted.accepted + jnp.minimum(kept, count)),
    )


def _choose(
    logits: Float[Array, "B V"], tokens: Int[Array, "B M"], t: Int[Array, "B"], i: Int[Array, ""], *,
    keys: Keys | None, config: Greedy, process: Process | None,
) -> tuple[Int[Array, "B"], Float[Array, "B V"] | None]:  # fmt: skip
    """Choose a token that is proposed."""
    logits = process_rows(process, logits.astype(jnp.float32), tokens, t)
    if keys is None:
        return largest(logits, 1)[1][:, 0].astype(tokens.dtype), None
    logits = filter_logits(logits, **config.filters)
    return sample_logits(jax.vmap(jax.random.fold_in, (0, None))(keys, 2 + i), logits).astype(tokens.dtype), logits


def _keep(
    proposed: Int[Array, "B K"], logits: Float[Array, "B T V"], drawn_from: Float[Array, "B K _"] | None, keys: Keys
) -> tuple[Int[Array, "B"], Int[Array, "B T"], Bool[Array, "B"]]:
    """Return how many proposed tokens are kept, all tokens, one drawn after them, and where the draft is no number."""
    p = jax.nn.softmax(logits)
    if drawn_from is None:
        q, odd = jax.nn.one_hot(proposed, p.shape[-1]), jnp.zeros(len(proposed), bool)
    elif drawn_from.shape[-1] != p.shape[-1]:
        raise ValueError(f"a draft has the model's vocabulary, got {drawn_from.shape[-1]} and {p.shape[-1]} tokens")
    else:
        q, odd = jax.nn.softmax(drawn_from), jnp.isnan(drawn_from).any((1, 2))
    fold = jax.vmap(jax.random.fold_in, (0, None))
    u = jax.vmap(lambda key: jax.random.uniform(key, proposed.shape[1:]))(fold(keys, 0))
    there, here = (jnp.take_along_axis(x, proposed[..., None], axis=-1)[..., 0] for x in (q, p[:, :-1]))
    kept = jnp.cumprod(u * there < here, axis=1).sum(1)
    rest = p - jnp.pad(q, ((0, 0), (0, 1), (0, 0)))  # after all K whatever the model says
    rest, own = (jnp.take_along_axis(x, kept[:, None, None], axis=1)[:, 0] for x in (jnp.maximum(rest, 0), p))
    rest = jnp.where(rest.any(-1, keepdims=True), rest, own)  # where rounding has left nothing
    drawn = sample_logits(fold(keys, 1), jnp.log(rest)).astype(proposed.dtype)
    tokens = jnp.where(jnp.arange(logits.shape[1]) < kept[:, None], jnp.pad(proposed, ((0, 0), (0, 1))), drawn[:, None])
    return kept, tokens, odd
