"""Constraints on what is generated, as Hugging Face `generate` understands them, for every loop's `process`.

Axes: R rows of logits (B prompts, or B·W in beam search), V vocabulary, P prompt tokens, M `max_length`, S = P + M.
Everything has a fixed shape; what has been generated so far is the first t of M tokens.
Repetition penalty: Keskar et al. 2019, https://arxiv.org/abs/1909.05858. No repeated n-gram: Paulus et al. 2017,
https://arxiv.org/abs/1705.04304.
"""

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flax_transformer.decode.chain import Process, ends_with
from flax_transformer.decode.timestamp import Timestamps
from flax_transformer.frozen import frozen


@frozen
class SourceRules:
    """What generated sequences have to do with what they are made from: an encoder's source, or else the prompt."""

    repetition_penalty: float = 1.0
    """Above 1 the tokens of the source become more likely: `encoder_repetition_penalty`."""
    no_repeat_ngram: int = 0
    """n of the n-grams of the source that may not occur: `encoder_no_repeat_ngram_size`; 0 for no such rule."""

    def __post_init__(self) -> None:
        if not self.repetition_penalty > 0 or self.no_repeat_ngram < 0:
            raise ValueError(
                "of a source repetition_penalty must be positive and no_repeat_ngram not negative, got "
                f"{self.repetition_penalty} and {self.no_repeat_ngram}"
            )


@frozen
class Constraints:
    """What generated sequences must and must not contain; the defaults ask for nothing.

    The names are those of Hugging Face where the meaning is. Where constraints contradict each other the later field
    wins, which is the order in which they are applied.
    """

    bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    """Token sequences and what is added to the logits of their last tokens where the others stand before: above 0 they
    become more likely."""
    source: SourceRules = SourceRules()
    """Rules on the source, which `make_process` is given."""
    repetition_penalty: float = 1.0
    """Divides positive logits of tokens seen before, multiplies negative ones: above 1 they become less likely."""
    no_repeat_ngram: int = 0
    """n of the n-grams that may occur only once, prompt included; 0 for no such rule."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that may not be completed. A sequence that is just an end token is no bad word."""
    min_length: int = 0
    """Generated tokens before an end token may follow: `min_new_tokens` there, whose `min_length` counts the prompt."""
    eos: int | tuple[int, ...] = ()
    """The end tokens that `min_length` holds back: those of the decoding config."""
    first: int | None = None
    """Token forced at the start: `forced_bos_token_id`, which is there ignored after prompts longer than one token."""
    last: int | tuple[int, ...] | None = None
    """Token forced where `max_length` is reached, or several to choose from, all equal: `forced_eos_token_id`."""
    decay: tuple[int, float] | None = None
    """After so many generated tokens, how much more likely an end token becomes with each: its logit grows by the
    n-th power of this number, less one, times its size: `exponential_decay_length_penalty`."""
    suppress: tuple[int, ...] = ()
    """Tokens that are never generated."""
    suppress_first: tuple[int, ...] = ()
    """Tokens that generated ones do not begin with, after `first` if there is one: `begin_suppress_tokens`."""
    timestamps: Timestamps | None = None
    """Rules of telling times among the words; None: there are none."""
    renormalize: bool = False
    """Make what is left a distribution again; only beam search adds up log-probabilities that are none otherwise."""

    def __post_init__(self) -> None:
        if not self.repetition_penalty > 0:
            raise ValueError(f"repetition_penalty must be positive (1 changes nothing), got {self.repetition_penalty}")
        if min(self.no_repeat_ngram, self.min_length) < 0:
            raise ValueError(
                f"no_repeat_ngram and min_length must not be negative, got {self.no_repeat_ngram} and {self.min_length}"
            )
        if not all(sequence for sequence, _ in self.bias):
            raise ValueError(f"a bias is of at least one token, got {self.bias}")
        if self.decay is not None and (not self.ends or not self.decay[1] > 0):
            raise ValueError(f"decay must be positive and needs eos, the tokens that it is of, got {self.decay}")
        if not all(self.bad_words):
            raise ValueError(f"bad_words must have at least one token each, got {self.bad_words}")
        if min(self.tokens, default=0) < 0:
            raise ValueError(f"tokens must not be negative, got {min(self.tokens)}")
        if self.min_length and not self.ends:
            raise ValueError(f"min_length needs eos, the tokens it holds back, got min_length={self.min_length}")
        if forced := {*_several(self.first), *_several(self.last)} & {*self.suppress}:
            raise ValueError(f"a token cannot be both forced and suppressed, got {sorted(forced)}")

    @property
    def ends(self) -> tuple[int, ...]:
        """The end tokens as a tuple."""
        return _several(self.eos)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All tokens named in any constraint."""
        forced = (*_several(self.first), *_several(self.last))
        times = () if self.timestamps is None else (self.timestamps.begin, self.timestamps.end)
        biased = sum((sequence for sequence, _ in self.bias), ())
        return (*biased, *sum(self.bad_words, ()), *self.ends, *forced, *self.suppress, *self.suppress_first, *times)


def make_process(
    constraints: Constraints,
    prompt: Int[Array | np.ndarray, "B P"] | None = None,
    padding: Int[Array | np.ndarray, "B"] | None = None,
    limit: int | Int[Array, ""] | None = None,
    *,
    source: Int[Array | np.ndarray, "B S"] | None = None,
    any_numbers: bool = False,
) -> Process | None:
    """Make the `process` that keeps `greedy`, `sample` or `beam_search` within the constraints; None if there are none.

    Args:
      prompt: what precedes the generated tokens and counts as seen; to an encoder-decoder the decoder's start token.
        Rows shorter than P are padded at their beginning. In beam search each row is that of W hypotheses.
      padding: pad tokens at the beginning of each row, which then are not penalised as repeated. N-grams and bad words
        look at them even so, as they do in Hugging Face, unless they are negative.
      limit: that of the decoding config, where `last` is forced; `max_length` by default.
      source: tokens that the rules on it are about, negative where there is none.
      any_numbers: whether the program is also to serve a penalty and a `min_length` where now there is none; it costs
        a gather of the tokens so far at each step.

    The result is a pytree, so that it can be passed through `jax.jit` and shares its compiled programs, whatever the
    penalty, `min_length` and limit.

    >>> process = make_process(Constraints(no_repeat_ngram=2, suppress=(0,)), jnp.array([[3, 1, 3]]))
    >>> process(jnp.zeros((1, 4)), jnp.zeros((1, 9), int), jnp.array(0)).tolist()
    [[-inf, -inf, 0.0, 0.0]]
    """
    if constraints.source != SourceRules() and source is None:
        raise ValueError(f"rules on a source need its tokens, got none and {constraints.source}")
    if padding is not None and (prompt is None or padding.shape != prompt.shape[:1]):
        shape = None if prompt is None else prompt.shape
        raise ValueError(f"padding must be one number for each row of the prompt, got {padding.shape}, prompt={shape}")
    c = constraints
    plain = replace(c, min_length=0, decay=None, eos=()) == Constraints()
    if plain and not c.min_length and c.decay is None and not any_numbers:
        return None
    numbers = {
        "penalty": None if c.repetition_penalty == 1 and not any_numbers else c.repetition_penalty,
        "min_length": c.min_length if any_numbers and c.ends else c.min_length or None,
        "limit": limit,
    }
    source = None if constraints.source == SourceRules() else source
    return _Constrained(replace(c, repetition_penalty=1.0, min_length=0), prompt, padding, source, **numbers)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Constrained:
    """Constraints with their numbers beside them, which are not compiled in; None where there is no such constraint."""

    constraints: Constraints = field(metadata={"static": True})
    prompt: Int[Array | np.ndarray, "B P"] | None
    padding: Int[Array | np.ndarray, "B"] | None
    source: Int[Array | np.ndarray, "B S"] | None
    penalty: float | Float[Array, ""] | None
    min_length: int | Int[Array, ""] | None
    limit: int | Int[Array, ""] | None

    def __call__(
        self, logits: Float[Array, "R V"], tokens: Int[Array, "R M"], t: Int[Array, ""]
    ) -> Float[Array, "R V"]:
        c, vocabulary = self.constraints, logits.shape[-1]
        if max(c.tokens, default=0) >= vocabulary:
            raise ValueError(f"tokens must be below the vocabulary size, got {max(c.tokens)}, V={vocabulary}")
        words = tuple(word for word in c.bad_words if word not in {(end,) for end in c.ends})
        seen, first, count = self._seen(tokens, t)

        if c.bias:
            logits = add_bias(logits, seen, count, c.bias)
        if self.source is not None:
            source = jnp.repeat(self.source, len(tokens) // len(self.source), axis=0).astype(tokens.dtype)
            known = jnp.where(source < 0, vocabulary, source)
            logits = penalize_repetition(logits, known, 0, known.shape[1], 1.0 / c.source.repetition_penalty)
            if c.source.no_repeat_ngram:
                logits = forbid_source_ngram(logits, source, seen, count, c.source.no_repeat_ngram)
        if self.penalty is not None:
            logits = penalize_repetition(logits, seen, first, count, self.penalty)
        if c.no_repeat_ngram:
            logits = forbid_repeated_ngram(logits, seen, count, c.no_repeat_ngram)
        if words:
            logits = forbid_words(logits, seen, count, words)
        if self.min_length is not None:
            logits = jnp.where(_among(c.ends, vocabulary) & (t < self.min_length), -jnp.inf, logits)
        if c.first is not None:
            logits = jnp.where(t == 0, _only(c.first, vocabulary), logits)
        if c.last is not None:
            end = tokens.shape[-1] if self.limit is None else self.limit
            logits = jnp.where(t == end - 1, _only(c.last, vocabulary), logits)
        if c.decay is not None:
            more = jnp.abs(logits) * (c.decay[1] ** jnp.maximum(t - c.decay[0], 0).astype(jnp.float32) - 1.0)
            logits = logits + jnp.where(_among(c.ends, vocabulary) & jnp.isfinite(logits), more, 0.0)
        if c.suppress:
            logits = jnp.where(_among(c.suppress, vocabulary), -jnp.inf, logits)
        if c.suppress_first:
            begin = 0 if c.first is None else 1
            logits = jnp.where(_among(c.suppress_first, vocabulary) & (t == begin), -jnp.inf, logits)
        if c.timestamps is not None:
            logits = c.timestamps(logits, tokens, t)
        if c.renormalize:
            total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
            logits = logits - jnp.where(jnp.isfinite(total), total, 0.0)
        return logits

    def each(self, logits: Float[Array, "R V"], tokens: Int[Array, "R M"], t: Int[Array, "R"]) -> Float[Array, "R V"]:
        """Process rows of which each has generated another number of tokens: see `process_rows`."""

        names = "prompt", "padding", "source"

        def one(own, logits, tokens, t):
            return replace(self, **dict(zip(names, own, strict=True)))(logits[None], tokens[None], t)[0]

        def repeat(x):
            return jnp.repeat(x, len(logits) // len(x), axis=0)[:, None]

        given = tuple(None if x is None else repeat(x) for x in (getattr(self, name) for name in names))
        return jax.vmap(one)(given, logits, tokens, t)

    def _seen(self, tokens: Int[Array, "R M"], t: Int[Array, ""]) -> tuple[Array, Array | int, Array]:
        """Put the prompt before the generated tokens; say too where they begin in each row, and where they end."""
        if self.prompt is None:
            return tokens, 0, t
        rows, length = self.prompt.shape
        if len(tokens) % rows:
            raise ValueError(f"rows must be a multiple of the prompt's, got R={len(tokens)}, B={rows}")

        def repeat(x):
            return jnp.repeat(x, len(tokens) // rows, axis=0)

        seen = jnp.concatenate([repeat(self.prompt).astype(tokens.dtype), tokens], axis=-1)
        return seen, 0 if self.padding is None else repeat(self.padding), length + t


def process_rows(
    process: Process | None, logits: Float[Array, "R V"], tokens: Int[Array, "R M"], t: Int[Array, "R"]
) -> Float[Array, "R V"]:
    """Process rows of which each has generated another number of tokens.

    Args:
      process: as in `greedy`; None changes nothing. It is given each row by itself, unless it has a method `each` with
        these arguments, as what `make_process` makes has, which knows of each row's own prompt.
    """
    if process is None:
        return logits
    if hasattr(process, "each"):
        return process.each(logits, tokens, t)
    return jax.vmap(lambda logits, tokens, t: process(logits[None], tokens[None], t)[0])(logits, tokens, t)


def penalize_repetition(
    logits: Float[Array, "R V"],
    tokens: Int[Array, "R S"],
    first: int | Int[Array, "R"],
    count: int | Int[Array, ""],
    penalty: float | Float[Array, ""],
) -> Float[Array, "R V"]:
    """Make the tokens at positions `first` to `count` less likely, each once however often it occurs.

    >>> penalize_repetition(jnp.array([[4.0, 4.0, -4.0]]), jnp.array([[0, 2, 2, 1]]), 0, 3, 2.0).tolist()
    [[2.0, 4.0, -8.0]]
    """
    position = jnp.arange(tokens.shape[-1])
    inside = (position >= jnp.asarray(first)[..., None]) & (position < count)
    old = jnp.take_along_axis(logits, tokens, axis=-1, mode="clip")
    # The product that XLA makes of a division by a constant, so that a traced penalty gives the same bits.
    new = jnp.where(old < 0, old * penalty, old * (1.0 / jnp.asarray(penalty, jnp.float32)))
    return _set(logits, jnp.where(inside, tokens, logits.shape[-1]), new)


def add_bias(
    logits: Float[Array, "R V"],
    tokens: Int[Array, "R S"],
    count: int | Int[Array, ""],
    bias: tuple[tuple[tuple[int, ...], float], ...],
) -> Float[Array, "R V"]:
    """Add to the logits of what would complete a sequence at the end of the first `count` tokens.

    >>> add_bias(jnp.zeros((1, 4)), jnp.array([[3, 1, 0]]), 2, (((2,), 1.0), ((1, 3), 2.0), ((2, 0), 4.0))).tolist()
    [[0.0, 0.0, 1.0, 2.0]]
    """
    begun = ends_with(tokens, count, tuple(sequence[:-1] for sequence, _ in bias))
    last, more = (jnp.array(x) for x in zip(*((sequence[-1], each) for sequence, each in bias), strict=True))
    return logits.at[:, last].add(jnp.where(begun, more.astype(logits.dtype), 0.0))


def forbid_source_ngram(
    logits: Float[Array, "R V"],
    source: Int[Array, "R L"],
    tokens: Int[Array, "R S"],
    count: int | Int[Array, ""],
    n: int,
) -> Float[Array, "R V"]:
    """Forbid what would complete an n-gram of the source at the end of the first `count` tokens.

    Negative tokens stand for none.

    >>> forbid_source_ngram(jnp.zeros((1, 4)), jnp.array([[1, 2, 1, 3]]), jnp.array([[0, 1, 0]]), 2, 2).tolist()
    [[0.0, 0.0, -inf, -inf]]
    """
    windows = source.shape[-1] - n + 1
    if windows < 1:
        return logits
    last = jax.lax.dynamic_slice_in_dim(tokens, jnp.maximum(count - (n - 1), 0), n - 1, axis=-1)
    match = (source[:, n - 1 :] >= 0) & (count >= n - 1)
    for i in range(n - 1):
        match &= (source[:, i : i + windows] == last[:, i, None]) & (last[:, i, None] >= 0)
    return _set(logits, jnp.where(match, source[:, n - 1 :], logits.shape[-1]), -jnp.inf)


def forbid_repeated_ngram(
    logits: Float[Array, "R V"], tokens: Int[Array, "R S"], count: int | Int[Array, ""], n: int
) -> Float[Array, "R V"]:
    """Forbid what would complete an n-gram that occurs among the first `count` tokens, in O(R·S·n).

    Negative tokens stand for none.

    >>> forbid_repeated_ngram(jnp.zeros((1, 4)), jnp.array([[1, 2, 3, 1, 0, 0]]), 4, 2).tolist()
    [[0.0, 0.0, -inf, 0.0]]
    """
    windows = tokens.shape[-1] - n + 1
    if windows < 1:
        return logits
    # Where there are fewer than n - 1 tokens yet, the slice is not the last ones; but then no window is complete.
    last = jax.lax.dynamic_slice_in_dim(tokens, jnp.maximum(count - (n - 1), 0), n - 1, axis=-1)
    match = (jnp.arange(windows) + n <= count) & (tokens[:, n - 1 :] >= 0)
    for i in range(n - 1):
        match &= (tokens[:, i : i + windows] == last[:, i, None]) & (last[:, i, None] >= 0)
    return _set(logits, jnp.where(match, tokens[:, n - 1 :], logits.shape[-1]), -jnp.inf)


def forbid_words(
    logits: Float[Array, "R V"],
    tokens: Int[Array, "R S"],
    count: int | Int[Array, ""],
    words: tuple[tuple[int, ...], ...],
) -> Float[Array, "R V"]:
    """Forbid what would complete one of the words at the end of the first `count` tokens.

    >>> forbid_words(jnp.zeros((1, 4)), jnp.array([[3, 1, 0]]), 2, ((2,), (1, 3), (2, 0))).tolist()
    [[0.0, 0.0, -inf, -inf]]
    """
    begun = ends_with(tokens, count, tuple(word[:-1] for word in words))
    last = jnp.array([word[-1] for word in words])
    return _set(logits, jnp.where(begun, last, logits.shape[-1]), -jnp.inf)


def _set(
    logits: Float[Array, "R V"], tokens: Int[Array, "R K"], value: float | Float[Array, "R K"]
) -> Float[Array, "R V"]:
    """Set the logits of some tokens of each row; V stands for no token."""
    return logits.at[jnp.arange(len(tokens))[:, None], tokens].set(value, mode="drop")


def _several(tokens: int | tuple[int, ...] | None) -> tuple[int, ...]:
    return () if tokens is None else tokens if isinstance(tokens, tuple) else (tokens,)


def _among(tokens: tuple[int, ...], vocabulary: int) -> np.ndarray:
    return np.isin(np.arange(vocabulary), tokens)


def _only(tokens: int | tuple[int, ...], vocabulary: int) -> np.ndarray:
    """Logits that leave nothing else; 0, so that as log-probabilities they cost a hypothesis nothing."""
    return np.where(_among(_several(tokens), vocabulary), np.float32(0), np.float32(-np.inf))
