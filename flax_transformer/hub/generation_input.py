"""How each kind of model begins to generate: what it reads, what its texts begin with, how both are padded and cached.

Axes: B rows, P prompt tokens, I images of a row, H W height and width in pixels, C channels.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from flax_transformer.hub.call import tokens_of, visible
from flax_transformer.hub.check import check_pixels
from flax_transformer.hub.given import (
    Given,
    is_embedded,
    is_placed,
    name_of,
    read_embedded,
    read_images,
    read_mask,
    read_tokens,
)
from flax_transformer.hub.inputs import Inputs
from flax_transformer.hub.settings import Settings
from flax_transformer.nn import EmbeddingConfig
from flax_transformer.nn.check import check_hidden

SHORTEST = 32
"""Length that shorter prompts are padded to."""
NOTHING = -1
"""In the place of a token that no constraint looks at."""


class GenerationInput(NamedTuple):
    """What is generated from."""

    source: Any
    """What is read before anything is written: tokens [B, P], embeddings in their place [B, P, D], images
    [B, H, W, C], or both by name; tokens by name beside their positions [B, P], and those of global ones [B, G]."""
    mask: Int[Any, "B P"] | None
    """1 where the source has a token."""
    prompt: Int[Any, "B P"]
    """What sequences begin with; `NOTHING` in the place of tokens whose embeddings are given."""

    @property
    def tokens(self) -> Any:
        """Those of the source, or their embeddings."""
        return self.source["tokens"] if isinstance(self.source, dict) else self.source

    @property
    def ids(self) -> Any:
        """The tokens of the source that constraints look at; None where their embeddings are given."""
        if is_embedded(self.tokens):
            return None
        on = np if isinstance(self.tokens, np.ndarray) else jnp
        return self.tokens if self.mask is None else on.where(self.mask != 0, self.tokens, NOTHING)

    def seen_or_all(self) -> np.ndarray:
        """Return the mask, 1 everywhere where there is none."""
        return np.ones(self.tokens.shape[:2], np.int32) if self.mask is None else self.mask

    def padded(self, before: int, after: int, mask: np.ndarray) -> "GenerationInput":
        """Pad the tokens of the source."""
        widths = (0, 0), (before, after)
        if isinstance(self.source, dict):
            each = {name: np.pad(self.source[name], widths) for name in ("tokens", "positions") if name in self.source}
            source = {**self.source, **each}
        else:
            source = np.pad(self.source, (*widths, *((0, 0),) * (self.source.ndim - 2)))
        return self._replace(source=source, mask=np.pad(mask, widths))


@dataclass(frozen=True)
class Start:
    """How a kind of model begins to generate."""

    read: Callable[..., GenerationInput]
    """`read(pretrained, given, settings)`: what is given, checked."""
    pad: Callable[..., tuple[GenerationInput, np.ndarray]]
    """`pad(config, read)`: the same of a length that is compiled once, and what constraints see."""
    before: Callable[..., int]
    """`before(source, begun)`: how many tokens `cache` reads into the cache."""
    cache: Callable[..., Any]
    """`cache(model, task, length, beams)`: all of the prompt read but its last token, with room for `length`."""
    continues: bool = False
    """Whether the tokens of the source are the beginning of what is written."""


def padded_length(length: int) -> int:
    """Round up to one of few lengths, each compiled once: multiples of 32, above 128 of a quarter of a power of 2.

    >>> [padded_length(n) for n in (1, 32, 33, 100, 150, 300, 600)]
    [32, 32, 64, 128, 192, 384, 768]
    """
    step = max(SHORTEST, 2 ** (math.ceil(math.log2(length)) - 2))
    return math.ceil(length / step) * step


def fitting(table: EmbeddingConfig, length: int, more: int = 0) -> int:
    """Pad a length, but not beyond the positions of a learned table."""
    limit = table.max_length + more if table.position == "learned" else math.inf
    return max(length, min(padded_length(length), limit))


def _words(pretrained: Any, given: Given) -> None:
    if given.pixel_values is not None:
        raise ValueError(f"a {name_of(pretrained)} goes by input_ids, got images")


def _same_rows(ids: Any, images: Any) -> None:
    if len(ids) != len(images):
        raise ValueError(f"there must be an image, or a row of them, for each text, got {len(images)} and {len(ids)}")


def _continued(pretrained: Any, given: Given, settings: Settings) -> GenerationInput:
    _words(pretrained, given)
    if given.inputs_embeds is not None:
        embeddings, mask = read_embedded(pretrained, given)
        nothing = np.full(embeddings.shape[:2], NOTHING, np.int32)
        return GenerationInput(embeddings, mask, nothing)
    ids, mask = read_tokens(pretrained, given, pad=settings.inferred)
    return GenerationInput(ids, mask, ids)


def _continued_beside(pretrained: Any, given: Given, settings: Settings) -> GenerationInput:
    """Read images and what texts of them begin with: the start token, where nothing is said."""
    images = read_images(pretrained, given)
    if given.input_ids is None:
        ids, mask = _begin(len(images), settings.bos_token_id), None
    else:
        ids, mask = read_tokens(pretrained, given, pad=settings.inferred)
    _same_rows(ids, images)
    return GenerationInput({"tokens": ids, "images": images}, mask, ids)


def _continued_among(pretrained: Any, given: Given, settings: Settings) -> GenerationInput:
    """Read texts that may have images among their tokens."""
    if given.pixel_values is None and not given.others:
        return _continued(pretrained, given, settings)
    ids, mask = read_tokens(pretrained, given, pad=settings.inferred)
    named = {"input_ids": ids, "attention_mask": mask, "pixel_values": given.pixel_values, **given.others}
    named = {name: value for name, value in named.items() if value is not None}
    pretrained.architecture.inputs.check(name_of(pretrained), named)
    inputs = Inputs(**pretrained.architecture.prepare(named, pretrained.config))
    check_pixels(inputs, pretrained.config)
    if isinstance(ids, np.ndarray) and (ids[:, -1] == pretrained.model.cfg.image_token).any():
        raise ValueError("a prompt must end with a token of a text, got one that ends within an image")
    source = {"tokens": ids, "patches": inputs.pixel_values, "grids": inputs.image_grid_thw}
    return GenerationInput(source, mask, ids)


def _answered(pretrained: Any, given: Given, settings: Settings) -> GenerationInput:
    _words(pretrained, given)
    if given.inputs_embeds is not None:
        embeddings, mask = read_embedded(pretrained, given)
        return GenerationInput(embeddings, mask, _begin(len(embeddings), first_token(settings)))
    ids, mask = read_tokens(pretrained, given)
    on, prepare, chosen = np if isinstance(ids, np.ndarray) else jnp, pretrained.architecture.prepare, {}
    if given.global_attention_mask is not None:
        chosen["global_attention_mask"] = given.global_attention_mask
    inputs = {"input_ids": ids, **chosen}
    source = tokens_of(Inputs(**(inputs if prepare is None else prepare(inputs, pretrained.config))))
    return GenerationInput(source, mask, _begin(len(ids), first_token(settings), on, ids.dtype))


def _image_words(pretrained: Any, given: Given, settings: Settings) -> GenerationInput:
    """Read images alone."""
    if given.input_ids is not None or given.attention_mask is not None:
        raise ValueError(f"a {name_of(pretrained)} goes by pixel_values alone, got others")
    images = read_images(pretrained, given)
    return GenerationInput(images, None, _begin(len(images), first_token(settings)))


def _words_after_image(pretrained: Any, given: Given, settings: Settings) -> GenerationInput:
    """Read images and what texts begin with, with its marks: the start token takes the place of the first."""
    if given.input_ids is None:
        return _image_words(pretrained, given, settings)
    images = read_images(pretrained, given)
    ids, mask = read_tokens(pretrained, given)
    _same_rows(ids, images)
    if ids.shape[1] < 2:
        raise ValueError(f"a prompt has marks before and after it, got {ids.shape[1]} token")
    if mask is not None and not isinstance(mask, jax.core.Tracer) and not mask.all():
        raise ValueError("prompts beside images are of one length, got an attention_mask with 0")
    on = np if isinstance(ids, np.ndarray) else jnp
    begun = _begin(len(ids), first_token(settings), on, ids.dtype)
    return GenerationInput(images, None, on.concatenate([begun, ids[:, 1:-1]], axis=1))


def _asked(pretrained: Any, given: Given, settings: Settings) -> GenerationInput:
    """Read questions and the images that they are about."""
    images, (ids, mask) = read_images(pretrained, given), read_tokens(pretrained, given)
    _same_rows(ids, images)
    return GenerationInput({"tokens": ids, "images": images}, mask, _begin(len(ids), first_token(settings)))


def _words_after_states(pretrained: Any, given: Given, settings: Settings) -> GenerationInput:
    """Read the states to look at, [B, S, W], and what texts begin with: the start token, where nothing is said."""
    states, mask = given.others.get("encoder_hidden_states"), given.others.get("encoder_attention_mask")
    if states is None:
        raise ValueError(f"a {name_of(pretrained)} looks at encoder_hidden_states, got none")
    on = jnp if is_placed(states) else np
    states = on.asarray(states)
    check_hidden(states, pretrained.model.cfg.encoder.embed, "encoder_hidden_states")
    begun = (
        given if given.input_ids is not None else given._replace(input_ids=_begin(len(states), first_token(settings)))
    )
    ids, seen = read_tokens(pretrained, begun)
    if len(ids) != len(states):
        raise ValueError(f"there must be a prompt for each row of states, got {len(ids)} and {len(states)}")
    if seen is not None and not isinstance(seen, jax.core.Tracer) and not seen.all():
        raise ValueError("prompts beside states are of one length, got an attention_mask with 0")
    mask = read_mask(mask, states.shape[:2], "encoder_hidden_states", on, called="encoder_attention_mask")
    return GenerationInput(states, mask, ids)


def first_token(settings: Settings) -> int:
    """Return the token that an encoder-decoder begins to write with.

    Raises:
      ValueError: a checkpoint that says none.
    """
    start = settings.decoder_start_token_id
    start = settings.bos_token_id if start is None else start
    if start is None:
        raise ValueError("an encoder-decoder needs decoder_start_token_id to begin with, config.json has none")
    return start


def _begin(rows: int, token: int | None, on: Any = np, dtype: Any = np.int32) -> Any:
    if token is None:
        raise ValueError("a text without a prompt begins with bos_token_id, config.json has none")
    return on.full((rows, 1), token, dtype)


def _left(config: Any, read: GenerationInput) -> tuple[GenerationInput, np.ndarray]:
    """Pad on the left. Positions count tokens alone, so that neither they nor what is seen change."""
    mask, length = read.seen_or_all(), read.tokens.shape[1]
    if not mask.any(1).all():
        raise ValueError("a prompt has at least one token, got a row of attention_mask that is all 0")
    if not mask[:, -1].all():
        raise ValueError("prompts of a decoder-only model are padded on the left, got an attention_mask that ends in 0")
    more = fitting(config.embedding, length, more=1) - length  # the last token is not read with the others
    return read.padded(more, 0, mask), np.pad(read.prompt, ((0, 0), (more, 0)), constant_values=NOTHING)


def _right(config: Any, read: GenerationInput) -> tuple[GenerationInput, np.ndarray]:
    """Pad on the right, unless a row is all padding: it attends to all of it, be it more or less."""
    mask, before = read.seen_or_all(), read.tokens.shape[1]
    table = getattr(config.encoder, "embedding", None) or config.source_embedding or config.embedding
    length = fitting(table, before) if mask.any(1).all() else before
    return read.padded(0, length - before, mask), read.prompt


def _as_it_is(config: Any, read: GenerationInput) -> tuple[GenerationInput, np.ndarray]:
    return read, read.prompt


def _causal_cache(model: Any, task: Any, length: int, beams: int) -> Any:
    ids, mask, before = task.ids, task.mask, task.before
    beside = {}
    if task.past is not None:
        return model.read_on(task.past, ids[:, :-1], mask[:, :-1] == 0)[1].fork(beams, before + length)
    if isinstance(ids, dict):
        beside = {name: value for name, value in ids.items() if name != "tokens"}
        ids = ids["tokens"]
    elif not before:
        return model.init_cache(len(ids), length, beams=beams)
    padding = None if mask is None else mask[:, :-1] == 0
    return model.prefill(ids[:, :-1], padding, **beside)[1].fork(beams, before + length)


def _seq2seq_cache(model: Any, task: Any, length: int, beams: int) -> Any:
    source = visible(task.mask)
    return model.init_cache(model.encode(task.ids, source), source, length, beams=beams, begun=task.begun[:, :-1])


def _count_source(source: Any, begun: Any) -> int:
    return (source["tokens"] if isinstance(source, dict) else source).shape[1] - 1


def _count_begun(source: Any, begun: Any) -> int:
    return begun.shape[1] - 1


CONTINUE = {"pad": _left, "before": _count_source, "cache": _causal_cache, "continues": True}
RESPOND = {"before": _count_begun, "cache": _seq2seq_cache}
STARTS = {
    ("text-generation", "text"): Start(_continued, **CONTINUE),
    ("text-generation", "image and text"): Start(_continued_beside, **CONTINUE),
    ("text-generation", "images among text"): Start(_continued_among, **CONTINUE),
    ("text2text-generation", "text"): Start(_answered, _right, **RESPOND),
    ("text2text-generation", "states and text"): Start(_words_after_states, _as_it_is, **RESPOND),
    ("text2text-generation", "image"): Start(_image_words, _as_it_is, **RESPOND),
    ("text2text-generation", "image and text"): Start(_words_after_image, _as_it_is, **RESPOND),
    ("text2text-generation", "image and question"): Start(_asked, _right, **RESPOND),
}
"""By what an architecture can do, and what it reads."""


def start_of(pretrained: Any) -> Start:
    """Return how a checkpoint begins to generate.

    Raises:
      ValueError: one that generates nothing.
    """
    known, needs = pretrained.architecture, pretrained.architecture.inputs.needs
    reads = "images among text" if known.inputs.interleaved else "text"
    if "pixel_values" in needs:
        text = " and question" if "decoder_input_ids" in needs else " and text"
        reads = "image" + (text if "input_ids" in needs else "")
    if "encoder_hidden_states" in needs:
        reads = "states and text"
    found = next((STARTS[use, reads] for use in known.uses if (use, reads) in STARTS), None)
    if found is None:
        raise ValueError(f"a {name_of(pretrained)} generates no text: it is no language model")
    return found
