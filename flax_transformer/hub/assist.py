"""Generation with a draft: of a smaller checkpoint, `assistant_model`, or of what the prompt says, "prompt lookup".

Axes: B prompts, P prompt tokens.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flax_transformer.decode import Decoded, Draft, Drafted, assisted, lookup_draft, model_draft
from flax_transformer.hub.generation_input import NOTHING, GenerationInput, start_of
from flax_transformer.hub.given import name_of
from flax_transformer.hub.settings import Settings
from flax_transformer.nn import own_tables


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Assistant:
    """What proposes tokens; a pytree."""

    model: Any
    """The smaller model, laid out for decoding; None: what is looked up is proposed."""
    seen: Any
    """[B, P], where tokens are looked up."""
    count: int = field(metadata={"static": True})
    longest: int = field(metadata={"static": True})

    def draft(self, task: Any) -> Draft:
        """Make the draft of a task."""
        if self.model is None:
            return lookup_draft(self.seen, self.count, self.longest)
        model = own_tables(self.model)
        return model_draft(
            partial(_extend, model, task.before), task.cache(model).by_row(), self.count, partial(_grow, task.before)
        )


def check_assistant(pretrained: Any, assistant: Any, settings: Settings) -> bool:
    """Return whether anything proposes tokens.

    Raises:
      ValueError: something else than a checkpoint, one of another kind or vocabulary, both a checkpoint and a lookup,
        beams, or a model that cannot read several tokens at once from where each row is.
    """
    lookup = settings.prompt_lookup_num_tokens is not None
    if assistant is None and not lookup:
        return False
    if assistant is not None and lookup:
        raise ValueError("tokens are proposed by assistant_model or by prompt_lookup_num_tokens, got both")
    if settings.num_beams > 1 or settings.searches:
        raise ValueError(
            "beams and contrastive search take no proposals, got "
            f"num_beams={settings.num_beams}, penalty_alpha={settings.penalty_alpha}"
        )
    if assistant is not None and not hasattr(assistant, "architecture"):
        raise ValueError(f"assistant_model must be a checkpoint, as hub.load gives it, got {assistant!r:.60}")
    for each in (pretrained,) if assistant is None else (pretrained, assistant):
        if not hasattr(each.model, "extend"):
            raise ValueError(f"a {name_of(each)} cannot read proposed tokens at once")
    if assistant is None:
        return True
    if start_of(assistant) is not start_of(pretrained):
        raise ValueError(f"assistant_model must read what a {name_of(pretrained)} reads, got {name_of(assistant)}")
    tables = [each.model.cfg.embedding.vocab for each in (pretrained, assistant)]
    if tables[0] != tables[1]:
        raise ValueError(f"assistant_model must have the same vocabulary, got {tables[1]} tokens beside {tables[0]}")
    return True


def make_assistant(pretrained: Any, assistant: Any, settings: Settings, read: GenerationInput, seen: Any) -> Assistant:
    """Make what proposes tokens, of settings that `check_assistant` has seen.

    Args:
      read: what is generated from.
      seen: [B, P], what generated tokens come after.
    """
    if assistant is not None:
        return Assistant(assistant.decoder, None, settings.num_assistant_tokens, 1)
    count, longest = settings.prompt_lookup_num_tokens, settings.max_matching_ngram_size
    return Assistant(None, _looked_up(pretrained, read, seen), count, longest)


def _looked_up(pretrained: Any, read: GenerationInput, seen: Any) -> Any:
    """Return the tokens that may be looked up: those of a source too, where they are of the same vocabulary."""
    on, start = np if isinstance(seen, np.ndarray) else jnp, start_of(pretrained)
    hide = (lambda tokens: tokens) if read.mask is None else lambda tokens: on.where(read.mask != 0, tokens, NOTHING)
    if start.continues:
        return hide(seen)
    config = pretrained.model.cfg
    if not getattr(config, "embeds_source", False) or config.source_embedding is not None:
        return seen
    return on.concatenate([hide(read.tokens), seen], axis=1)


@jax.jit
def run_assisted(model: Any, assistant: Assistant, task: Any) -> tuple[Decoded, Drafted]:
    """Run the decoding loop of a `GenerationTask` with a draft."""
    model = own_tables(model)
    return assisted(
        partial(_extend, model, task.before), task.cache(model).by_row(), jnp.asarray(task.begun)[:, -1], task.config,
        assistant.draft(task), key=task.keys, process=task.process, grow=partial(_grow, task.before),
    )  # fmt: skip


def _extend(model: Any, before: int, cache: Any, tokens: Array, t: Array) -> tuple[Array, Any]:
    return model.extend(cache, tokens, before + t)


def _grow(before: int, cache: Any, length: int) -> Any:
    return cache.grow(before + length)
