"""An encoder-decoder that may copy tokens of its source (See et al. 2017, https://arxiv.org/abs/1704.04368), of
Transformer blocks in place of LSTMs.

Behind the decoder's last block one more cross-attention, of a single head, says where to copy from; the probability of
generating, p_gen, is read from the decoder's hidden state and what that attention sees. See et al. add what has been
attended to before to the scores of attention; here all positions are computed at once, and coverage is a loss alone.
Axes: B batch, S source positions, T target positions, D width, W that of the memory, H copying head, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.models.output import Output
from flax_transformer.models.seq2seq import DecoderCache, Seq2Seq, Seq2SeqConfig, source_mask
from flax_transformer.models.text.transformer import FLOAT32
from flax_transformer.nn import EmbeddingConfig, Precision, TrunkConfig, transformer_block
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.linear import Linear
from flax_transformer.ops import Mask, widen
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.ops.pointer import TINY, copy_log_probability, copy_probabilities, mix, pointer_cross_entropy
from flax_transformer.ops.split_keys import split_keys

HIDDEN = -1e9
"""Score of a source position that is padding: finite, so that an empty row gives numbers."""


@frozen
class PointerConfig(Seq2SeqConfig):
    """An encoder-decoder of tokens whose source and target share a vocabulary, and how it copies."""

    copy_width: int = 64
    """H, the width of queries and keys that say where to copy from."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "copy_width")
        if not self.embeds_source or (self.source_embedding is not None and self.source_embedding.own_table):
            raise ValueError("a model that copies reads tokens of the vocabulary it writes, got another source")

    def build(self, rngs: nnx.Rngs) -> "PointerGenerator":
        """Make the model."""
        return PointerGenerator(self, rngs=rngs)


def pointer_generator(
    vocab: int = 8_192,
    *,
    embed: int = 256,
    heads: int = 4,
    inner: int = 512,
    depth: int = 2,
    dropout: float = 0.2,
    precision: Precision = FLOAT32,
) -> PointerConfig:
    """Return a small model for summaries: `depth` pre-norm blocks on each side."""
    options = {"embed": embed, "heads": heads, "inner": inner, "dropout": dropout, "precision": precision}
    block = {**options, "norm_position": "pre"}
    return PointerConfig(
        embedding=EmbeddingConfig(vocab=vocab, embed=embed, dropout=dropout, precision=precision),
        encoder=TrunkConfig(block=transformer_block(**block), depth=depth),
        decoder=TrunkConfig(block=transformer_block(**block, cross=True), depth=depth),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Source:
    """A source as it is read and as it is copied from: hidden states [*B, S, W] and tokens [*B, S]."""

    memory: Any
    tokens: Any

    def __len__(self) -> int:
        return len(self.memory)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PointerStates:
    """What logits, or a loss, are made of: the decoder's hidden states, and where they point."""

    hidden: Any
    """[*B, T, D]."""
    attention: Any
    """[*B, T, S], probabilities of copying each token of the source."""
    gate: Any
    """[*B, T], the logit of p_gen."""
    source: Any
    """[*B, S], the tokens."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PointerOutput:
    """The mixture of the generator's distribution and of copying."""

    states: PointerStates
    generator: Output

    def logits(self) -> Float[Array, "*B T V"]:
        """Compute log-probabilities, float32 or more: the softmax of these logits is the mixture itself."""
        states, generated = self.states, jax.nn.log_softmax(self.generator.logits(), axis=-1)
        copied = copy_probabilities(states.attention, states.source, generated.shape[-1])
        return mix(states.gate, generated, jnp.log(copied + TINY))

    def scores(
        self, labels: Int[Array, "*B T"], weights: Shaped[Array, "*B T"], **options: Any
    ) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
        """Sum the cross-entropy of labels, their weights, and p_gen over labels.

        Args:
          options: `chunk`, `label_smoothing` and `z_loss` of `ops.pointer_cross_entropy`.
        """
        states, table = self.states, self.generator.embedding
        copied = copy_log_probability(states.attention, states.source, labels)
        total, count = pointer_cross_entropy(
            self.generator.hidden, table.rows, labels, weights, states.gate, copied, vocab=table.cfg.vocab, **options
        )
        return total, count, jnp.sum(jax.nn.sigmoid(states.gate) * weights)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PointerCache:
    """What incremental decoding carries: the decoder's cache, and a sentence's source, which its hypotheses share."""

    decoder: DecoderCache
    keys: Any
    """[B, S, H]."""
    source: Source

    def reorder(self, rows: Int[Array, "R"]) -> "PointerCache":
        """Select hypotheses: row i continues what row `rows[i]` was, of the same sentence."""
        return replace(self, decoder=self.decoder.reorder(rows))

    def grow(self, length: int) -> "PointerCache":
        """Make room for `length` tokens in all."""
        return replace(self, decoder=self.decoder.grow(length))


class PointerGenerator(Seq2Seq):
    """`model(source, target)` gives log-probabilities; `encode`, `init_cache` and `step` decode."""

    layer_order = (*Seq2Seq.layer_order, "copy_query", "copy_key", "generate")

    def __init__(self, cfg: PointerConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        block, kinds = cfg.decoder.block, cfg.embedding.precision.dtypes
        self.copy_query = Linear(block.embed, cfg.copy_width, use_bias=False, rngs=rngs, **kinds)
        self.copy_key = Linear(block.cross.memory_width, cfg.copy_width, use_bias=False, rngs=rngs, **kinds)
        self.generate = Linear(block.embed + block.cross.memory_width, 1, rngs=rngs, **kinds)

    def encode(
        self,
        source: Int[Array, "*B S"],
        lengths: Int[Array, "*B"] | Mask | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Source:
        """Encode a source, and keep its tokens; arguments as `Seq2Seq.encode`'s."""
        return Source(super().encode(source, lengths, key=key), source)

    def decode(
        self,
        target: Int[Array, "*B T"],
        memory: Source,
        lengths: Int[Array, "*B"] | Mask | None = None,
        *,
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> PointerStates:
        """Compute the decoder's hidden states, and where they point; arguments as `Seq2Seq.decode`'s."""
        hidden = super().decode(target, memory.memory, lengths, mask=mask, key=key)
        return self._point(hidden, self.copy_key(memory.memory), memory, source_mask(lengths))

    def hidden_states(
        self,
        source: Int[Array, "*B S"],
        target: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> PointerStates:
        """Compute what `output` makes logits of, from the inputs of a batch; arguments as `Seq2Seq.hidden_states`'s."""
        keys = split_keys(key)
        return self.decode(target, self.encode(source, lengths, key=keys[0]), lengths, key=keys[1])

    def _point(
        self, hidden: Float[Array, "*B T D"], keys: Float[Array, "*B S H"], source: Source, mask: Mask | None
    ) -> PointerStates:
        """Attend from hidden states to the source with one head, whose weights are probabilities of copying."""
        kind = at_least_float32(hidden.dtype)
        scores = jnp.einsum("...td,...sd->...ts", self.copy_query(hidden), keys, preferred_element_type=kind)
        scores = scores * self.cfg.copy_width**-0.5
        if mask is not None:
            there = jnp.arange(keys.shape[-2]) < mask.lengths[..., None]
            scores = jnp.where(there[..., None, :], scores, HIDDEN)
        attention = jax.nn.softmax(scores, axis=-1)
        seen = jnp.einsum("...ts,...sd->...td", attention.astype(hidden.dtype), source.memory)
        gate = widen(self.generate(jnp.concatenate([hidden, seen.astype(hidden.dtype)], axis=-1)))[..., 0]
        return PointerStates(hidden, attention, gate, source.tokens)

    def output(self, hidden: PointerStates) -> PointerOutput:
        """Return what logits are made of, from what `hidden_states` gives."""
        return PointerOutput(hidden, super().output(hidden.hidden))

    def init_cache(
        self,
        memory: Source,
        lengths: Int[Array, "B"] | Mask | None,
        length: int,
        *,
        beams: int = 1,
        begun: Int[Array, "B P"] | None = None,
    ) -> PointerCache:
        """Prepare to decode; arguments as `Seq2Seq.init_cache`'s."""
        decoder = super().init_cache(memory.memory, lengths, length, beams=beams, begun=begun)
        return PointerCache(decoder, self.copy_key(memory.memory), memory)

    def step(self, cache: PointerCache, token: Int[Array, "R"]) -> tuple[Float[Array, "R V"], PointerCache]:
        """Decode one token: log-probabilities of the next one, and the cache with this one in it."""
        x, decoder = self._advance(cache.decoder, token[:, None])
        rows = len(cache.keys)
        mask = cache.decoder.memory_mask if cache.decoder.memory_mask.lengths is not None else None
        # The hypotheses of a sentence are the positions of its row.
        states = self._point(x.reshape(rows, -1, x.shape[-1]), cache.keys, cache.source, mask)
        logits = self.output(states).logits()
        return logits.reshape(len(token), -1), replace(cache, decoder=decoder)
