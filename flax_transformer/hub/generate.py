"""Generation with Hugging Face's settings, by the decoding loops of this package.

Axes: B prompts, P prompt tokens, n sequences returned a prompt, M generated tokens at most.
"""

import dataclasses
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from flax_transformer.decode import (
    Beam,
    Constraints,
    Decoded,
    Greedy,
    PowerPenalty,
    Sampling,
    beam_search,
    greedy,
    make_process,
    sample,
    stream,
)
from flax_transformer.hub.call import causal_lm, seq2seq_lm, visible
from flax_transformer.hub.family import Fields
from flax_transformer.models.causal import Causal
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.nn import own_tables
from flax_transformer.train.config import fits

Tokens = int | tuple[int, ...] | None
Seen = Int[Array | np.ndarray, "B P"] | Bool[Array | np.ndarray, "B P"] | None

UNSUPPORTED = {
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "penalty_alpha": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_p": None,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "renormalize_logits": False,
    "remove_invalid_values": False,
    "exponential_decay_length_penalty": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "guidance_scale": None,
    "dola_layers": None,
}
"""Settings of a generation_config.json that change what is generated, and the value that changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to generate, under the names and with the meaning Hugging Face's `generate` gives them."""

    max_new_tokens: int | None = None
    """Generated tokens at most; 20 where `max_length` does not say either."""
    max_length: int | None = None
    """The same, with the prompt counted in."""
    min_new_tokens: int = 0
    min_length: int = 0
    """As `min_new_tokens`, with the prompt counted in."""
    num_beams: int = 1
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = 50
    """Of sampling; 0 or None for no limit."""
    top_p: float = 1.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_return_sequences: int = 1
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    """Token sequences that end a row; they stay at its end."""
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: Tokens = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: Tokens = None

    def __post_init__(self):
        if self.do_sample and self.num_beams > 1:
            raise ValueError(f"sampling has no beams, got do_sample=True, num_beams={self.num_beams}")
        if not 1 <= self.num_return_sequences <= (10**6 if self.do_sample else self.num_beams):
            raise ValueError(
                "as many sequences can be returned as there are beams, or any number when sampling, got "
                f"num_return_sequences={self.num_return_sequences}, num_beams={self.num_beams}"
            )

    @property
    def ends(self) -> tuple[int, ...]:
        """The end tokens."""
        return _several(self.eos_token_id)

    @property
    def pad(self) -> int:
        """What fills up finished rows: the padding token, or the first end token where there is none."""
        return (*_several(self.pad_token_id), *self.ends, 0)[0]

    def new_tokens(self, prompt: int) -> int:
        """Give the number of tokens to generate at most after a prompt of that many."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if self.max_length is None:
            return 20
        if self.max_length <= prompt:
            raise ValueError(
                f"max_length counts the prompt and must be above it, got max_length={self.max_length} and {prompt} "
                "tokens of prompt; max_new_tokens does not count it"
            )
        return self.max_length - prompt

    def config(self, prompt: int) -> Greedy | Sampling | Beam:
        """Make the config of the decoding loop."""
        shared = {
            "max_length": self.new_tokens(prompt), "eos": self.ends, "pad": self.pad, "stop": self.stop_sequences
        }  # fmt: skip
        if self.do_sample:
            top_k = self.top_k or None
            return Sampling(**shared, temperature=self.temperature, top_k=top_k, top_p=self.top_p)
        if self.num_beams == 1:
            return Greedy(**shared)
        return Beam(
            **shared, beams=self.num_beams, length_penalty=PowerPenalty(alpha=self.length_penalty),
            early_stopping=self.early_stopping, n_best=self.num_return_sequences,
        )  # fmt: skip

    def constraints(self, prompt: int) -> Constraints:
        """Make the constraints on what is generated after a prompt of that many tokens."""
        return Constraints(
            repetition_penalty=self.repetition_penalty,
            no_repeat_ngram=self.no_repeat_ngram_size,
            bad_words=self.bad_words_ids,
            min_length=max(self.min_new_tokens, self.min_length - prompt, 0) if self.ends else 0,
            eos=self.ends,
            first=self.forced_bos_token_id if prompt == 1 else None,
            last=self.forced_eos_token_id,
            suppress=self.suppress_tokens,
        )


NAMES = tuple(each.name for each in dataclasses.fields(Settings))


def make_settings(config: Fields, generation: Fields, changes: Mapping[str, Any]) -> Settings:
    """Combine what config.json and generation_config.json say, the latter if there is one, with changes to it.

    Raises:
      ValueError: an unknown setting, or one in generation_config.json that is not supported.
    """
    unknown = [name for name in changes if name not in NAMES]
    if unknown:
        raise ValueError(f"there is no setting {', '.join(unknown)}; there are {', '.join(NAMES)}")
    tokens = {name: config[name] for name in NAMES if name.endswith("token_id") and config.get(name) is not None}
    stored = generation or config
    for name, harmless in UNSUPPORTED.items():
        if stored.get(name, harmless) not in (harmless, None):
            raise ValueError(f"generation_config.json has {name}={stored[name]!r}, which is not supported")
    found = {name: stored[name] for name in NAMES if stored.get(name) is not None}
    if "max_new_tokens" in changes or "max_length" in changes:
        found = {name: value for name, value in found.items() if name not in ("max_new_tokens", "max_length")}
    files = (("config.json", tokens), ("generation_config.json" if generation else "config.json", found))
    read = {name: _setting(file, name, value) for file, values in files for name, value in values.items()}
    return Settings(**read | {name: _frozen(value) for name, value in changes.items()})


def _setting(file: str, name: str, value: Any) -> Any:
    value, hint = _frozen(value), Settings.__annotations__[name]
    numbers = [number for number in jax.tree.leaves(value) if not isinstance(number, str)]
    if not fits(value, hint) or not all(abs(number) < 2**31 for number in numbers):
        raise ValueError(
            f"{file} must give {name} as {getattr(hint, '__name__', hint)}, below 2**31, got {value!r:.99}"
        )
    return value


def generate(
    pretrained: Any,
    input_ids: Int[Array | np.ndarray, "B P"],
    attention_mask: Seen = None,
    *,
    key: PRNGKeyArray | None = None,
    **settings: Any,
) -> Int[Array, "R T"]:
    """Continue prompts, or answer sources: token ids as Hugging Face's `generate` returns them.

    The n sequences of a prompt stand after one another. They begin with the prompt, those of an encoder-decoder with
    its start token, and are padded after their end.

    Args:
      pretrained: a `Pretrained` that is a language model.
      attention_mask: 0 where there is padding; prompts are padded on the left.
      key: what sampling draws from.
      settings: fields of `Settings`; the checkpoint's own by default.

    Raises:
      ValueError: a model that generates nothing, an empty prompt, padding after a prompt, sampling without a key, more
        tokens than the model has positions, or settings that make no sense.
    """
    job = _prepare(pretrained, input_ids, attention_mask, key, settings)
    return _sequences(job.prompt, _run(pretrained.decoder, job, key))


def stream_tokens(
    pretrained: Any,
    input_ids: Int[Array | np.ndarray, "B P"],
    attention_mask: Seen = None,
    *,
    key: PRNGKeyArray | None = None,
    chunk: int = 1,
    **settings: Any,
) -> Generator[Int[np.ndarray, "B C"], None, Decoded]:
    """Yield the tokens that `generate` would, `chunk` of every row at a time, without prompts; rows end as there.

    Raises:
      ValueError: what `generate` raises, at once; and beams, whose tokens may change until the end.
    """
    job = _prepare(pretrained, input_ids, attention_mask, key, settings)
    if isinstance(job.config, Beam):
        raise ValueError(f"beam search cannot be streamed, got num_beams={job.config.beams}")
    model = pretrained.decoder
    return stream(
        Partial(type(model).step, model), _begin(model, job), job.prompt[:, -1], job.config,
        key=key if job.sampled else None, process=make_process(job.constraints, job.prompt, job.padding),
        grow=partial(_grow, job.before), chunk=chunk,
    )  # fmt: skip


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Job:
    """A call of `generate`, checked; a pytree of its arrays."""

    start: "Start" = field(metadata={"static": True})
    ids: Any
    mask: Any
    prompt: Any
    padding: Any
    config: Greedy = field(metadata={"static": True})
    constraints: Constraints = field(metadata={"static": True})

    @property
    def before(self) -> int:
        """Tokens of the prompt that are read before the loop begins."""
        return self.prompt.shape[1] - 1

    def cache(self, model: Any, beams: int = 1) -> Any:
        """Read the prompt but for its last token."""
        seen = self.padding if self.start is STARTS[causal_lm] else self.mask
        return self.start.cache(model, self.ids, seen, self.config.stages[0], beams)

    @property
    def sampled(self) -> bool:
        return isinstance(self.config, Sampling)


def _prepare(pretrained: Any, input_ids: Any, attention_mask: Any, key: Any, settings: Mapping[str, Any]) -> _Job:
    chosen = make_settings(pretrained.config, pretrained.generation, settings)
    call = pretrained.architecture.call
    if call not in STARTS:
        raise ValueError(f"a {pretrained.config['architectures'][0]} generates no text: it is no language model")
    ids = jnp.asarray(input_ids)
    mask = None if attention_mask is None else jnp.asarray(attention_mask, jnp.int32)
    if ids.ndim != 2 or ids.shape[1] == 0:
        raise ValueError(f"a prompt has at least one token, in rows [B, P], got an array of shape {ids.shape}")
    pretrained.check_ids("input_ids", ids)
    if chosen.do_sample and key is None:
        raise ValueError("sampling needs a key: generate(…, do_sample=True, key=jax.random.key(0))")
    if chosen.do_sample:
        ids, mask = jax.tree.map(lambda x: jnp.repeat(x, chosen.num_return_sequences, axis=0), (ids, mask))
    prompt, padding = STARTS[call].prompt(ids, mask, chosen)
    config = chosen.config(prompt.shape[1])
    _check_length(pretrained.model, prompt.shape[1] + config.max_length)
    return _Job(STARTS[call], ids, mask, prompt, padding, config, chosen.constraints(prompt.shape[1]))


@dataclass(frozen=True)
class Start:
    """How a kind of model begins to generate."""

    prompt: Callable[..., tuple[Array, Array | None]]
    """`prompt(ids, mask, settings)`: the tokens that generated ones follow, and how many of each row are padding."""
    cache: Callable[..., Any]
    """`cache(model, ids, mask, length, beams)`: all of the prompt read but its last token, with room for `length`."""


def _causal_prompt(ids: Array, mask: Array | None, settings: Settings) -> tuple[Array, Array | None]:
    if mask is None or isinstance(mask, jax.core.Tracer):
        return ids, None if mask is None else jnp.sum(mask == 0, axis=1)
    if mask.shape != ids.shape or bool((jnp.diff(mask != 0, axis=1) & (mask[:, :-1] != 0)).any()):
        raise ValueError("prompts of a decoder-only model are padded on the left, got an attention_mask with 0 after 1")
    if not bool(mask[:, -1].all()):
        raise ValueError("a prompt has at least one token, got a row of attention_mask that is all 0")
    padding = jnp.sum(mask == 0, axis=1)
    return ids, padding if bool(padding.any()) else None


def _causal_cache(model: Causal, ids: Array, padding: Array | None, length: int, beams: int) -> Any:
    before = ids.shape[1] - 1
    if not before:
        return model.init_cache(len(ids), length, beams=beams)
    hidden = None if padding is None else jnp.arange(before) < padding[:, None]
    return model.prefill(ids[:, :-1], hidden)[1].fork(beams, before + length)


def _seq2seq_prompt(ids: Array, mask: Array | None, settings: Settings) -> tuple[Array, None]:
    start = settings.decoder_start_token_id
    start = settings.bos_token_id if start is None else start
    if start is None:
        raise ValueError("an encoder-decoder needs decoder_start_token_id to begin with, config.json has none")
    return jnp.full((len(ids), 1), start, ids.dtype), None


def _seq2seq_cache(model: Seq2Seq, ids: Array, mask: Array | None, length: int, beams: int) -> Any:
    source = visible(mask)
    return model.init_cache(model.encode(ids, source), source, length, beams=beams)


STARTS = {
    causal_lm: Start(_causal_prompt, _causal_cache),
    seq2seq_lm: Start(_seq2seq_prompt, _seq2seq_cache),
}
"""By what an architecture is called with: those that are not here generate nothing."""


@jax.jit
def _run(model: Any, job: _Job, key: PRNGKeyArray | None) -> Decoded:
    config, model = job.config, own_tables(model)
    cache = job.cache(model, config.beams if isinstance(config, Beam) else 1)
    options = {
        "process": make_process(job.constraints, job.prompt, job.padding),
        "grow": partial(_grow, job.before),
    }
    step, last = partial(type(model).step, model), job.prompt[:, -1]
    if isinstance(config, Beam):
        return beam_search(step, cache, last, config, reorder=lambda cache, rows: cache.reorder(rows), **options)
    if isinstance(config, Sampling):
        return sample(step, cache, last, key, config, **options)
    return greedy(step, cache, last, config, **options)


@jax.jit
def _begin(model: Any, job: _Job) -> Any:
    return job.cache(model)


def _grow(before: int, cache: Any, length: int) -> Any:
    return cache.grow(before + length)


def _sequences(prompt: Array, decoded: Decoded) -> Array:
    """Put prompts before what was generated; outside of transforms, end with the longest."""
    tokens = decoded.tokens
    if not isinstance(tokens, jax.core.Tracer):
        tokens = tokens[..., : int(decoded.lengths.max())]
    rows = tokens.reshape(-1, tokens.shape[-1])
    return jnp.concatenate([jnp.repeat(prompt, tokens.shape[1], axis=0), rows.astype(prompt.dtype)], axis=1)


def _check_length(model: Any, length: int) -> None:
    """Refuse what a learned table of positions has no room for; the last token is not read again."""
    table = model.cfg.embedding
    if table.position == "learned" and length - 1 > table.max_length:
        raise ValueError(
            f"prompt and generated tokens must fit into the positions, got {length} tokens, "
            f"{table.max_length} positions"
        )


def _several(tokens: Tokens) -> tuple[int, ...]:
    return () if tokens is None else tokens if isinstance(tokens, tuple) else (tokens,)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
