"""Generation with Hugging Face's settings, by the decoding loops of this package.

Axes: B prompts, P prompt tokens, n sequences returned a prompt, R = B·n, M generated tokens at most.
"""

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.decode import Beam, Decoded, Greedy, Sampling, beam_search, greedy, make_process, sample, stream
from flax_transformer.decode.chain import refuse_nan
from flax_transformer.hub.call import visible
from flax_transformer.hub.check import check_pictures, check_shapes
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.settings import Settings, make_settings
from flax_transformer.models.causal import Causal
from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.nn import EmbeddingConfig, own_tables
from flax_transformer.ops.sampling import Keys, each_row, row_keys

Seen = Int[Array | np.ndarray, "B P"] | Bool[Array | np.ndarray, "B P"] | None

SHORTEST = 32
"""Length that shorter prompts are padded to."""
NOTHING = -1
"""In the place of a token that no constraint looks at."""


def generate(
    pretrained: Any,
    input_ids: Int[Array | np.ndarray, "B P"] | None = None,
    attention_mask: Seen = None,
    *,
    pixel_values: Float[Array | np.ndarray, "B C H W"] | None = None,
    key: Keys | None = None,
    **settings: Any,
) -> Int[Array, "R T"]:
    """Continue prompts, answer sources, or say what is on pictures: token ids as Hugging Face's `generate` has them.

    The n sequences of a prompt stand after one another. They begin with the prompt, those of an encoder-decoder with
    its start token, and are padded after their end.

    What is compiled serves all prompts of about one length (see `padded_length`), and all numbers of new tokens,
    temperatures and the like. Inside a transform nothing is padded.

    Args:
      pretrained: a `Pretrained` that is a language model.
      attention_mask: 0 where there is padding; prompts of a decoder-only model end with a token. Without it, as in
        Hugging Face, their padding token is padding unless it is an end token too, and other models' sources have none.
      pixel_values: pictures, in place of tokens, for a model that reads them.
      key: what sampling draws from: one, of which row i draws by `row_keys(key, i)`, or one for each row, so that a
        row gives the same tokens in any batch. The j-th sequence of a prompt draws by `row_keys` of that and j.
      settings: fields of `Settings`; the checkpoint's own by default.

    Raises:
      ValueError: a model that generates nothing, an empty prompt, padding after a prompt, sampling without a key, more
        tokens than the model has positions, logits that are no numbers, or settings that make no sense.
    """
    job = _prepare(pretrained, (input_ids, attention_mask, pixel_values), key, settings)
    return _sequences(job, refuse_nan(run(pretrained.decoder, job.task)))


def stream_tokens(
    pretrained: Any,
    input_ids: Int[Array | np.ndarray, "B P"] | None = None,
    attention_mask: Seen = None,
    *,
    pixel_values: Float[Array | np.ndarray, "B C H W"] | None = None,
    key: Keys | None = None,
    chunk: int = 1,
    **settings: Any,
) -> Generator[Int[np.ndarray, "B C"], None, Decoded]:
    """Yield the tokens that `generate` would, `chunk` of every row at a time, without prompts; rows end as there.

    Raises:
      ValueError: what `generate` raises, at once; and beams, whose tokens may change until the end.
    """
    job = _prepare(pretrained, (input_ids, attention_mask, pixel_values), key, settings)
    task = job.task
    if isinstance(task.config, Beam):
        raise ValueError(f"beam search cannot be streamed, got num_beams={task.config.beams}")
    model = pretrained.decoder
    return stream(
        Partial(type(model).step, model), _begin(model, task), jax.device_put(task.begun[:, -1]), task.config,
        key=task.keys, process=task.process, grow=partial(_grow, task.before), chunk=chunk,
    )  # fmt: skip


def padded_length(length: int) -> int:
    """Round up to one of few lengths, each compiled once: multiples of 32, above 128 of a quarter of a power of 2.

    >>> [padded_length(n) for n in (1, 32, 33, 100, 150, 300, 600)]
    [32, 32, 64, 128, 192, 384, 768]
    """
    step = max(SHORTEST, 2 ** (math.ceil(math.log2(length)) - 2))
    return math.ceil(length / step) * step


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Task:
    """What is compiled for: a pytree of arrays and numbers."""

    start: "Start" = field(metadata={"static": True})
    ids: Any
    """What is read: prompts, or what an encoder takes."""
    mask: Any
    begun: Any
    """[B, P], of which the loop takes the last: that of a prompt alone, or all that a decoder begins with."""
    keys: Any
    config: Greedy
    process: Any

    @property
    def before(self) -> int:
        """Tokens that are in the cache before the loop begins."""
        return self.start.before(self.ids, self.begun)

    def cache(self, model: Any, beams: int = 1) -> Any:
        """Read the prompt but for its last token."""
        return self.start.cache(model, self, self.config.stages[0], beams)


@dataclass(frozen=True)
class _Job:
    """A call of `generate`, checked."""

    task: Task
    prompt: Any
    """What sequences begin with."""
    count: int
    """Tokens to generate at most."""


def _prepare(pretrained: Any, given: tuple[Any, Any, Any], key: Any, settings: Mapping[str, Any]) -> _Job:
    chosen = make_settings(pretrained.config, pretrained.generation, settings)
    model, start = pretrained.model, start_of(pretrained)
    ids, mask = start.read(pretrained, given, chosen)
    if chosen.do_sample and key is None:
        raise ValueError("sampling needs a key: generate(…, do_sample=True, key=jax.random.key(0))")
    keys = None
    if chosen.do_sample:
        repeats = chosen.num_return_sequences
        keys = _sequence_keys(key, rows=len(ids), repeats=repeats)
        ids, mask = jax.tree.map(lambda x: _on(x).repeat(x, repeats, axis=0), (ids, mask))
    prompt = start.prompt(ids, chosen)
    count = chosen.new_tokens(prompt.shape[1], _positions(pretrained))
    _check_length(model.cfg.embedding, prompt.shape[1] + count)
    seen, padding = prompt, None
    if isinstance(ids, np.ndarray):
        ids, mask, seen = start.pad(model.cfg, ids, mask, prompt)
    if start.continues and mask is not None:
        padding = _on(mask).argmax(mask != 0, axis=1)
    process = make_process(chosen.constraints(prompt.shape[1]), seen, padding, count)
    task = Task(start, ids, mask, prompt[:, -1:], keys, chosen.config(count), process)
    return _Job(task, prompt, count)


def _tokens(pretrained: Any, given: tuple[Any, Any, Any], settings: Settings) -> tuple[Any, Any]:
    """Read prompts or sources of tokens."""
    ids, mask, pictures = given
    if ids is None or pictures is not None:
        raise ValueError(f"a {pretrained.config['architectures'][0]} goes by input_ids, got pictures or nothing")
    continues = start_of(pretrained).continues
    return _checked(pretrained, ids, mask, pad=settings.inferred if continues else None)


def _pictures(pretrained: Any, given: tuple[Any, Any, Any], settings: Settings) -> tuple[Any, None]:
    """Read pictures, and give them with channels last."""
    ids, mask, pictures = given
    if pictures is None or ids is not None or mask is not None:
        raise ValueError(f"a {pretrained.config['architectures'][0]} goes by pixel_values alone, got others or nothing")
    inputs = Inputs(pixel_values=jnp.asarray(pictures))
    check_shapes(inputs)
    check_pictures(inputs, pretrained.config)
    return jnp.moveaxis(inputs.pixel_values, 1, -1), None


def _checked(pretrained: Any, input_ids: Any, attention_mask: Any, *, pad: int | None) -> tuple[Any, Any]:
    """Give ids and mask, on the host where they are known: so nothing but the loop is compiled.

    Args:
      pad: the token that is padding where no mask is given, as Hugging Face infers it.
    """
    placed = isinstance(input_ids, jax.core.Tracer) or (
        isinstance(input_ids, jax.Array) and len(input_ids.sharding.device_set) > 1
    )
    on = jnp if placed or isinstance(attention_mask, jax.core.Tracer) else np
    ids = on.asarray(input_ids)
    if ids.ndim != 2 or 0 in ids.shape or ids.dtype.kind not in "iu":
        raise ValueError(
            "prompts are one or more rows of at least one token, whole numbers [B, P], got an array of shape "
            f"{ids.shape} and type {ids.dtype}"
        )
    pretrained.check_ids("input_ids", ids)
    mask = None if attention_mask is None else on.asarray(attention_mask)
    if mask is None and pad is not None:
        mask = ids != pad
    if mask is not None and mask.shape != ids.shape:
        raise ValueError(f"attention_mask must have the shape of input_ids, got {mask.shape} and {ids.shape}")
    return ids, None if mask is None else (mask != 0).astype(on.int32)


@dataclass(frozen=True)
class Start:
    """How a kind of model begins to generate."""

    read: Callable[..., tuple[Any, Any]]
    """`read(pretrained, given, settings)`: what is read, checked, and a mask of it."""
    prompt: Callable[..., Any]
    """`prompt(ids, settings)`: the tokens that generated ones follow."""
    pad: Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]
    """`pad(config, ids, mask, prompt)`: ids and mask of a length that is compiled once, and what constraints see."""
    before: Callable[..., int]
    """`before(ids, begun)`: how many tokens `cache` reads into the cache."""
    cache: Callable[..., Any]
    """`cache(model, task, length, beams)`: all of the prompt read but its last token, with room for `length`."""
    continues: bool = False
    """Whether what is read is the beginning of what is written."""


def _causal_prompt(ids: Any, settings: Settings) -> Any:
    return ids


def _causal_pad(config: Any, ids: np.ndarray, mask: np.ndarray | None, prompt: np.ndarray) -> tuple[np.ndarray, ...]:
    """Pad on the left. Positions count tokens alone, so that neither they nor what is seen change."""
    mask = np.ones_like(ids, np.int32) if mask is None else mask
    if not mask.any(1).all():
        raise ValueError("a prompt has at least one token, got a row of attention_mask that is all 0")
    if not mask[:, -1].all():
        raise ValueError("prompts of a decoder-only model are padded on the left, got an attention_mask that ends in 0")
    length = _fitting(config.embedding, ids.shape[1], more=1)  # the last token is not read with the others
    widths = ((0, 0), (length - ids.shape[1], 0))
    return np.pad(ids, widths), np.pad(mask, widths), np.pad(prompt, widths, constant_values=NOTHING)


def _causal_cache(model: Causal, task: Task, length: int, beams: int) -> Any:
    ids, mask, before = task.ids, task.mask, task.before
    if not before:
        return model.init_cache(len(ids), length, beams=beams)
    return model.prefill(ids[:, :-1], None if mask is None else mask[:, :-1] == 0)[1].fork(beams, before + length)


def _seq2seq_prompt(ids: Any, settings: Settings) -> Any:
    start = settings.decoder_start_token_id
    start = settings.bos_token_id if start is None else start
    if start is None:
        raise ValueError("an encoder-decoder needs decoder_start_token_id to begin with, config.json has none")
    on = np if isinstance(ids, np.ndarray) or ids.ndim > 2 else jnp
    return on.full((len(ids), 1), start, ids.dtype if ids.dtype.kind in "iu" else np.int32)


def _seq2seq_pad(config: Any, ids: np.ndarray, mask: np.ndarray | None, prompt: np.ndarray) -> tuple[np.ndarray, ...]:
    """Pad on the right, unless a row is all padding: it attends to all of it, be it more or less."""
    mask = np.ones_like(ids, np.int32) if mask is None else mask
    length = _fitting(config.source_embedding or config.embedding, ids.shape[1]) if mask.any(1).all() else ids.shape[1]
    widths = ((0, 0), (0, length - ids.shape[1]))
    return np.pad(ids, widths), np.pad(mask, widths), prompt


def _seq2seq_cache(model: Seq2Seq, task: Task, length: int, beams: int) -> Any:
    source = visible(task.mask)
    return model.init_cache(model.encode(task.ids, source), source, length, beams=beams, begun=task.begun[:, :-1])


def _unpadded(config: Any, ids: Any, mask: Any, prompt: Any) -> tuple[Any, ...]:
    return ids, mask, prompt


RESPOND = {"before": lambda ids, begun: begun.shape[1] - 1, "cache": _seq2seq_cache}
STARTS = {
    "continue": Start(
        _tokens, _causal_prompt, _causal_pad, lambda ids, begun: ids.shape[1] - 1, _causal_cache, continues=True
    ),
    "respond": Start(_tokens, _seq2seq_prompt, _seq2seq_pad, **RESPOND),
    "respond to pictures": Start(_pictures, _seq2seq_prompt, _unpadded, **RESPOND),
}
"""By what an architecture can do."""


def start_of(pretrained: Any) -> Start:
    """Tell how a checkpoint begins to generate.

    Raises:
      ValueError: one that generates nothing.
    """
    known = pretrained.architecture
    to = " to pictures" if known.inputs.needs[0] == "pixel_values" else ""
    found = next((STARTS[use + to] for use in known.uses if use + to in STARTS), None)
    if found is None:
        raise ValueError(f"a {pretrained.config['architectures'][0]} generates no text: it is no language model")
    return found


@jax.jit
def run(model: Any, task: Task) -> Decoded:
    """Run the decoding loop of a task."""
    config, model = task.config, own_tables(model)
    cache = task.cache(model, config.beams if isinstance(config, Beam) else 1)
    options = {"process": task.process, "grow": partial(_grow, task.before)}
    step, last = partial(type(model).step, model), jnp.asarray(task.begun)[:, -1]
    if isinstance(config, Beam):
        return beam_search(step, cache, last, config, reorder=lambda cache, rows: cache.reorder(rows), **options)
    if isinstance(config, Sampling):
        return sample(step, cache, last, task.keys, config, **options)
    return greedy(step, cache, last, config, **options)


@jax.jit
def _begin(model: Any, task: Task) -> Any:
    return task.cache(model)


def _grow(before: int, cache: Any, length: int) -> Any:
    return cache.grow(before + length)


@partial(jax.jit, static_argnames=("rows", "repeats"))
def _sequence_keys(key: Keys, *, rows: int, repeats: int) -> Keys:
    """Give each sequence of each prompt a key of its own, which does not depend on how many there are."""
    sequences = partial(row_keys, rows=np.arange(repeats))
    return jax.vmap(sequences)(each_row(key, (rows,))).reshape(-1)


def _sequences(job: _Job, decoded: Decoded) -> Array:
    """Put prompts before what was generated; outside of transforms, end with the longest."""
    tokens, count = decoded.tokens, job.count
    if not isinstance(tokens, jax.core.Tracer):
        if isinstance(job.prompt, np.ndarray):
            tokens = np.asarray(tokens)
        count = int(decoded.lengths.max())
    tokens = tokens[..., :count]
    on, rows = _on(tokens), tokens.reshape(-1, count)
    prompt = on.repeat(job.prompt, tokens.shape[1], axis=0)
    whole = on.concatenate([prompt, rows.astype(prompt.dtype)], axis=1)
    return jax.device_put(whole) if on is np else whole


def _on(array: Any) -> Any:
    """Where to work on an array: on the host, where nothing is compiled, if it is there."""
    return np if isinstance(array, np.ndarray) else jnp


def _fitting(table: EmbeddingConfig, length: int, more: int = 0) -> int:
    """Pad a length, but not beyond the positions of a learned table."""
    limit = table.max_length + more if table.position == "learned" else math.inf
    return max(length, min(padded_length(length), limit))


def _positions(pretrained: Any) -> int | None:
    """Read how many positions config.json speaks of, which the default number of new tokens keeps to."""
    config = pretrained.config
    found = config.get("max_position_embeddings", config.get("n_positions"))
    return found if isinstance(found, int) else None


def _check_length(table: EmbeddingConfig, length: int) -> None:
    """Refuse what a learned table of positions has no room for; the last token is not read again."""
    if table.position == "learned" and length - 1 > table.max_length:
        raise ValueError(
            f"prompt and generated tokens must fit into the positions, got {length} tokens, "
            f"{table.max_length} positions"
        )
