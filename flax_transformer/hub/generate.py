"""Generation with Hugging Face's settings, by the decoding loops of this package.

Axes: B prompts, P prompt tokens, n sequences returned a prompt, R = B·n, M generated tokens at most.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int

from flax_transformer.decode import (
    Beam,
    Candidates,
    Context,
    Contrastive,
    Decoded,
    Drafted,
    Greedy,
    Sampling,
    beam_search,
    beam_search_with_candidates,
    compose,
    contrastive_search,
    greedy,
    make_process,
    sample,
    stream,
)
from flax_transformer.decode.chain import Process, refuse_nan
from flax_transformer.hub.assist import Assistant, check_assistant, make_assistant, run_assisted
from flax_transformer.hub.check import check_key
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.generated import Generated, generated_of, sequences_of
from flax_transformer.hub.generation_input import NOTHING, Start, start_of
from flax_transformer.hub.given import OTHERS, Given, is_embedded, name_of
from flax_transformer.hub.past import Past
from flax_transformer.hub.settings import make_settings
from flax_transformer.hub.streamer import Watch
from flax_transformer.nn import EmbeddingConfig, own_tables, quantize_cache
from flax_transformer.nn.config import configs_in
from flax_transformer.ops import LongScaling
from flax_transformer.ops.sampling import Keys, each_row, row_keys

Seen = Int[Array | np.ndarray, "B P"] | Bool[Array | np.ndarray, "B P"] | None


def generate(
    pretrained: Any,
    input_ids: Int[Array | np.ndarray, "B P"] | None = None,
    attention_mask: Seen = None,
    *,
    inputs_embeds: Float[Array | np.ndarray, "B P D"] | None = None,
    pixel_values: Float[Array | np.ndarray, "..."] | None = None,
    global_attention_mask: Seen = None,
    key: Keys | None = None,
    assistant_model: Any = None,
    process: Process | None = None,
    past: Past | None = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    streamer: Any = None,
    return_dict_in_generate: bool = False,
    **settings: Any,
) -> Int[Array, "R T"] | Generated:
    """Continue prompts, answer sources, or say what is on images: token ids as Hugging Face's `generate` has them.

    The n sequences of a prompt stand after one another. They begin with the prompt, those of an encoder-decoder with
    its start token, and are padded after their end. What is compiled serves all prompts of about one length (see
    `padded_length`), numbers of new tokens, temperatures and the like. Inside a transform nothing is padded.

    Args:
      pretrained: a `Pretrained` that is a language model.
      inputs_embeds: in the place of `input_ids`, as `model.embedding.embed` gives them; new tokens are returned alone.
      attention_mask: 0 where there is padding; prompts of a decoder-only model end with a token. Without it, as in
        Hugging Face, their padding token is padding unless it is an end token too, and other models' sources have none.
      pixel_values: images, for a model that reads them; several of each row, or patches beside `image_grid_thw`, where
        it takes such. Tokens are then what texts begin with, or questions to answer. A prompt of an encoder-decoder has
        the tokenizer's marks: the last is dropped and the first becomes the start token, as in Hugging Face.
      global_attention_mask: 1 where a token of the source sees all others and is seen by them, for a model that sees
        windows (LED); of none by default.
      key: what sampling draws from: one, of which row i draws by `row_keys(key, i)`, or one for each row, so that a
        row gives the same tokens in any batch. The j-th sequence of a prompt draws by `row_keys` of that and j.
      assistant_model: a smaller `Pretrained` of the same vocabulary, which proposes tokens: see `decode.assisted`.
      past: of `hub.read_prompt`, what every row begins with, its tokens included, and need not be read again.
      process: a function of logits before they are chosen from, as `decode.greedy` has it, after the settings' own.
      stop_strings: texts that end a row, within the token that completes one, prompt included; without beams.
      tokenizer: of these; the checkpoint's own by default.
      streamer: has `put`, which is given the prompts and then the next token of each row, and `end`; without beams.
      return_dict_in_generate: give beside the sequences the scores of their tokens, and how many proposals were kept.
      settings: fields of `Settings`, or a `generation_config` of them: an object of `transformers`, a mapping or a
        file. The checkpoint's own by default.

    Raises:
      ValueError: a model that generates nothing, an empty prompt, padding after a prompt, sampling without a key, more
        tokens than the model has positions, logits that are no numbers, or settings that make no sense.
    """
    given = Given(input_ids, attention_mask, pixel_values, global_attention_mask, inputs_embeds, _beside(settings))
    if return_dict_in_generate:
        settings.pop("output_scores", None)
    job, watch = _prepare(pretrained, given, key, settings, (assistant_model, process, past)), None
    if stop_strings is not None or streamer is not None:
        _check_watched(job, return_dict_in_generate)
        watch = Watch.of(stop_strings, streamer, tokenizer or pretrained.tokenizer)
    decoded, drafted = _decode(pretrained, job, watch)
    give = partial(generated_of, drafted=drafted) if return_dict_in_generate else sequences_of
    return give(job.prompt, decoded, job.count)


def _beside(settings: dict[str, Any]) -> dict[str, Any]:
    """Take what else models are given out of the settings: what stands beside images, and states to look at."""
    found = {name: settings.pop(name) for name in OTHERS if name in settings}
    return {name: value for name, value in found.items() if value is not None}


def _check_watched(job: "_Job", scores: bool) -> None:
    if job.assistant is not None or scores:
        what = "return_dict_in_generate" if job.assistant is None else "proposed tokens, which come several at once"
        raise ValueError(f"stop_strings and a streamer watch single tokens, and go without {what}")


def _decode(pretrained: Any, job: "_Job", watch: Watch | None) -> tuple[Decoded, Drafted | None]:
    """Run the loop of a call; give beside how far a draft was right, if there is one."""
    drafted = None
    if watch is not None:
        decoded = watch(_stream(pretrained, job, watch.chunk), job.prompt, job.task.config.pad)
    elif job.assistant is not None:
        decoded, drafted = run_assisted(pretrained.decoder, job.assistant, job.task)
    else:
        decoded = run(pretrained.decoder, job.task)
    return refuse_nan(decoded), drafted


def stream_tokens(
    pretrained: Any,
    input_ids: Int[Array | np.ndarray, "B P"] | None = None,
    attention_mask: Seen = None,
    *,
    inputs_embeds: Float[Array | np.ndarray, "B P D"] | None = None,
    pixel_values: Float[Array | np.ndarray, "..."] | None = None,
    global_attention_mask: Seen = None,
    key: Keys | None = None,
    chunk: int = 1,
    **settings: Any,
) -> Generator[Int[np.ndarray, "B C"], None, Decoded]:
    """Yield the tokens that `generate` would, `chunk` of every row at a time, without prompts; rows end as there.

    Raises:
      ValueError: what `generate` raises, at once; and beams, whose tokens may change until the end.
    """
    given = Given(input_ids, attention_mask, pixel_values, global_attention_mask, inputs_embeds, _beside(settings))
    settings = {**settings, "prompt_lookup_num_tokens": None}
    return _stream(pretrained, _prepare(pretrained, given, key, settings), chunk)


def search_beams(
    pretrained: Any,
    input_ids: Int[Array | np.ndarray, "B P"] | None = None,
    attention_mask: Seen = None,
    *,
    inputs_embeds: Float[Array | np.ndarray, "B P D"] | None = None,
    pixel_values: Float[Array | np.ndarray, "..."] | None = None,
    **settings: Any,
) -> tuple[Decoded, Candidates]:
    """Return the hypotheses of the beam search that `generate` runs, without prompts, and all that it has looked at.

    Raises:
      ValueError: what `generate` raises; and settings without beams.
    """
    given = Given(input_ids, attention_mask, pixel_values, None, inputs_embeds, _beside(settings))
    job = _prepare(pretrained, given, None, settings)
    if not isinstance(job.task.config, Beam):
        raise ValueError("beams are of a beam search: num_beams must be 2 at least, got no beams")
    return jax.device_get(_run_watched(pretrained.decoder, job.task))


def _stream(pretrained: Any, job: "_Job", chunk: int) -> Generator[Int[np.ndarray, "B C"], None, Decoded]:
    task = job.task
    if isinstance(task.config, Beam):
        raise ValueError(f"beam search cannot be streamed, got num_beams={task.config.beams}")
    if isinstance(task.config, Contrastive):
        raise ValueError(f"contrastive search cannot be streamed, got penalty_alpha={task.config.alpha}")
    model = pretrained.decoder
    return stream(
        task.step(model), _begin(model, task), jax.device_put(task.begun[:, -1]), task.config,
        key=task.keys, process=task.process, grow=partial(_grow, task.before), chunk=chunk,
    )  # fmt: skip


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GenerationTask:
    """What is compiled for: a pytree of arrays and numbers."""

    start: Start = field(metadata={"static": True})
    ids: Any
    """What is read: prompts, what an encoder takes, or both by name."""
    mask: Any
    begun: Any
    """[B, P], of which the loop takes the last: that of a prompt alone, or all that a decoder begins with."""
    keys: Any
    config: Greedy
    process: Any
    rounds: str | None = field(default=None, metadata={"static": True})
    """What keys and values in the cache are rounded to: see `nn.quantize_cache`."""
    past: Any = None
    """The cache of what all rows begin with, before `ids`."""

    def step(self, model: Any) -> Callable:
        """Return what decodes a token, or `NOTHING`, by which the last of a prompt's embeddings is meant."""
        begun = self.start.continues and is_embedded(self.ids)
        return Partial(_step_embedded, model, self.ids[:, -1]) if begun else Partial(type(model).step, model)

    @property
    def before(self) -> int:
        """Tokens that are in the cache before the loop begins."""
        past = 0 if self.past is None else self.past.padding.shape[1]
        return past + self.start.before(self.ids, self.begun)

    def cache(self, model: Any, beams: int = 1) -> Any:
        """Read the prompt but for its last token."""
        return quantize_cache(self.start.cache(model, self, self.config.stages[0], beams), self.rounds)


@dataclass(frozen=True)
class _Job:
    """A call of `generate`, checked."""

    task: GenerationTask
    prompt: Any
    """What sequences begin with."""
    count: int
    """Tokens to generate at most."""
    assistant: Assistant | None = None


def _prepare(pretrained: Any, given: Given, key: Any, settings: Mapping[str, Any], others: Any = (None,) * 3) -> _Job:
    (assistant, own, past), (config, generation) = others, _said(pretrained)
    chosen = make_settings(config, generation, settings)
    check_key(key)
    helped = check_assistant(pretrained, assistant, chosen)
    if settings.get("interpolate_pos_encoding") and given.pixel_values is None:
        raise ValueError(f"interpolate_pos_encoding is of images, a {name_of(pretrained)} is given none")
    given.check(pretrained)
    model, start = pretrained.model, start_of(pretrained)
    read = start.read(pretrained, given, chosen)
    pretrained.check_rows(len(read.prompt))
    if chosen.do_sample and key is None:
        raise ValueError("sampling needs a key: generate(…, do_sample=True, key=jax.random.key(0))")
    keys = None
    if chosen.do_sample:
        repeats = chosen.num_return_sequences
        keys = _sequence_keys(key, rows=len(read.prompt), repeats=repeats)
        read = jax.tree.map(lambda x: _on(x).repeat(x, repeats, axis=0), read)
    prompt = read.prompt
    count, virtual = chosen.new_tokens(prompt.shape[1], _positions(config)), 0 if past is None else past.virtual
    for each in (model,) if assistant is None else (model, assistant.model):
        # Of contrastive search the last token is read before it is chosen.
        _check_length(each.cfg.embedding, virtual + prompt.shape[1] + count + chosen.searches)
    _check_divisors(model.cfg, virtual + prompt.shape[1], virtual + prompt.shape[1] + count)
    seen, padding = prompt, None
    if past is not None and (chosen.searches or assistant is not None):
        raise ValueError("a prompt that is read once goes without assistant_model and contrastive search")
    if given.inputs_embeds is not None and (helped or past is not None):
        raise ValueError("embeddings of a prompt go without past, assistant_model and prompt_lookup_num_tokens")
    rest = None if past is None else past.rest(read, model.cfg)
    if isinstance(read.tokens, np.ndarray):
        read, seen = start.pad(model.cfg, read)
    if start.continues and is_embedded(read.tokens):
        seen = None
    elif start.continues and read.mask is not None:
        padding = _on(read.mask).argmax(read.mask != 0, axis=1)
    constraints = chosen.constraints(prompt.shape[1])
    process = make_process(constraints, seen, padding, count, source=read.ids, any_numbers=chosen.do_sample)
    process = compose(process, own)
    begun = prompt[:, -1:] if start.continues else prompt
    ids, mask = (read.source, read.mask) if rest is None else rest
    task = GenerationTask(start, ids, mask, begun, keys, chosen.config(count), process, chosen.cache,
                          None if past is None else past.cache)  # fmt: skip
    written = prompt[:, :0] if start.continues and is_embedded(ids) else prompt
    return _Job(task, written, count, make_assistant(pretrained, assistant, chosen, read, seen) if helped else None)


def _said(pretrained: Any) -> tuple[Fields, Fields]:
    """Return config.json and generation_config.json as a class goes by them."""
    generation_fields = pretrained.architecture.generation_fields
    return (
        (pretrained.config, pretrained.generation)
        if generation_fields is None
        else (generation_fields(pretrained.config), Fields("{}"))
    )


@jax.jit
def run(model: Any, task: GenerationTask) -> Decoded:
    """Run the decoding loop of a task."""
    config, model = task.config, own_tables(model)
    if isinstance(config, Beam):
        return _run_beams(beam_search, model, task)
    if isinstance(config, Contrastive):
        return _run_contrastive(model, task)
    cache = task.cache(model)
    options = {"process": task.process, "grow": partial(_grow, task.before)}
    step, last = task.step(model), jnp.asarray(task.begun)[:, -1]
    if isinstance(config, Sampling):
        return sample(step, cache, last, task.keys, config, **options)
    return greedy(step, cache, last, config, **options)


def _run_contrastive(model: Any, task: GenerationTask) -> Decoded:
    """Run contrastive search, which begins after all of the prompt."""
    if not (task.start.continues and hasattr(model, "step_state")):
        raise ValueError("contrastive search (penalty_alpha) is for decoder-only models of text, this is another")
    config, table = task.config, model.cfg.embedding
    over = max(task.ids.shape[1] - table.max_length, 0) if table.position == "learned" else 0  # all of it padding
    ids, before = jnp.asarray(task.ids)[:, over:], task.ids.shape[1] - over
    seen = None if task.mask is None else jnp.asarray(task.mask)[:, over:] != 0
    states, cache = model.read(ids, None if seen is None else ~seen)
    first = model.output(states[:, -1:]).logits()[:, 0]
    k = min(config.top_k, first.shape[-1])
    cache = quantize_cache(cache.fork(k, before + config.stages[0]), task.rounds)
    return contrastive_search(
        partial(type(model).step_state, model), cache, Context(first, states, seen), config,
        reorder=lambda cache, rows: cache.reorder(rows), process=task.process, grow=partial(_grow, before),
    )  # fmt: skip


@jax.jit
def _run_watched(model: Any, task: GenerationTask) -> tuple[Decoded, Candidates]:
    return _run_beams(beam_search_with_candidates, own_tables(model), task)


def _run_beams(search: Callable, model: Any, task: GenerationTask) -> Any:
    """Run one of the two forms of beam search."""
    return search(
        task.step(model), task.cache(model, task.config.beams), jnp.asarray(task.begun)[:, -1],
        task.config, reorder=lambda cache, rows: cache.reorder(rows), process=task.process,
        grow=partial(_grow, task.before),
    )  # fmt: skip


@jax.jit
def _begin(model: Any, task: GenerationTask) -> Any:
    return task.cache(model)


def _step_embedded(model: Any, last: Array, cache: Any, token: Array) -> tuple[Array, Any]:
    """Decode one token, or in the place of `NOTHING` the embedding that each prompt ends with."""
    given = jnp.repeat(last, len(token) // len(last), axis=0)
    own = model.embedding.embed(jnp.maximum(token, 0))
    return model.step(cache, jnp.where((token == NOTHING)[:, None], given.astype(own.dtype), own))


def _grow(before: int, cache: Any, length: int) -> Any:
    return cache.grow(before + length)


@partial(jax.jit, static_argnames=("rows", "repeats"))
def _sequence_keys(key: Keys, *, rows: int, repeats: int) -> Keys:
    """Derive a key for each sequence of each prompt, which does not depend on how many there are."""
    sequences = partial(row_keys, rows=np.arange(repeats))
    return jax.vmap(sequences)(each_row(key, (rows,))).reshape(-1)


def _on(array: Any) -> Any:
    """Where to work on an array: on the host, where nothing is compiled, if it is there."""
    return np if isinstance(array, np.ndarray) else jnp


def _positions(config: Fields) -> int | None:
    """Read how many positions config.json speaks of, which the default number of new tokens keeps to."""
    found = config.get("max_position_embeddings", config.get("n_positions"))
    return found if isinstance(found, int) else None


def _check_length(table: EmbeddingConfig, length: int) -> None:
    """Refuse what a learned table of positions has no room for; the last token is not read again."""
    if table.position == "learned" and length - 1 > table.max_length:
        raise ValueError(
            f"prompt and generated tokens must fit into the positions, got {length} tokens, "
            f"{table.max_length} positions"
        )


def _check_divisors(config: Any, read: int, length: int) -> None:
    """Refuse a text that begins within the original length of LongRoPE and ends beyond: the cache has other turns."""
    for each in configs_in(config):
        if isinstance(each, LongScaling) and read <= each.original_length < length - 1:
            raise ValueError(
                f"{each.original_length} tokens, the original length of longrope, must not be passed while generating, "
                f"got a prompt of {read} tokens and {length} in all"
            )
