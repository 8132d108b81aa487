"""Decoding all tokens of a target at once: mask-predict over several lengths, and the best path of CTC.

Mask-predict (Ghazvininejad et al. 2019, https://arxiv.org/abs/1904.09324, section 3) guesses every token of a target of
a given length, then again and again those that it was least sure of. The best path of CTC (Graves et al. 2006,
https://www.cs.toronto.edu/~graves/icml_2006.pdf) has a token, or none, at every position; translators by CTC (Libovický
& Helcl 2018, https://arxiv.org/abs/1811.04719) are searched so.

Axes: B batch, W `beams` (lengths that are tried), R = B·W, M `max_length` or positions, V vocabulary, n `n_best`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flax_transformer.decode.chain import refuse_nan
from flax_transformer.decode.config import Decoded, PowerPenalty
from flax_transformer.frozen import frozen
from flax_transformer.ops.sampling import largest

Predict = Callable[[Array, Array], Array]


@frozen
class Parallel:
    """How all tokens are decoded at once; a value to compile by.

    Attributes of a target are those of `Decoded`; no end token is generated where lengths are told.
    """

    max_length: int
    """Tokens of a target at most."""
    mask: int
    """The token that stands for one not known yet."""
    pad: int = 0
    iterations: int = 10
    """Times that tokens are guessed, T; 1 takes the first guess of each."""
    beams: int = 1
    """W, lengths that are tried of every target."""
    n_best: int = 1
    length_penalty: Callable[[int], float] = PowerPenalty()
    """Gives what a target's summed log-probability is divided by; the mean of its tokens by default."""
    never: tuple[int, ...] = ()
    """Tokens that are never written."""

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        if self.iterations < 1:
            raise ValueError(f"iterations must be at least 1, got {self.iterations}")
        if not 1 <= self.n_best <= self.beams:
            raise ValueError(f"n_best must be between 1 and beams, got n_best={self.n_best}, beams={self.beams}")
        if self.beams > self.max_length:
            raise ValueError(
                f"there must be as many lengths as beams, got beams={self.beams}, {self.max_length} lengths"
            )
        if any(token < 0 for token in (self.mask, self.pad, *self.never)):
            raise ValueError(f"tokens must not be negative, got mask={self.mask}, pad={self.pad}, never={self.never}")


def mask_predict(predict: Predict, lengths: Int[Array, "B W"], config: Parallel) -> Decoded:
    """Fill targets of given lengths in `iterations` passes, and return the `n_best` of each row, best first.

    All tokens are guessed first. Before pass t of T, counted from 0, the max(1, ⌊N·(T − t) / T⌋) tokens of a target of
    length N with the least probability are masked again and guessed anew; the others keep what they had, their
    probability too. Of equal ones the earlier is masked. Of several lengths the best mean log-probability wins (or as
    `length_penalty` says), of equal ones the earlier. A quarter or a half of `max_length` positions are computed where
    no length is more.

    Args:
      predict: `predict(tokens [R, M], lengths [R]) -> logits [R, M, V]` of every position, M `max_length` or fewer;
        row b·W + w is length w of batch row b. Tokens from a row's length on are padding.
      lengths: of the targets, 1 to `max_length`.

    Raises:
      ValueError: logits that are no numbers, where they can be looked at.

    >>> wanted = jnp.array([3, 1, 2, 0])
    >>> sure = lambda tokens, lengths: 9 * jax.nn.one_hot(wanted[None, : tokens.shape[1]], 5)
    >>> mask_predict(sure, jnp.array([[3]]), Parallel(max_length=4, mask=4, iterations=2)).tokens.tolist()
    [[[3, 1, 2, 0]]]
    """
    sizes = sorted({-(-config.max_length // part) for part in (4, 2, 1)})
    fitting = jnp.searchsorted(jnp.array(sizes), lengths.max())
    filled = jax.lax.switch(fitting, [partial(_filled, predict, config, size) for size in sizes], lengths.reshape(-1))
    return refuse_nan(_ranked(*filled, lengths, config))


def _filled(predict: Predict, config: Parallel, size: int, rows: Int[Array, "R"]) -> tuple[Array, Array]:
    """Fill targets in `size` positions, none of which is longer; return tokens and log-probabilities of all."""
    real = jnp.arange(size) < rows[:, None]

    def fill(tokens: Array) -> tuple[Array, Array]:
        logits = predict(tokens, rows).astype(jnp.float32)
        norm = jax.nn.logsumexp(logits, axis=-1)
        allowed = logits.at[..., jnp.array(config.never)].set(-jnp.inf) if config.never else logits
        best, token = (found[..., 0] for found in largest(allowed, 1))
        # Written as zero behind the end; what is no number stays so, in whichever row it is.
        return token.astype(tokens.dtype), jnp.where(real, best - norm, 0.0)

    def again(t: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        tokens, logprobs = state
        count = jnp.maximum(1, rows * (config.iterations - t) // config.iterations)
        order = jnp.argsort(jnp.where(real, logprobs, jnp.inf), axis=-1, stable=True)
        rank = jnp.argsort(order, axis=-1)
        masked = (rank < count[:, None]) & real
        predicted, sure = fill(jnp.where(masked, config.mask, tokens))
        return jnp.where(masked, predicted, tokens), jnp.where(masked, sure, logprobs)

    def padded(tokens: Array) -> Array:
        return jnp.where(real, tokens, config.pad)

    tokens, logprobs = fill(padded(jnp.full(real.shape, config.mask, jnp.int32)))
    tokens, logprobs = jax.lax.fori_loop(1, config.iterations, again, (padded(tokens), logprobs))
    behind = ((0, 0), (0, config.max_length - size))
    return jnp.pad(tokens, behind, constant_values=config.pad), jnp.pad(logprobs, behind)


def _ranked(tokens: Array, logprobs: Array, lengths: Array, config: Parallel) -> Decoded:
    """Order the lengths of each row by their scores and keep the best."""
    divisors = jnp.array([config.length_penalty(n) for n in range(1, config.max_length + 1)], jnp.float32)
    tokens, logprobs = (each.reshape(*lengths.shape, -1) for each in (tokens, logprobs))
    scores = logprobs.sum(-1) / divisors[lengths - 1]
    scores, order = jax.lax.top_k(scores, config.n_best)

    def take(each):
        return jnp.take_along_axis(each, order.reshape(*order.shape, *[1] * (each.ndim - 2)), axis=1)

    return Decoded(take(tokens), take(lengths), scores, take(logprobs))


def best_path(
    logits: Float[Array, "B M V"], lengths: Int[Array, "B"], *, blank: int = 0, pad: int = 0
) -> Decoded:  # fmt: skip
    """Take the best token of every position; leave out repetitions, and then blanks. One hypothesis a row.

    The score is the log-probability of that one way of writing the text, of which there may be many. A token's
    `logprobs` has those of the positions from its first on to the next token's; the first has what comes before too.

    Args:
      lengths: positions that count.

    Raises:
      ValueError: logits that are no numbers, where they can be looked at.

    >>> path = 9 * jax.nn.one_hot(jnp.array([[0, 3, 3, 0, 3, 2, 2]]), 4)
    >>> found = best_path(path, jnp.array([6]))
    >>> found.tokens[0, 0].tolist(), found.lengths.tolist()
    ([3, 3, 2, 0, 0, 0, 0], [[3]])
    """
    logits = logits.astype(jnp.float32)
    M = logits.shape[1]
    best, path = (found[..., 0] for found in largest(logits, 1))
    real = jnp.arange(M) < lengths[:, None]
    sure = jnp.where(real, best - jax.nn.logsumexp(logits, axis=-1), 0.0)
    before = jnp.pad(path[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    kept = real & (path != before) & (path != blank)
    place = jnp.cumsum(kept, axis=-1) - 1
    rows = jnp.arange(len(path))[:, None]
    tokens = jnp.full(path.shape, pad, jnp.int32)
    tokens = tokens.at[rows, jnp.where(kept, place, M)].set(path.astype(jnp.int32), mode="drop")
    logprobs = jnp.zeros(path.shape, jnp.float32).at[rows, jnp.maximum(place, 0)].add(sure)
    found = Decoded(tokens, kept.sum(-1), sure.sum(-1), logprobs)
    return refuse_nan(Decoded(*(each[:, None] for each in found)))
