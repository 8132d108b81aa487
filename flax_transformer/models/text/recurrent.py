"""Recurrent encoder-decoders: LSTM or GRU on both sides (Sutskever et al. 2014, https://arxiv.org/abs/1409.3215; Cho et
al. 2014, https://arxiv.org/abs/1406.1078), without attention or with that of Bahdanau et al. 2015 or Luong et al. 2015.

Axes: B batch, R rows (B times the hypotheses of each), S source positions, T target positions, E width of embeddings,
H of states, W of the memory, V vocabulary.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import LENGTH, draw_tokens
from flax_transformer.models.output import Output
from flax_transformer.models.protocol import Described
from flax_transformer.models.text.recurrent_attention import RecurrentAttention, RecurrentAttentionConfig
from flax_transformer.models.text.recurrent_layer import Recurrent, RecurrentConfig, State
from flax_transformer.nn import Embedding, EmbeddingConfig, Precision
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.ops import dropout
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Order, Part

FLOAT32 = Precision()


@frozen
class RecurrentSeq2SeqConfig:
    """An encoder, a decoder of as many layers, and the table of tokens that both and the output layer share."""

    embedding: EmbeddingConfig
    """Embeddings of tokens and positions."""
    encoder: RecurrentConfig
    """Recurrent layers that read the source."""
    decoder: RecurrentConfig
    """Recurrent layers that write the target, with attention to the source."""
    look: RecurrentAttentionConfig | None = None
    """How the decoder looks at the source; None: it knows its last states alone."""
    feeding: bool = False
    """Whether the decoder reads, beside a token, what it gave at the one before (input feeding, Luong et al. 2015)."""
    dropout: float = 0.0
    """Of what is given, before the output layer."""

    def __post_init__(self):
        check_fields(self)
        for side in ("encoder", "decoder"):
            if getattr(self, side).embed != self.embedding.width:
                raise ValueError(
                    f"the {side} must read embeddings, which are {self.embedding.width} wide, got "
                    f"embed={getattr(self, side).embed}"
                )
        if self.decoder.bidirectional:
            raise ValueError("a decoder reads in one direction, got bidirectional=True")
        if (self.encoder.depth, self.encoder.cell) != (self.decoder.depth, self.decoder.cell):
            raise ValueError(
                "both sides must have as many layers of one kind, as each layer goes on from the other side's, got "
                f"{self.encoder.depth} of {self.encoder.cell} and {self.decoder.depth} of {self.decoder.cell}"
            )
        if self.feeding and self.look is not None and self.look.before:
            raise ValueError("a decoder that looks before it steps reads what it saw: feeding must be False, got True")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")

    def build(self, rngs: nnx.Rngs) -> "RecurrentSeq2Seq":
        """Make the model."""
        return RecurrentSeq2Seq(self, rngs=rngs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RecurrentMemory:
    """A source that was read."""

    memory: Float[Array, "B S W"]
    states: tuple[State, ...]
    """Every layer's last ones."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RecurrentCache:
    """What decoding carries: states of each hypothesis, and the source, once a sentence."""

    states: tuple[State, ...]
    """Of each layer, [R, H]."""
    fed: Float[Array, "R F"] | None
    """What was given at the last position, where the decoder reads it."""
    memory: Float[Array, "B S W"]
    keys: Float[Array, "B S A"] | None
    lengths: Int[Array, "B"] | None
    index: Int[Array, ""]

    def reorder(self, rows: Int[Array, "R"]) -> "RecurrentCache":
        """Select hypotheses: row i continues what row `rows[i]` was, of the same sentence, whose memory stays."""
        states, fed = jax.tree.map(lambda leaf: leaf[rows], (self.states, self.fed))
        return replace(self, states=states, fed=fed)


class RecurrentSeq2Seq(Module):
    """`model(source, target)` gives logits; `encode`, `init_cache` and `step` decode."""

    @property
    def layer_order(self) -> Order:
        """What looks at the source lies below the decoder if it looks before a step."""
        below, above = (("look",), ()) if self._before else ((), ("look",))
        return "embedding", Part("encoder"), "bridge", *below, "fed", Part("decoder"), *above, "join"

    use = "text2text-generation"

    @classmethod
    def example_batch(cls, config: RecurrentSeq2SeqConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B sources and as many targets, of T tokens each."""
        T, vocab = length or LENGTH, config.embedding.vocab
        target = draw_tokens(vocab, rows, T + 1)
        inputs = {
            "source": draw_tokens(vocab, rows, T),
            "lengths": np.full(rows, T, np.int32),
            "target": target[:, :-1],
        }
        return {"inputs": inputs, "labels": target[:, 1:], "weights": np.ones((rows, T), np.float32)}

    @classmethod
    def describe_batch(cls, config: RecurrentSeq2SeqConfig, batch: dict[str, Any]) -> Described:
        """Count B · T tokens of the target."""
        rows, target = batch["inputs"]["target"].shape
        sizes = {"rows": rows, "source": batch["inputs"]["source"].shape[1], "target": target}
        return Described({**sizes, "vocab": config.embedding.vocab}, rows * target, "tokens")

    def __init__(self, cfg: RecurrentSeq2SeqConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        width, hidden, seen = cfg.embedding.width, cfg.decoder.hidden, cfg.encoder.width
        kinds = cfg.decoder.precision.dtypes
        self.embedding = Embedding(cfg.embedding, rngs=rngs)
        self.encoder, self.decoder = (Recurrent(side, rngs=rngs) for side in (cfg.encoder, cfg.decoder))
        if seen != hidden:  # else a layer goes on from the other side's states as they are
            parts = range(2 if cfg.decoder.cell == "lstm" else 1)

            def layer():
                return nnx.List([Linear(seen, hidden, rngs=rngs, **kinds) for _ in parts])

            self.bridge = nnx.List([layer() for _ in range(cfg.decoder.depth)])
        if cfg.look is not None:
            self.look = RecurrentAttention(cfg.look, hidden, seen, cfg.decoder.precision, rngs=rngs)
        if fed := width if cfg.feeding else seen if self._before else 0:
            self.fed = Linear(fed, self.decoder.forward[0].input.out_features, use_bias=False, rngs=rngs, **kinds)
        self.join = Linear(hidden + (seen if cfg.look else 0), width, rngs=rngs, **kinds)

    @property
    def _before(self) -> bool:
        return self.cfg.look is not None and self.cfg.look.before

    def encode(
        self, source: Int[Array, "B S"], lengths: Int[Array, "B"] | None = None, *, key: PRNGKeyArray | None = None
    ) -> RecurrentMemory:
        """Read a source.

        Args:
          lengths: positions from there on are padding; all count by default.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        return RecurrentMemory(*self.encoder(self.embedding(source, key=keys[0]), lengths, key=keys[1]))

    def decode(
        self,
        target: Int[Array, "B T"],
        memory: RecurrentMemory,
        lengths: Int[Array, "B"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T E"]:
        """Compute what the output layer is given at all target positions.

        Args:
          lengths: of the source.
          key: for dropout; None means none.
        """
        keys = split_keys(key, 3)
        x = self.embedding(target, key=keys[0])
        cache = self.init_cache(memory, lengths, target.shape[1])
        if self.cfg.feeding or self._before:
            kept = self.decoder.kept(target.shape[:1], keys[1])
            projected = jnp.moveaxis(self.decoder.forward[0].project(x), 1, 0)
            _, (given, weights) = jax.lax.scan(partial(self._advance, kept), cache, projected)
            given, weights = jnp.moveaxis(given, 0, 1), None if weights is None else jnp.moveaxis(weights, 0, 1)
        else:  # nothing that is given comes back, so all positions look at once
            x, _ = self.decoder(x, states=cache.states, key=keys[1])
            given, weights = self._given(x, cache, jnp.arange(target.shape[1]))
        if weights is not None:
            checkpoint_name(weights[None, :, None], "attention_weights")  # for `ops.capture`: one layer, one head
        return dropout(given, self.cfg.dropout, keys[2])

    def hidden_states(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        *,
        lengths: Int[Array, "B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T E"]:
        """Compute what the output layer is given, from the inputs of a batch.

        Args:
          target: decoder input, beginning with the start token.
          lengths: of the source.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        return self.decode(target, self.encode(source, lengths, key=keys[0]), lengths, key=keys[1])

    def output(self, hidden: Float[Array, "*B T E"]) -> Output:
        """Return what logits are made of: products with the table of tokens."""
        return Output(hidden, self.embedding)

    def __call__(
        self,
        source: Int[Array, "B S"],
        target: Int[Array, "B T"],
        lengths: Int[Array, "B"] | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "B T V"]:
        """Compute logits of the token after each target position; arguments as `hidden_states`'."""
        return self.output(self.hidden_states(source, target, lengths=lengths, key=key)).logits()

    def init_cache(
        self, memory: RecurrentMemory, lengths: Int[Array, "B"] | None, length: int, *, beams: int = 1
    ) -> RecurrentCache:
        """Prepare to decode `beams` hypotheses a sentence; states are no larger for `length` tokens."""
        states = jax.tree.map(lambda leaf: jnp.repeat(leaf, beams, axis=0), self._bridged(memory.states))
        rows = states[0][0].shape[0]
        fed = jnp.zeros((rows, self.cfg.embedding.width), memory.memory.dtype) if self.cfg.feeding else None
        keys = self.look.keys(memory.memory) if self.cfg.look is not None else None
        return RecurrentCache(states, fed, memory.memory, keys, lengths, jnp.zeros((), jnp.int32))

    def step(self, cache: RecurrentCache, token: Int[Array, "R"]) -> tuple[Float[Array, "R V"], RecurrentCache]:
        """Decode one token: logits of the next one, and the cache with this one in it."""
        projected = self.decoder.forward[0].project(self.embedding(token[:, None])[:, 0])
        cache, (given, _) = self._advance(None, cache, projected)
        return self.output(given[:, None]).logits()[:, 0], cache

    def _bridged(self, states: tuple[State, ...]) -> tuple[State, ...]:
        """Return the states that the decoder goes on from: an LSTM's cells are not bounded, hidden states are."""
        if not hasattr(self, "bridge"):
            return states
        found = []
        for layer, (hidden, *cell) in zip(self.bridge, states, strict=True):
            first = jnp.tanh(layer[0](hidden)).astype(hidden.dtype)
            found.append((first, *(layer[1](part).astype(part.dtype) for part in cell)))
        return tuple(found)

    def _advance(
        self, kept: list[Array | None] | None, cache: RecurrentCache, projected: Array
    ) -> tuple[RecurrentCache, tuple[Array, Array | None]]:
        """Read one token a row, [R, G]: what is given, and how much of the source was seen for it."""
        weights = context = None
        if self._before:
            context, weights = self._see(cache.states[-1][0][:, None], cache, cache.index[None])
            projected = projected + self.fed(context[:, 0])
        elif self.cfg.feeding:
            projected = projected + self.fed(cache.fed)
        states = self.decoder.step(cache.states, projected, kept)
        top = states[-1][0][:, None].astype(cache.memory.dtype)
        if self._before:
            given = self._joined(top, context)
        else:
            given, weights = self._given(top, cache, cache.index[None])
        given = given[:, 0]
        fed = given if self.cfg.feeding else None
        found = given, None if weights is None else weights[:, 0]
        return replace(cache, states=states, fed=fed, index=cache.index + 1), found

    def _given(self, top: Array, cache: RecurrentCache, positions: Array) -> tuple[Array, Array | None]:
        """Attend by states [R, T, H], if they do, and join what they see to them."""
        context, weights = self._see(top, cache, positions) if self.cfg.look is not None else (None, None)
        return self._joined(top, context), weights

    def _joined(self, top: Array, context: Array | None) -> Array:
        return jnp.tanh(self.join(top if context is None else jnp.concatenate([top, context], axis=-1)))

    def _see(self, query: Array, cache: RecurrentCache, positions: Array) -> tuple[Array, Array]:
        """Attend by states [R, T, H], where the hypotheses of a sentence share its memory."""
        (R, T, _), B = query.shape, cache.memory.shape[0]
        beside = query.reshape(B, R // B * T, -1)
        places = jnp.tile(positions, R // B)
        context, weights = self.look(beside.astype(cache.memory.dtype), cache.keys, cache.memory, cache.lengths, places)
        return context.reshape(R, T, -1), weights.reshape(R, T, -1)


def _recurrent(
    vocab: int,
    *,
    look: RecurrentAttentionConfig | None = None,
    feeding: bool = False,
    bidirectional: bool = False,
    **cell: Any,
) -> RecurrentSeq2SeqConfig:
    """Make a config of two sides with the same fields of a `RecurrentConfig`, but for directions."""
    sides = [RecurrentConfig(**cell, bidirectional=both) for both in (bidirectional, False)]
    embedding = EmbeddingConfig(
        vocab=vocab, embed=sides[0].embed, position="none", scaled=False, dropout=sides[0].dropout, init_std=0.1,
        precision=sides[0].precision,
    )  # fmt: skip
    return RecurrentSeq2SeqConfig(
        embedding=embedding, encoder=sides[0], decoder=sides[1], look=look, feeding=feeding, dropout=sides[0].dropout
    )


def lstm_seq2seq(vocab: int = 80_000, *, precision: Precision = FLOAT32) -> RecurrentSeq2SeqConfig:
    """Return the sizes of Sutskever et al. 2014: four LSTMs of 1,000 on each side, and no attention.

    Theirs reads its source from its end, and has a table for each side.
    """
    return _recurrent(vocab, cell="lstm", embed=1000, hidden=1000, depth=4, precision=precision)


def rnn_search(vocab: int = 30_000, *, precision: Precision = FLOAT32) -> RecurrentSeq2SeqConfig:
    """Return the sizes of Bahdanau et al. 2015: a GRU of 1,000 in both directions, one that looks before it steps.

    Theirs has maxout before the output layer where this has tanh, and a table for each side.
    """
    look = RecurrentAttentionConfig(score="additive", before=True)
    return _recurrent(
        vocab, cell="gru", embed=620, hidden=1000, bidirectional=True, look=look, precision=precision
    )  # fmt: skip


def luong_lstm(vocab: int = 50_000, *, precision: Precision = FLOAT32) -> RecurrentSeq2SeqConfig:
    """Return the sizes of Luong et al. 2015: four LSTMs of 1,000, general scores of all the source, input feeding.

    Theirs has a table for each side.
    """
    return _recurrent(
        vocab, cell="lstm", embed=1000, hidden=1000, depth=4, look=RecurrentAttentionConfig(score="general"),
        feeding=True, dropout=0.2, precision=precision,
    )  # fmt: skip
