"""A decoder-only language model: GPT-2, Llama and their kin are choices of its config.

What stands before a text without being of it, an image's states, is its prefix. All methods but `extend` also take
embeddings in the place of tokens, as `model.embedding.embed` gives them.

Axes: B batch, T positions, P positions of a prefix or a prompt, D width, E width of embeddings, V vocabulary.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from flax_transformer.frozen import frozen
from flax_transformer.models.causal_cache import CausalCache, ends_of
from flax_transformer.models.example import ReadsTokens
from flax_transformer.models.falling_scale import falling_scale
from flax_transformer.models.output import Output, output_table
from flax_transformer.nn import (
    Cycle,
    Embedding,
    EmbeddingConfig,
    OutputTable,
    Trunk,
    TrunkConfig,
    each_cache,
    map_rows,
)
from flax_transformer.nn.check import check_hidden, check_positions, check_widths
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part


@frozen
class CausalConfig(TrunkConfig):
    """A trunk that sees the past, an embedding before it, and an output layer."""

    embedding: EmbeddingConfig
    """Embeddings of tokens and positions."""
    tied_output: bool = True
    """Whether the output layer is the embedding table."""
    outputs: int | None = None
    """Tokens that an output layer of its own gives, the first ones; None: all."""
    output_bias: bool = False
    """Whether the output layer adds a bias for each token."""
    logit_cap: float | None = None
    """What logits are kept within, by a tanh (Gemma Team 2024); None: nothing."""
    window: int | tuple[int | None, ...] | None = None
    """How many positions each sees, its own included; None: all before it. Of several the layers take turns, as of
    local and global attention: (4096, None); rotary positions may be others with a window: see `Rotary.window`."""
    falling_scale: bool = False
    """Divide the query-key products of layer i, from 1 on, by i, as some GPT-2s do for float16's sake."""

    def __post_init__(self):
        super().__post_init__()
        check_widths(embedding=self.embedding.width, block=self.block.embed)
        check_at_least(self, 1, "outputs")
        if any(window is not None and window < 1 for window in self.windows):
            raise ValueError(f"window must be at least 1, got {self.window}")
        if not self.windows:
            raise ValueError("layers that take turns need a window or None for each turn, got none")
        if self.logit_cap is not None and not self.logit_cap > 0:
            raise ValueError(f"logit_cap must be above 0, got {self.logit_cap}")
        if self.outputs is not None and (self.tied_output or self.outputs > self.embedding.vocab):
            raise ValueError(
                f"an output layer of its own gives up to V={self.embedding.vocab} tokens, got outputs={self.outputs}, "
                f"tied_output={self.tied_output}"
            )
        if self.cross:
            raise ValueError("a decoder-only model attends to no memory, got a block with cross-attention")
        if self.falling_scale and self.block.attention.qk_norm is not None:
            raise ValueError("scales that fall say nothing about queries that are normalised, got qk_norm")

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The window of each turn."""
        return self.window if isinstance(self.window, tuple) else (self.window,)

    def build(self, rngs: nnx.Rngs) -> "Causal":
        """Make the model."""
        return Causal(self, rngs=rngs)


class Causal(ReadsTokens, Module):
    """A language model: `model(tokens)` gives logits; `prefill` and `step` generate."""

    layer_order = ("embedding", Part("trunk"), "head", "output_bias")

    use = "text-generation"

    def __init__(self, cfg: CausalConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embedding = Embedding(cfg.embedding, rngs=rngs)
        self.trunk = cfg.make_trunk(causal=True, rngs=rngs)
        if not cfg.tied_output:
            self.head = OutputTable(output_table(cfg.embedding, cfg.outputs), rngs=rngs)
        if cfg.output_bias:
            count = cfg.embedding.vocab if cfg.outputs is None else cfg.outputs
            self.output_bias = nnx.Param(jnp.zeros(count, cfg.embedding.precision.dtypes["param_dtype"]))

    def _mask(self, P: int, prefix_lengths: Array | None = None) -> Mask:
        """Return what is seen after a prefix of P states and of so many tokens, which sees all of itself."""
        causal = Mask(causal=True)
        if prefix_lengths is None and not P:
            return causal
        if self.cfg.window is not None:
            raise ValueError(f"a prefix is seen by all that comes after it, got a window, {self.cfg.window}")
        return causal | Mask(lengths=jnp.asarray(P if prefix_lengths is None else P + prefix_lengths))

    def _windowed(self, mask: Mask | None) -> Mask | Cycle | None:
        """Return what blocks may see: of a mask what is in their windows, in turns if these differ."""
        if self.cfg.window is None:
            return mask
        return Cycle.of(self.cfg.windows, lambda w: Mask(window=None if w is None else (w - 1, 0)) & mask)

    def _trunk(self) -> Trunk:
        """Return the trunk as it is used: with queries that are smaller in each block, where scales fall."""
        return falling_scale(self.trunk) if self.cfg.falling_scale else self.trunk

    def encode(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T E"],
        *,
        mask: Mask | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        prefix: Float[Array, "*B P D"] | None = None,
        prefix_lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B S D"]:
        """Compute the last hidden states, of S = P + T positions where there is a prefix.

        Args:
          mask: what else than the future is hidden of the S positions: padding, other documents of a packed row.
          types: of the tokens, themselves tokens, whose embeddings are added (GPT-2).
          positions: of the tokens; 0, 1, … by default.
          prefix: states of what stands before the tokens, which all of it and of them see; it has no positions of its
            own, and those of tokens do not count it.
          prefix_lengths: how many of the first tokens of each row all of it sees, as a prefix language model's (Raffel
            et al. 2020, https://arxiv.org/abs/1910.10683, §3.2.1); None: each sees the past alone.
          key: for dropout; None means none.

        Raises:
          ValueError: positions for a model that has no use for them, or a prefix for one that cannot have it.
        """
        x, given = self._enter(tokens, mask, types, positions, (prefix, prefix_lengths), key)
        return self._trunk()(x, **given)

    def encode_embedded(
        self,
        x: Float[Array, "*B T D"],
        *,
        mask: Mask | None = None,
        positions: Int[Array, "*B T axes"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states as `encode` does, of tokens that are embedded already."""
        return self._trunk()(x, mask=self._windowed(Mask(causal=True) & mask), positions=positions, key=key)

    def _enter(
        self, tokens: Array, mask: Mask | None, types: Any, positions: Any, before: tuple, key: Any
    ) -> tuple[Array, dict[str, Any]]:
        """Return what the trunk is given."""
        prefix, prefix_lengths = before
        check_positions(positions, self.cfg)
        keys = split_keys(key)
        x = self.embedding(tokens, positions=positions, types=types, key=keys[0])
        P = 0 if prefix is None else self._check_prefix(prefix)
        x = x if prefix is None else jnp.concatenate([prefix.astype(x.dtype), x], axis=-2)
        positions = None if P else positions  # which those models of prefixes have no more use for
        return x, {"mask": self._windowed(self._mask(P, prefix_lengths) & mask), "positions": positions, "key": keys[1]}

    def _check_prefix(self, prefix: Array) -> int:
        """Return how many positions a prefix has, or raise ValueError where a model cannot tell them from tokens."""
        check_hidden(prefix, self.cfg.block.embed, "a prefix")
        if self.cfg.window is not None or self.cfg.relative is not None or self.cfg.block.attention.rotary is not None:
            raise ValueError("a prefix is of models without windows, rotary or relative positions, got one with them")
        return prefix.shape[-2]

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T E"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        segments: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        prefix: Float[Array, "*B P D"] | None = None,
        prefix_lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the tokens' last hidden states from the inputs of a batch.

        Args:
          lengths: of the rows; no token sees the padding that comes after it, and experts have no places for it.
          segments: numbers of the documents packed in a row; tokens see those of their own alone.
          positions: of the tokens; 0, 1, … by default.
          types, prefix, prefix_lengths: as `encode` takes them.
          key: for dropout; None means none.
        """
        mask = self._rows(lengths, segments, prefix)
        before = {"prefix": prefix, "prefix_lengths": prefix_lengths}
        hidden = self.encode(tokens, mask=mask, types=types, positions=positions, key=key, **before)
        return hidden if prefix is None else hidden[..., prefix.shape[-2] :, :]

    def _rows(self, lengths: Array | None, segments: Array | None, prefix: Array | None = None) -> Mask | None:
        """Return what rows hide: documents from each other, and padding where there are experts, as nobody sees it."""
        mask = None if segments is None else Mask(segments=(segments, segments))
        if lengths is None or not hasattr(self.cfg.block.feedforward, "experts"):
            return mask
        return Mask(lengths=lengths if prefix is None else lengths + prefix.shape[-2]) & mask

    def observe(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T E"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        segments: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        prefix_lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B T D"], Any]:
        """Compute `hidden_states`, and beside what each block tells, as the routers of experts do."""
        mask = self._rows(lengths, segments)
        x, given = self._enter(tokens, mask, types, positions, (None, prefix_lengths), key)
        return self._trunk().observe(x, **given)

    def output(self, hidden: Float[Array, "*B T D"]) -> Output:
        """Return what logits are made of: hidden states, the output table, perhaps a bias."""
        bias = self.output_bias[...] if self.cfg.output_bias else None
        return Output(hidden, self.embedding if self.cfg.tied_output else self.head, bias, self.cfg.logit_cap)

    def __call__(
        self,
        tokens: Int[Array, "*B T"] | Float[Array, "*B T E"],
        *,
        mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        prefix_lengths: Int[Array, "*B"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T V"]:
        """Compute the logits of the token after each position; arguments as `encode`'s."""
        given = {"mask": mask, "positions": positions, "prefix_lengths": prefix_lengths}
        return self.output(self.encode(tokens, key=key, **given)).logits()

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> CausalCache:
        """Make an empty cache for `length` positions of `batch` sequences, `beams` hypotheses each."""
        return CausalCache(self.trunk.init_cache(batch, length, beams=beams), jnp.zeros((), jnp.int32))

    def prefill(
        self,
        tokens: Int[Array, "B P"] | Float[Array, "B P E"],
        padding: Bool[Array, "B P"] | None = None,
        *,
        prefix: Float[Array, "B S D"] | None = None,
        prefix_lengths: Int[Array, "B"] | None = None,
    ) -> tuple[Float[Array, "B V"], CausalCache]:
        """Read prompts: the logits of the token after each, and the cache to go on from.

        The cache is full; `fork` makes room. Padding is on the left, or anywhere: positions count tokens alone.

        Args:
          padding: True where there is no token; the last position must have one.
          prefix: what stands before the tokens, of which there may then be none.
          prefix_lengths: how many of the first tokens of each prompt all of it sees, as `encode` has it.

        Raises:
          ValueError: padding that is not a boolean for each token.
        """
        x, cache = self.read(tokens, padding, prefix=prefix, prefix_lengths=prefix_lengths)
        return self.output(x[:, -1]).logits(), cache

    def read(
        self,
        tokens: Int[Array, "B P"] | Float[Array, "B P E"],
        padding: Bool[Array, "B P"] | None = None,
        *,
        prefix: Float[Array, "B S D"] | None = None,
        prefix_lengths: Int[Array, "B"] | None = None,
    ) -> tuple[Float[Array, "B P D"], CausalCache]:
        """Read prompts as `prefill` does: their last hidden states, and the cache to go on from."""
        shape = tokens.shape[:2]
        if padding is not None and (padding.shape != shape or padding.dtype != bool):
            raise ValueError(
                f"padding must be booleans of the tokens' shape {shape}, True where there is no token, got "
                f"{padding.dtype} of {padding.shape}"
            )
        x, cache = (None, self.init_cache(*shape)) if prefix is None else self._read_prefix(prefix, shape[1])
        if tokens.shape[1]:
            seen = Mask()
            if prefix_lengths is not None:
                seen = self._mask(cache.prefix, ends_of(prefix_lengths, padding))
            x, cache = self._advance(tokens, replace(cache, padding=padding), seen.at(cache.prefix))
        return x, cache

    def read_on(
        self, cache: CausalCache, tokens: Int[Array, "B T"] | Float[Array, "B T E"], padding: Bool[Array, "B T"]
    ) -> tuple[Float[Array, "B T D"], CausalCache]:
        """Read more after what one row has read, in each row something else: their last hidden states, and the cache.

        Args:
          cache: full, of a single row; its own padding is said.
          padding: True where there is no token.
        """
        rows, before = len(tokens), cache.padding.shape[1]
        layers = each_cache(lambda layer: layer.repeat(rows), cache.layers)
        whole = jnp.concatenate([jnp.repeat(cache.padding, rows, axis=0), padding], axis=1)
        cache = replace(cache, layers=layers, padding=whole).grow(before + tokens.shape[1])
        return self._advance(tokens, cache)

    def _read_prefix(self, prefix: Float[Array, "B P D"], length: int) -> tuple[Float[Array, "B P D"], CausalCache]:
        """Put a prefix into a cache, with room for so many tokens after it."""
        P, empty = self._check_prefix(prefix), self.init_cache(*prefix.shape[:2])
        at = jnp.zeros((), jnp.int32)
        # Each stands where the last does, and so sees all.
        x, layers = self._trunk().extend(
            prefix.astype(self.cfg.embedding.precision.residual), empty.layers, index=at, mask=Mask(offset=P - 1)
        )
        return x, replace(empty, layers=layers, index=at + P, prefix=P).grow(length)

    def _advance(
        self, tokens: Array, cache: CausalCache, mask: Mask | None = None, *, inside: bool = False
    ) -> tuple[Float[Array, "R T D"], CausalCache]:
        positions, seen = cache.places(*tokens.shape[:2])
        if inside and self.cfg.embedding.position == "learned":
            positions = jnp.minimum(positions, self.cfg.embedding.max_length - 1)
        x = self.embedding(tokens, positions=positions)
        return self._extend(x, cache, positions, mask if seen is None else seen & mask)

    def _extend(
        self, x: Float[Array, "R T D"], cache: CausalCache, positions: Array, mask: Mask | None
    ) -> tuple[Float[Array, "R T D"], CausalCache]:
        given = {"index": cache.index, "mask": self._windowed(mask), "positions": positions}
        x, layers = self._trunk().extend(x, cache.layers, **given)
        return x, replace(cache, layers=layers, index=cache.index + x.shape[1])

    def read_embedded(
        self, x: Float[Array, "B P D"], positions: Int[Array, "B P axes"], padding: Bool[Array, "B P"] | None = None
    ) -> tuple[Float[Array, "B P D"], CausalCache]:
        """Read prompts as `read` does, of tokens that are embedded already, images' states among them, say.

        Args:
          positions: of several ids each (`Rotary.sections`), those of padding 0. A token after the prompt is 1 beyond
            the highest of them.
        """
        count = x.shape[1] if padding is None else jnp.sum(~padding, axis=1)
        cache = replace(self.init_cache(*x.shape[:2]), padding=padding, shift=positions.max((1, 2)) + 1 - count)
        return self._extend(x, cache, positions, cache.places(*x.shape[:2])[1])

    def step(self, cache: CausalCache, token: Shaped[Array, "R *E"]) -> tuple[Float[Array, "R V"], CausalCache]:
        """Decode one token: logits of the next one, and the cache with this one in it."""
        if token.ndim != 1 + jnp.issubdtype(token.dtype, jnp.floating):
            raise ValueError(f"a step takes one token a row, [R], or its embedding, [R, E], got shape {token.shape}")
        x, cache = self._advance(token[:, None], cache)
        return self.output(x[:, 0]).logits(), cache

    def step_state(
        self, cache: CausalCache, token: Int[Array, "R"]
    ) -> tuple[Float[Array, "R V"], Float[Array, "R D"], CausalCache]:
        """Decode one token as `step` does; give its last hidden state beside."""
        x, cache = self._advance(token[:, None], cache)
        x = x[:, 0]
        return self.output(x).logits(), x, cache

    def extend(
        self, cache: CausalCache, tokens: Int[Array, "B T"], index: Int[Array, "B"]
    ) -> tuple[Float[Array, "B T V"], CausalCache]:
        """Read T more tokens of each row from a position of its own on: the logits after each, and the cache.

        Positions that a learned table does not have are its last one: who asks for them has no use for what comes of
        it, nor do the positions before.

        Args:
          cache: by row: `cache.by_row()`.
          index: positions of each row that are kept, the padding of prompts counted in; what was read after them is
            forgotten.
        """

        def row(layers, index, tokens, padding):
            own = replace(cache, layers=layers, index=index, padding=padding)
            x, own = self._advance(tokens[None], own, inside=True)
            return self.output(x).logits()[0], own.layers

        logits, layers = map_rows(row, cache.layers, cache.prefix + index, tokens, cache.padding)
        return logits, replace(cache, layers=layers)

    def for_decoding(self) -> "Causal":
        """Copy the model, laid out for decoding on a CPU: the same function, see `nn.unstack`."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.trunk = self._trunk().for_decoding()
        output = "embedding" if self.cfg.tied_output else "head"
        setattr(copy, output, getattr(self, output).for_decoding())
        return copy
