"""The encoder-decoder Transformer of 2017 (Vaswani et al., "Attention Is All You Need").

Axes: B batch, S source positions, T target positions, D width, W that of the memory, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.models.example import LENGTH, draw_tokens
from flax_transformer.models.output import Output, OutputDense, output_table
from flax_transformer.models.patch_attention import PatchAttention, Tiles, by_stack
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.nn import (
    Caches,
    Embedding,
    EmbeddingConfig,
    Grid,
    Memories,
    OutputTable,
    TrunkConfig,
    each_cache,
    map_rows,
)
from flax_transformer.nn.check import check_widths
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask, activation, scaled
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class Seq2SeqConfig:
    """An encoder, a decoder, and the embeddings they share or do not."""

    embedding: EmbeddingConfig
    """Of the decoder, and of the encoder too unless `source_embedding` is given."""
    encoder: Any
    """A `TrunkConfig`, whose trunk is given embedded source tokens; or the config of any other encoder, a vision
    model's or an `EncoderConfig`, with `build(rngs)`, which makes a `SourceEncoder`."""
    decoder: TrunkConfig
    """The trunk of the decoder, with attention to the encoder's output."""
    source_embedding: EmbeddingConfig | None = None
    """With `own_table=False` it has positions and a norm of its own, but the decoder's token table."""
    tied_output: bool = True
    """Whether the output layer is the decoder's embedding table."""
    output_scale: float = 1.0
    """What hidden states are multiplied by before the output layer."""
    output_bias: bool = False
    """Whether the output layer adds a bias for each token."""
    output_dense: str | None = None
    """Activation of a dense layer, with a norm after it, before the output layer (BERT); None: neither."""

    def __post_init__(self):
        check_fields(self)
        if self.output_dense is not None:
            activation(self.output_dense)
        widths = {"embedding": self.embedding.width, "decoder": self.decoder.block.embed}
        if self.embeds_source:
            widths["encoder"] = self.encoder.block.embed
            widths["source_embedding"] = (self.source_embedding or self.embedding).width
        elif not hasattr(self.encoder, "build") or self.source_embedding is not None:
            raise ValueError(
                "encoder must be a TrunkConfig, or a config with build(rngs) whose encoder has no source_embedding "
                f"before it, got {type(self.encoder).__name__} and source_embedding={self.source_embedding}"
            )
        check_widths(**widths)
        if not self.decoder.cross or getattr(self.encoder, "cross", False):
            raise ValueError(
                "the decoder must attend to the encoder and not the reverse, got a decoder "
                f"{'with' if self.decoder.cross else 'without'} cross-attention"
            )
        given = getattr(getattr(self.encoder, "block", None), "embed", None)
        if given not in (None, seen := self.decoder.block.cross.memory_width):
            raise ValueError(
                f"the decoder must attend to as wide a memory as the encoder gives, got {seen} and {given}"
            )

    @property
    def embeds_source(self) -> bool:
        """Whether the encoder is a trunk, before which source tokens are embedded."""
        return getattr(type(self.encoder), "build", None) is TrunkConfig.build

    def build(self, rngs: nnx.Rngs) -> "Seq2Seq":
        """Make the model."""
        return Seq2Seq(self, rngs=rngs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecoderCache:
    """What incremental decoding carries: each layer's keys and values, and the projected source."""

    layers: Caches
    memory: Memories
    memory_mask: Mask
    index: Any
    """Tokens written: an int32, or what stands for it in a tree of shapes."""

    def fork(self, beams: int, length: int) -> "DecoderCache":
        """Prepare for `beams` hypotheses of every sentence, up to `length` tokens in all; it is kept once."""
        memory = each_cache(lambda memory: memory.share(beams), self.memory)
        layers = each_cache(lambda cache: cache.fork(beams, length), self.layers)
        return replace(self, layers=layers, memory=memory)

    def reorder(self, rows: Int[Array, "R"]) -> "DecoderCache":
        """Select hypotheses: row i continues what row `rows[i]` was, of the same sentence, whose memory stays."""
        return replace(self, layers=each_cache(lambda cache: cache.reorder(rows), self.layers))

    def by_row(self) -> "DecoderCache":
        """Let each row go on from another position, as `extend` does."""
        return replace(self, layers=each_cache(lambda cache: cache.by_row(), self.layers))

    def grow(self, length: int) -> "DecoderCache":
        """Make room for `length` tokens in all."""
        return replace(self, layers=each_cache(lambda cache: cache.grow(length), self.layers))


class Seq2Seq(OutputDense, Module):
    """The Transformer: `model(source, target)` gives logits; `encode`, `init_cache` and `step` decode."""

    layer_order = (
        "embedding", "source_embedding", Part("encoder"), Part("decoder"), "dense", "norm", "head", "output_bias",
    )  # fmt: skip

    use = "text2text-generation"

    @classmethod
    def example_batch(cls, config: Seq2SeqConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B sources, of T tokens or as the encoder makes its own, and as many targets of T tokens."""
        T = length or LENGTH
        if config.embeds_source:
            source = draw_tokens((config.source_embedding or config.embedding).vocab, rows, T)
            inputs = {"source": source, "lengths": np.full(rows, T, np.int32)}
        else:
            read = module_of(config.encoder).example_batch(config.encoder, rows, length)["inputs"]
            inputs = {name: read.pop(name) for name in ("lengths",) if name in read}
            inputs["source"] = read if len(read) > 1 else next(iter(read.values()))
        target = draw_tokens(config.embedding.vocab, rows, T + 1)
        inputs["target"] = target[:, :-1]
        return {"inputs": inputs, "labels": target[:, 1:], "weights": np.ones((rows, T), np.float32)}

    @classmethod
    def describe_batch(cls, config: Seq2SeqConfig, batch: dict[str, Any]) -> Described:
        """Count B · T tokens of the target."""
        rows, target = batch["inputs"]["target"].shape
        source = {"source": batch["inputs"]["source"].shape[1]} if config.embeds_source else {}
        sizes = {"rows": rows, **source, "target": target, "vocab": config.embedding.vocab}
        return Described(sizes, rows * target, "tokens")

    def __init__(self, cfg: Seq2SeqConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embedding = Embedding(cfg.embedding, rngs=rngs)
        if cfg.source_embedding is not None:
            self.source_embedding = Embedding(cfg.source_embedding, rngs=rngs)
        if cfg.embeds_source:  # the sides draw in turn: blocks, norms, relative positions
            keys = rngs.params(), rngs.params()
            self.encoder = cfg.encoder.make_trunk(key=keys[0], rngs=rngs)
            self.decoder = cfg.decoder.make_trunk(causal=True, key=keys[1], rngs=rngs)
            self.encoder.init_relative(rngs)
            self.decoder.init_relative(rngs)
        else:
            self.encoder = cfg.encoder.build(rngs)
            self.decoder = cfg.decoder.make_trunk(causal=True, rngs=rngs)
        if not cfg.tied_output:
            # Logits begin of order 1, however wide the embeddings start.
            self.head = OutputTable(replace(output_table(cfg.embedding), init_std=None), rngs=rngs)
        if cfg.output_dense is not None:
            self.init_dense(cfg.decoder.block, cfg.embedding.embed, rngs=rngs)
        if cfg.output_bias:
            self.output_bias = nnx.Param(jnp.zeros(cfg.embedding.vocab, cfg.embedding.precision.dtypes["param_dtype"]))

    def encode(
        self,
        source: PyTree[Shaped[Array, "..."]],
        lengths: Int[Array, "*B"] | Mask | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S W"]:
        """Encode a source into a memory.

        Args:
          source: tokens, or what another encoder takes: an array, or several by name. Beside `tokens` there may be
            their `positions`, and what else the encoder's trunk takes, as `global_positions` in windows.
          lengths: of the source; positions from there on are padding. Or a mask.
        """
        x, given = self._source(source, lengths, key)
        return self.encoder(x, **given)

    def _source(self, source: Any, lengths: Any, key: PRNGKeyArray | None) -> tuple[Any, dict[str, Any]]:
        """Return what the encoder is given: a source, embedded where it is tokens, and the rest."""
        mask = source_mask(lengths)
        if not self.cfg.embeds_source:
            return source, {"mask": mask, "key": key}
        keys, given = split_keys(key), dict(source) if isinstance(source, Mapping) else {"tokens": source}
        tokens, places = given.pop("tokens"), {"positions": given.pop("positions", None), "key": keys[0]}
        if self.cfg.source_embedding is None:
            x = self.embedding(tokens, **places)
        else:
            table = None if self.cfg.source_embedding.own_table else self.embedding
            x = self.source_embedding(tokens, table=table, **places)
        return x, {"mask": mask, "key": keys[1], **given}

    def decode(
        self,
        target: Int[Array, "*B T"],
        memory: Float[Array, "*B S W"],
        lengths: Int[Array, "*B"] | Mask | None = None,
        *,
        mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the decoder's hidden states for all target positions at once.

        Args:
          lengths: of the source, or a mask.
          mask: what of the target is hidden beside the future.
          positions: of the target; 0, 1, … by default.
        """
        x, given = self._target(target, lengths, mask, key, positions)
        return self.decoder(x, memory, **given)

    def _target(
        self, target: Array, lengths: Any, mask: Mask | None, key: Any, positions: Array | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Return what the decoder is given beside the memory."""
        keys = split_keys(key)
        memory_mask = self.encoder.memory_mask(source_mask(lengths))
        given = {"mask": Mask(causal=True) & mask, "memory_mask": memory_mask, "key": keys[1]}
        return self.embedding(target, positions=positions, key=keys[0]), given

    def hidden_states(
        self,
        source: PyTree[Shaped[Array, "..."]],
        target: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the decoder's hidden states from the inputs of a batch.

        Args:
          source: what the encoder reads: tokens [*B, S], or what one of another kind takes.
          target: decoder input, beginning with the start token.
          lengths: of the source, or a mask.
          key: for dropout; None means none.
        """
        keys = split_keys(key)
        memory = self.encode(source, lengths, key=keys[0])
        return self.decode(target, memory, lengths, key=keys[1])

    def observe(
        self,
        source: PyTree[Shaped[Array, "..."]],
        target: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B T D"], dict[str, Any]]:
        """Compute `hidden_states`, and beside what `encoder` and `decoder` tell, as steps that halt do."""
        keys = split_keys(key)
        x, given = self._source(source, lengths, keys[0])
        memory, read = self.encoder.observe(x, **given) if self.cfg.embeds_source else (self.encoder(x, **given), {})
        x, given = self._target(target, lengths, None, keys[1])
        hidden, wrote = self.decoder.observe(x, memory, **given)
        return hidden, {"encoder": read, "decoder": wrote}

    def output(self, hidden: Float[Array, "*B T D"]) -> Output:
        """Return what logits are made of, from the decoder's hidden states."""
        if self.cfg.output_dense is not None:
            hidden = self.through_dense(hidden, self.cfg.output_dense)
        hidden = hidden if self.cfg.output_scale == 1 else scaled(hidden, self.cfg.output_scale)
        bias = self.output_bias[...] if self.cfg.output_bias else None
        return Output(hidden, self.embedding if self.cfg.tied_output else self.head, bias)

    def __call__(
        self,
        source: PyTree[Shaped[Array, "..."]],
        target: Int[Array, "*B T"],
        lengths: Int[Array, "*B"] | Mask | None = None,
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T V"]:
        """Compute logits of the token after each target position.

        Args:
          target: decoder input, beginning with the start token.
          lengths: of the source, or a mask.
          key: for dropout; None means none.
        """
        return self.output(self.hidden_states(source, target, lengths=lengths, key=key)).logits()

    def init_cache(
        self,
        memory: Float[Array, "B S W"],
        lengths: Int[Array, "B"] | Mask | None,
        length: int,
        *,
        beams: int = 1,
        begun: Int[Array, "B P"] | None = None,
    ) -> DecoderCache:
        """Prepare to decode: project the memory once for every layer, and make room for `length` tokens.

        Args:
          lengths: of the source, or a mask.
          length: how many tokens there is room for, beside those that are read here.
          beams: hypotheses a sentence; they share its memory, and `step` takes their tokens after one another.
          begun: tokens that all hypotheses of a sentence begin with, before the one that the first step takes.
        """
        if memory.ndim != 3:
            raise ValueError(f"a memory to decode from must be [B, S, D], got shape {memory.shape}")
        P = 0 if begun is None else begun.shape[1]
        cache = DecoderCache(
            self.decoder.init_cache(memory.shape[0], P or length, beams=1 if P else beams),
            self.decoder.project(memory, beams=1 if P else beams),
            self.encoder.memory_mask(source_mask(lengths)) or Mask(),
            jnp.zeros((), jnp.int32),
        )
        return self._advance(cache, begun)[1].fork(beams, P + length) if P else cache

    def step(self, cache: DecoderCache, token: Int[Array, "B"]) -> tuple[Float[Array, "B V"], DecoderCache]:
        """Decode one token: logits of the next one, and the cache with this one in it."""
        if token.ndim != 1:
            raise ValueError(f"a step takes one token a row, [R], got shape {token.shape}")
        x, cache = self._advance(cache, token[:, None])
        return self.output(x[:, 0]).logits(), cache

    def extend(
        self, cache: DecoderCache, tokens: Int[Array, "B T"], index: Int[Array, "B"]
    ) -> tuple[Float[Array, "B T V"], DecoderCache]:
        """Read T more tokens of each row from a position of its own on: the logits after each, and the cache.

        Positions that a learned table does not have are its last one: who asks for them has no use for what comes of
        it, nor do the positions before.

        Args:
          cache: by row: `cache.by_row()`.
          index: positions of each row that are kept; what was read after them is forgotten.
        """

        def row(layers, index, tokens, mask, memory):
            own = replace(cache, layers=layers, memory=memory, memory_mask=mask, index=index)
            x, own = self._advance(own, tokens[None], inside=True)
            return self.output(x).logits()[0], own.layers

        mask = jax.tree.map(lambda leaf: leaf[:, None], cache.memory_mask)
        logits, layers = map_rows(row, cache.layers, index, tokens, mask, memory=cache.memory)
        return logits, replace(cache, layers=layers)

    def _advance(
        self, cache: DecoderCache, tokens: Int[Array, "R T"], *, inside: bool = False
    ) -> tuple[Float[Array, "R T D"], DecoderCache]:
        T = tokens.shape[1]
        positions = cache.index + jnp.arange(T)
        if inside and self.cfg.embedding.position == "learned":
            positions = jnp.minimum(positions, self.cfg.embedding.max_length - 1)
        x = self.embedding(tokens, positions=positions)
        x, layers = self.decoder.extend(x, cache.layers, cache.memory, index=cache.index, memory_mask=cache.memory_mask)
        return x, replace(cache, layers=layers, index=cache.index + T)

    def over_patches(self, found: Sequence[np.ndarray], height: int, width: int) -> list[PatchAttention]:
        """Lay out what `ops.capture(f, "attention_weights")` gives of one image [height, width] over its patches.

        First the encoder's, then what each position of the decoder sees of what the encoder's last layer gives.
        """
        depth, encoder = self.cfg.decoder.depth, getattr(self.encoder, "backbone", self.encoder)
        count = 2 if found[-1].ndim == 5 else 2 * depth
        (cross,) = by_stack(found[-count:][1::2], (depth,))  # a layer's positions see each other first
        laid = encoder.over_patches(found[:-count], height, width)
        positions = Tiles(Grid(0, 0), (1, 1), tuple(f"position {i + 1}" for i in range(cross.shape[-2])))
        return [*laid, PatchAttention("decoder", cross[:, 0], positions, laid[-1].queries)]

    def for_decoding(self) -> "Seq2Seq":
        """Copy the model, laid out for decoding on a CPU: the same function, its matrices as the loops multiply them.

        Blocks are taken apart (see `nn.unstack`), query, key and value made one product, the output table transposed.
        The copy has all the weights again; nothing else can be done with it.
        """
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.decoder = self.decoder.for_decoding()
        if self.cfg.embeds_source:
            copy.encoder = self.encoder.for_decoding()
        output = "embedding" if self.cfg.tied_output else "head"
        setattr(copy, output, getattr(self, output).for_decoding())
        return copy


def source_mask(lengths: Int[Array, "*B"] | Mask | None) -> Mask | None:
    """Make a mask of the source's lengths, unless it is one."""
    return lengths if lengths is None or isinstance(lengths, Mask) else Mask(lengths=lengths)
