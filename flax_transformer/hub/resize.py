"""Growing and shrinking a vocabulary: `resize_token_embeddings` of `transformers`.

Axes: V tokens, D width.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.pretrained import Pretrained
from flax_transformer.nn import EmbeddingConfig, with_fields
from flax_transformer.nn.config import configs_in
from flax_transformer.parallel import path_name

SPREAD = 1e-9
"""What the covariance of new rows is of the old ones', as Hugging Face has it."""


def resize_token_embeddings(
    pretrained: Pretrained,
    tokens: int,
    *,
    multiple: int = 1,
    key: PRNGKeyArray | None = None,
    mean_resizing: bool = True,
) -> Pretrained:
    """Return the checkpoint with a vocabulary of so many tokens: its tables, output layer and output bias.

    Old rows stay as they are, and so do the logits of old tokens; a tied output layer stays tied, and new biases are 0.
    The tokenizer is not changed: `pretrained.tokenizer` may know fewer tokens.

    Args:
      multiple: round the vocabulary up to a multiple of it, as `pad_to_multiple_of`.
      key: new rows are drawn from a normal distribution with the mean of the old ones and 1e-9 of their covariance
        (Hewitt 2021, https://nlp.stanford.edu/~johnhew/vocab-expansion.html); without a key they are that mean.
      mean_resizing: False draws new rows as those of a new model, which needs a key.

    Raises:
      ValueError: no token, a model whose config.json has no vocabulary or two of them, or one of few bits.

    >>> from flax_transformer.models.causal import Causal
    >>> from flax_transformer.models.text.gpt2 import gpt2_tiny
    >>> from flax_transformer.hub import wrap
    >>> small = wrap(Causal(gpt2_tiny(vocab=65), rngs=nnx.Rngs(0)), "GPT2LMHeadModel")
    >>> resize_token_embeddings(small, 70, multiple=8).config.vocab_size
    72
    """
    if tokens < 1 or multiple < 1:
        raise ValueError(f"a vocabulary has at least 1 token, and a multiple of at least 1, got {tokens}, {multiple}")
    if not mean_resizing and key is None:
        raise ValueError("new rows as those of a new model need a key: mean_resizing=False, key=jax.random.key(0)")
    tokens = -(-tokens // multiple) * multiple
    model, (fields, before) = pretrained.model, _fields(pretrained.config, tokens)
    config = with_fields(model.cfg, vocab=tokens)
    wanted = nnx.eval_shape(lambda: config.build(nnx.Rngs(0)))
    old, new = (jax.tree_util.tree_leaves_with_path(each) for each in (model, wanted))
    if [path_name(path) for path, _ in old] != [path_name(path) for path, _ in new]:
        raise ValueError("a vocabulary is resized before a checkpoint is quantised, adapted or laid out")
    table = next(each for each in configs_in(config) if isinstance(each, EmbeddingConfig))
    std, leaves = None if mean_resizing else table.init_std or table.embed**-0.5, []
    for number, ((path, leaf), (_, shape)) in enumerate(zip(old, new, strict=True)):
        own = None if key is None else jax.random.fold_in(key, number)
        leaves.append(_resized(path_name(path), leaf, shape.shape, before, own, std))
    return replace(pretrained, model=jax.tree.structure(wanted).unflatten(leaves), config=fields)


def _fields(config: Fields, tokens: int) -> tuple[Fields, int]:
    """Return config.json with another vocabulary, and the size of the old one."""
    inner = config.get("text_config")
    if isinstance(inner, dict) and "vocab_size" in inner and "vocab_size" not in config:
        return config.updated({"text_config": {**inner, "vocab_size": tokens}}), inner["vocab_size"]
    if "vocab_size" not in config:
        raise ValueError("config.json has no vocab_size: the model reads no tokens")
    before, other = config["vocab_size"], config.get("decoder_vocab_size")
    if other not in (None, before) or not config.get("share_encoder_decoder_embeddings", True):
        raise ValueError(f"a model of two vocabularies cannot be resized, got {before} and {other or before} tokens")
    changes = {"vocab_size": tokens} | ({} if other is None else {"decoder_vocab_size": tokens})
    return config.updated(changes), before


def _resized(
    name: str, leaf: Any, shape: tuple[int, ...], before: int, key: PRNGKeyArray | None, std: float | None
) -> Any:
    """Grow or shrink the one axis of a parameter that has another size."""
    axes = [axis for axis, (a, b) in enumerate(zip(leaf.shape, shape, strict=True)) if a != b]
    if not axes:
        return leaf
    if len(axes) > 1 or leaf.shape[axes[0]] < before:
        raise ValueError(f"{name} of shape {leaf.shape} cannot become one of shape {shape}")
    (axis,) = axes
    rows = jnp.moveaxis(leaf, axis, 0)[:before]
    grown = jnp.concatenate([rows, _new_rows(rows, shape[axis] - before, key, std)]) if shape[axis] > before else rows
    return jnp.moveaxis(grown[: shape[axis]], 0, axis)


def _new_rows(
    rows: Float[Array, "V *D"], count: int, key: PRNGKeyArray | None, std: float | None
) -> Float[Array, "n *D"]:
    shape, dtype = (count, *rows.shape[1:]), rows.dtype
    if rows.ndim == 1:  # the bias of an output layer
        return jnp.zeros(shape, dtype)
    if std is not None:
        return (std * jax.random.normal(key, shape)).astype(dtype)
    flat = rows.astype(jnp.float32).reshape(len(rows), -1)
    mean = flat.mean(0)
    new = jnp.broadcast_to(mean, (count, flat.shape[1]))
    if key is not None:  # of as many standard normal numbers as there are rows, which has just that covariance
        noise = jax.random.normal(key, (count, len(flat)))
        new = new + jnp.sqrt(SPREAD / len(flat)) * jnp.matmul(noise, flat - mean, precision="highest")
    return new.reshape(shape).astype(dtype)
