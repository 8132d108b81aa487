"""What text models are trained on: pure functions of model and batch, sums and a `count` as the training step wants.

Axes: B rows, T positions, E classes.
"""

from typing import Any

import jax
import jax.numpy as jnp

from flax_transformer.nn import own_tables
from flax_transformer.ops import Mask, cross_entropy

Batch = dict[str, Any]
Loss = tuple[jax.Array, dict[str, jax.Array]]


def causal_loss(model: Any, batch: Batch, *, key: Any = None, chunk: int = 2048) -> Loss:
    """Sum the cross-entropy of every next token.

    Args:
      batch: `tokens`, `labels` and `weights` [B, T]; packed rows also have `segments` and `positions`.
      chunk: tokens whose logits exist at a time.
    """
    segments = batch.get("segments")
    mask = None if segments is None else Mask(segments=(segments, segments))
    model = own_tables(model)
    hidden = model.encode(batch["tokens"], mask=mask, positions=batch.get("positions"), key=key)
    total, count, _ = model.output(hidden).scores(batch["labels"], batch["weights"], chunk=chunk)
    return total, {"count": count}


def masked_loss(model: Any, batch: Batch, *, key: Any = None, chunk: int = 2048) -> Loss:
    """Sum the cross-entropy of every hidden token, and of next sentence prediction where the batch has its labels.

    The mean over hidden tokens and the mean over rows are added, as BERT does. Logits exist of hidden tokens alone, and
    of `chunk` at a time.

    Args:
      model: a `MaskedLM`, with a head for next sentences where the batch has labels of them.
      batch: `tokens` [B, T] and `length` [B]; `places`, `labels` and `weights` [B, M] of the hidden tokens, weight 0
        where there is none; perhaps `token_types` [B, T] and `next_sentence_label` [B] (0: it follows).
    """
    mask, model = Mask(lengths=batch["length"]), own_tables(model)
    hidden = model.encoder(batch["tokens"], mask=mask, types=batch.get("token_types"), key=key)
    output = model.output(jnp.take_along_axis(hidden, batch["places"][..., None], axis=1))
    total, count, right = output.scores(batch["labels"], batch["weights"], chunk=chunk)
    metrics = {"count": count, "masked_accuracy": right}
    if "next_sentence_label" not in batch:
        return total, metrics
    rows = (batch["length"] > 0).astype(jnp.float32)
    logits, labels = model.sentence(hidden), batch["next_sentence_label"]
    # A mean over rows inside a sum over tokens: scaled so that dividing by the tokens gives the mean over rows.
    scale = count / jnp.maximum(rows.sum(), 1)
    sentence, right = cross_entropy(logits, labels, rows)[0], jnp.sum((logits.argmax(-1) == labels) * rows)
    extra = {"masked_loss": total, "sentence_loss": scale * sentence, "sentence_accuracy": scale * right}
    return total + scale * sentence, {**metrics, **extra}


def classification_loss(model: Any, batch: Batch, *, key: Any = None) -> Loss:
    """Sum the cross-entropy of each row's class, and count the right ones.

    Args:
      model: a `Classifier` of sequences on an encoder.
      batch: `tokens` [B, T], `length` and `label` [B], perhaps `token_types` [B, T].
    """
    keys = (None, None) if key is None else jax.random.split(key)
    hidden = model.backbone(
        batch["tokens"], mask=Mask(lengths=batch["length"]), types=batch.get("token_types"), key=keys[0]
    )
    logits, labels = model.head(hidden, key=keys[1]), batch["label"]
    rows = (batch["length"] > 0).astype(jnp.float32)
    total, count = cross_entropy(logits, labels, rows)
    return total, {"count": count, "accuracy": jnp.sum((logits.argmax(-1) == labels) * rows)}
