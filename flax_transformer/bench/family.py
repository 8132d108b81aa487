"""What forward, training and decoding mean for the models of each config type; a new family is one entry."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from flax_transformer.decode import Greedy, greedy
from flax_transformer.models.causal import Causal, CausalCache, CausalConfig
from flax_transformer.models.encoder import MaskedLMConfig
from flax_transformer.models.seq2seq import Seq2Seq, Seq2SeqConfig
from flax_transformer.nn import EmbeddingConfig
from flax_transformer.objective import MaskedLoss, TokenLoss
from flax_transformer.ops.platform import platform
from flax_transformer.task.translator import decode_batch, ready

Batch = dict[str, Any]

FIRST = 4
"""Generated tokens begin here, after the marks for padding, begin and end."""


@dataclass(frozen=True)
class Family:
    """How the models of one config type are fed, trained and made to generate."""

    batch: Callable[[Any, int, int], Batch]
    """`batch(config, rows, length)`: generated tokens, every row full."""
    shape: Callable[[Any, Batch], dict[str, int]]
    """`shape(config, batch)`: the sizes that decide how long it takes."""
    forward: Callable[[Any, Batch], Any]
    """Logits, without dropout."""
    objective: Callable[..., Any]
    ready: Callable[[Any], Any]
    """The model as `decode` wants it on this platform."""
    decode: Callable[[Any, Batch], Any] | None
    """Greedy decoding without an end, as many tokens as the batch has labels a row; None: it generates nothing."""


def _batch(config: Seq2SeqConfig, rows: int, length: int) -> Batch:
    random = np.random.default_rng(0)
    full = np.full(rows, length, np.int32)

    def draw(vocab: int, columns: int) -> np.ndarray:
        return random.integers(min(FIRST, vocab - 1), vocab, (rows, columns)).astype(np.int32)

    source = draw((config.source_embedding or config.embedding).vocab, length)
    target = draw(config.embedding.vocab, length + 1)
    inputs = {"source": source, "target": target[:, :-1], "lengths": full}
    return {"inputs": inputs, "labels": target[:, 1:], "weights": np.ones((rows, length), np.float32)}


def _shape(config: Seq2SeqConfig, batch: Batch) -> dict[str, int]:
    rows, source = batch["inputs"]["source"].shape
    return {"rows": rows, "source": source, "target": batch["labels"].shape[1], "vocab": config.embedding.vocab}


def _logits(model: Any, batch: Batch) -> jax.Array:
    return model.output(model.hidden_states(**batch["inputs"])).logits()


def _decode(model: Seq2Seq, batch: Batch) -> Any:
    inputs, config = batch["inputs"], Greedy(max_length=batch["labels"].shape[1], eos=())
    return decode_batch(model, inputs["source"], inputs["lengths"], config=config, bos=1)


def _tokens(config: Any, rows: int, length: int) -> Batch:
    vocab = _embedding(config).vocab
    random = np.random.default_rng(0)
    tokens, labels = random.integers(min(FIRST, vocab - 1), vocab, (2, rows, length)).astype(np.int32)
    full = np.full(rows, length, np.int32)
    inputs = {"tokens": tokens, "lengths": full}
    return {"inputs": inputs, "labels": labels, "weights": np.ones((rows, length), np.float32)}


def _embedding(config: Any) -> EmbeddingConfig:
    return getattr(config, "encoder", config).embedding


def _hidden_tokens(config: MaskedLMConfig, rows: int, length: int) -> Batch:
    """Hide every seventh token, about as many as BERT does."""
    batch = _tokens(config, rows, length)
    places = np.broadcast_to(np.arange(0, length, 7, dtype=np.int32), (rows, -(-length // 7)))
    chosen = {name: np.take_along_axis(batch[name], places, axis=1) for name in ("labels", "weights")}
    return {**batch, **chosen, "places": np.ascontiguousarray(places)}


def _token_shape(config: Any, batch: Batch) -> dict[str, int]:
    rows, length = batch["inputs"]["tokens"].shape
    return {"rows": rows, "length": length, "vocab": _embedding(config).vocab}


def _continue(model: Causal, batch: Batch) -> Any:
    tokens = batch["inputs"]["tokens"]
    config = Greedy(max_length=tokens.shape[1], eos=())
    cache = model.init_cache(len(tokens), config.stages[0])
    return greedy(partial(Causal.step, model), cache, tokens[:, 0], config, grow=CausalCache.grow)


def _ready_to_continue(model: Causal) -> Causal:
    return jax.jit(Causal.for_decoding)(model) if platform() == "cpu" else model


FAMILIES: dict[type, Family] = {
    Seq2SeqConfig: Family(
        batch=_batch, shape=_shape, forward=_logits, objective=TokenLoss(label_smoothing=0.1, chunk=512),
        ready=ready, decode=_decode,
    ),
    CausalConfig: Family(
        batch=_tokens, shape=_token_shape, forward=_logits, objective=TokenLoss(),
        ready=_ready_to_continue, decode=_continue,
    ),
    MaskedLMConfig: Family(
        batch=_hidden_tokens, shape=_token_shape, forward=_logits, objective=MaskedLoss(),
        ready=lambda model: model, decode=None,
    ),
}  # fmt: skip
