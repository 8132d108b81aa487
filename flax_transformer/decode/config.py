"""What a decoding run is told, and what it returns.

Axes: B batch, n hypotheses of one row (best first), M = `max_length` generated tokens.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import field, fields
from typing import Any, ClassVar, Literal, NamedTuple

import jax
from jaxtyping import Array, Float, Int

from flax_transformer.frozen import frozen
from flax_transformer.ops.sampling import Cutoff

SHORTEST = 32
"""Generated tokens a cache has room for at first. Every doubling is compiled by itself."""

SMALLEST = 64
"""Tokens that a program for any `top_k` looks at, at least: it serves 50, the usual one, and all below."""


def room(count: int) -> int:
    """Round up to one of few sizes, each compiled once: 32, 64 and so on.

    >>> [room(n) for n in (1, 32, 33, 100)]
    [32, 32, 64, 128]
    """
    return max(SHORTEST, 2 ** math.ceil(math.log2(count)))


def _known(number: Any) -> bool:
    """Whether a number is there to be checked: under a transform it may be traced, or a placeholder."""
    return isinstance(number, int | float)


class Decoded(NamedTuple):
    """Generated sequences, always with a hypothesis axis: [B, n, M]; greedy and sampling have n = 1.

    `tokens` leaves out the prompt, contains the end token or stop sequence where one was generated, and is padded
    after it. `lengths` counts the generated tokens, these included. `logprobs` are per token, under the distribution
    the token was chosen from (after `process` and, in sampling, the filters), 0 at padding; their sum is the
    log-probability of the sequence. `scores` is what hypotheses are ranked by: that sum, in beam search divided by
    the length penalty. Where a row has fewer than n hypotheses, the rest score below -1e6 and mean nothing. A row for
    which the step gave logits that are no numbers (NaN) ends there and scores NaN.
    """

    tokens: Int[Array, "*B M"]
    lengths: Int[Array, "*B"]
    scores: Float[Array, "*B"]
    logprobs: Float[Array, "*B M"]

    @property
    def best(self) -> "Decoded":
        """The best hypothesis of each row, without the hypothesis axis: tokens are [B, M]."""
        return Decoded(*(field[:, 0] for field in self))


@frozen
class PowerPenalty:
    """Divide by length ** alpha, as fairseq and Hugging Face do: 0 ranks by sum, 1 by mean log-probability.

    >>> PowerPenalty(alpha=2.0)(3)
    9.0
    """

    alpha: float = 1.0

    def __call__(self, length: int) -> float:
        """Return the divisor for hypotheses of `length` generated tokens, end token included."""
        return float(length) ** self.alpha


@frozen
class GNMTPenalty:
    """Divide by ((5 + length) / 6) ** alpha, Wu et al. 2016, https://arxiv.org/abs/1609.08144, equation 14.

    >>> GNMTPenalty(alpha=1.0)(7)
    2.0
    """

    alpha: float = 0.6

    def __call__(self, length: int) -> float:
        """Return the divisor for hypotheses of `length` generated tokens, end token included."""
        return ((5.0 + length) / 6.0) ** self.alpha


@jax.tree_util.register_pytree_node_class
@frozen
class Greedy:
    """Take the most probable token each time; the base of the other two.

    A value to compile by, and a pytree: as an argument of a compiled function it compiles once for all values of the
    fields in `TRACED`.

    `max_length` is the number of generated tokens at most: `max_new_tokens` in Hugging Face `generate`, whose own
    `max_length` counts the prompt too (with an encoder, the decoder's start token is the prompt). `eos` is the token
    that ends a sequence, several such tokens, or `()` for none. `pad` fills up finished rows; it is also what the step
    is fed for them. A row also ends once its generated tokens end with one of the `stop` sequences, which it keeps.
    `limit` ends all rows before `max_length`, which remains the size of what is returned.
    """

    TRACED: ClassVar[tuple[str, ...]] = ("limit",)

    max_length: int
    eos: int | tuple[int, ...]
    pad: int = 0
    stop: tuple[tuple[int, ...], ...] = ()
    limit: int | Int[Array, ""] | None = None

    def tree_flatten(self) -> tuple[list[Any], tuple[tuple[str, Any], ...]]:
        """Split into what may be traced and what is compiled in, as JAX asks."""
        static = tuple((each.name, getattr(self, each.name)) for each in fields(self) if each.name not in self.TRACED)
        return [getattr(self, name) for name in self.TRACED], static

    @classmethod
    def tree_unflatten(cls, static: tuple[tuple[str, Any], ...], traced: Iterable[Any]) -> "Greedy":
        """Rebuild without `__init__`, which checks: JAX also puts placeholders where numbers belong."""
        config = object.__new__(cls)
        for name, value in (*static, *zip(cls.TRACED, traced, strict=True)):
            object.__setattr__(config, name, value)
        return config

    def __post_init__(self) -> None:
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {self.max_length}")
        if any(not sequence or min(sequence) < 0 for sequence in self.stop):
            raise ValueError(f"stop sequences must have tokens, none of them negative, got {self.stop}")
        if any(token < 0 for token in (self.pad, *self.ends)):
            raise ValueError(f"eos and pad must not be negative, got eos={self.eos}, pad={self.pad}")
        if _known(self.limit) and not 1 <= self.limit <= self.max_length:
            raise ValueError(f"limit must be between 1 and max_length={self.max_length}, got {self.limit}")

    @property
    def last(self) -> int | Int[Array, ""]:
        """Generated tokens at most."""
        return self.max_length if self.limit is None else self.limit

    @property
    def ends(self) -> tuple[int, ...]:
        """The end tokens as a tuple."""
        return self.eos if isinstance(self.eos, tuple) else (self.eos,)

    @property
    def stages(self) -> tuple[int, ...]:
        """Numbers of tokens a growing cache has room for, one stage after another: 32, 64, … and `max_length`.

        >>> Greedy(max_length=100, eos=0).stages
        (32, 64, 100)
        """
        stages = [SHORTEST]
        while stages[-1] < self.max_length:
            stages.append(2 * stages[-1])
        return (*stages[:-1], self.max_length)


@jax.tree_util.register_pytree_node_class
@frozen
class Sampling(Greedy):
    """Draw each token after the filters of `ops.sampling.filter_logits`, in its order."""

    TRACED: ClassVar[tuple[str, ...]] = ("limit", "temperature", "top_k", "top_p", "min_p", "typical_p", "cutoff")

    temperature: float | Float[Array, ""] = 1.0
    top_k: int | None = None
    top_p: float | Float[Array, ""] = 1.0
    min_p: float | Float[Array, ""] | None = None
    typical_p: float | Float[Array, ""] = 1.0
    cutoff: Cutoff | None = None
    """Epsilon, eta and top-H."""
    most: int | None = field(init=False, repr=False, default=None)
    """What `top_k` does not exceed: the size that is compiled in."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if _known(self.temperature) and not self.temperature > 0:
            raise ValueError(f"temperature must be positive (greedy is the limit at 0), got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, or None for no limit, got {self.top_k}")
        for name in ("top_p", "typical_p"):
            if _known(value := getattr(self, name)) and not 0 < value <= 1:
                raise ValueError(f"{name} must be above 0 and at most 1, got {value}")
        if _known(self.min_p) and not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be between 0 and 1, got {self.min_p}")
        if self.top_k is not None:
            object.__setattr__(self, "most", max(SMALLEST, room(self.top_k)))

    @property
    def filters(self) -> dict[str, Any]:
        """The options of `filter_logits`."""
        return {name: getattr(self, name) for name in (*self.TRACED[1:], "most")}


@jax.tree_util.register_pytree_node_class
@frozen
class Beam(Greedy):
    """Keep the `beams` best prefixes and return the `n_best` best hypotheses found.

    `length_penalty` maps a length to the positive divisor of the summed log-probability; it is called in Python,
    once per possible length. `early_stopping` says when a row with `beams` finished hypotheses is done, with the
    meaning it has in Hugging Face `generate`:

    - True: at once;
    - False: when the best running prefix, scored as if it ended at its present length, is no better than the worst
      finished hypothesis. This is a heuristic: a penalty that favours length could still lift the prefix;
    - "never": when no continuation up to `max_length` could be better than the worst finished hypothesis.
    """

    beams: int = 4
    length_penalty: Callable[[int], float] = PowerPenalty()
    early_stopping: bool | Literal["never"] = False
    n_best: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beams < 1:
            raise ValueError(f"beams must be at least 1, got {self.beams}")
        if not 1 <= self.n_best <= self.beams:
            raise ValueError(f"n_best must be between 1 and beams, got n_best={self.n_best}, beams={self.beams}")
        if self.early_stopping not in (True, False, "never"):
            raise ValueError(f'early_stopping must be True, False or "never", got {self.early_stopping!r}')
