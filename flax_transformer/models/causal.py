"""A decoder-only language model: GPT-2, Llama and their kin are choices of its config.

Axes: B batch, T positions, D width, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.models.output import Output, output_table
from flax_transformer.nn import (
    Block,
    BlockConfig,
    Caches,
    Embedding,
    EmbeddingConfig,
    apply_stack,
    cache_length,
    each_cache,
    init_stack,
    make_norm,
    map_stack,
    unstack,
)
from flax_transformer.nn.check import check_positions
from flax_transformer.nn.config import check_fields
from flax_transformer.ops import Mask


@dataclass(frozen=True, kw_only=True)
class CausalConfig:
    """An embedding, a stack of blocks that see the past, and an output layer."""

    embedding: EmbeddingConfig
    block: BlockConfig
    depth: int = 12
    tied_output: bool = True
    """Whether the output layer is the embedding table."""
    window: int | None = None
    """How many positions each sees, its own included; None: all before it."""
    falling_scale: bool = False
    """Divide the query-key products of layer i, from 1 on, by i, as some GPT-2s do for float16's sake."""
    unroll: int | bool = 1
    remat: str = "none"

    def __post_init__(self):
        check_fields(self)
        if self.embedding.width != self.block.embed:
            raise ValueError(
                f"all parts must have one model width, got embedding={self.embedding.width}, block={self.block.embed}"
            )
        if self.block.cross:
            raise ValueError("a decoder-only model attends to no memory, got block.cross=True")
        if self.falling_scale and self.block.qk_norm:
            raise ValueError("scales that fall say nothing about queries that are normalised, got block.qk_norm=True")
        if self.depth < 1 or (self.window is not None and self.window < 1):
            raise ValueError(f"depth and window must be at least 1, got {self.depth} and {self.window}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CausalCache:
    """What decoding carries: each layer's keys and values, and which positions of the prompts are padding."""

    layers: Caches
    index: Int[Array, ""]
    """Positions written."""
    padding: Bool[Array, "B P"] | None = None
    """True where a prompt has no token; None where all are full."""

    def reorder(self, rows: Int[Array, "R"]) -> "CausalCache":
        """Select hypotheses: row i continues what row `rows[i]` was, of the same prompt."""
        return replace(self, layers=each_cache(lambda cache: cache.reorder(rows), self.layers))

    def grow(self, length: int) -> "CausalCache":
        """Make room for `length` positions in all."""
        return replace(self, layers=each_cache(lambda cache: cache.grow(length), self.layers))

    def fork(self, beams: int, length: int) -> "CausalCache":
        """Let `beams` hypotheses continue every prompt, up to `length` positions in all."""
        return replace(self, layers=each_cache(lambda cache: cache.fork(beams, length), self.layers))


class Causal(nnx.Module):
    """A language model: `model(tokens)` gives logits; `prefill` and `step` generate."""

    def __init__(self, cfg: CausalConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.embedding = Embedding(cfg.embedding, rngs=rngs)
        self.blocks = init_stack(lambda r: Block(cfg.block, rngs=r), cfg.depth, key=rngs.params())
        if cfg.block.norm_position == "pre":
            self.norm = make_norm(cfg.block, rngs=rngs)
        if not cfg.tied_output:
            self.head = Embedding(output_table(cfg.embedding), rngs=rngs)

    def _mask(self) -> Mask:
        window = self.cfg.window
        return Mask(causal=True, window=None if window is None else (window - 1, 0))

    def _blocks(self) -> Any:
        """Give the blocks as they are used: with queries that are smaller in each, where scales fall."""
        if not self.cfg.falling_scale or isinstance(self.blocks, nnx.List):
            return self.blocks
        blocks = jax.tree.map(lambda leaf: leaf, self.blocks)
        query, layers = blocks.attention.query, jnp.arange(1, self.cfg.depth + 1)
        for name in ("kernel", "bias"):
            if (values := getattr(query, name)) is not None:
                by = layers.reshape(-1, *(1,) * (values.ndim - 1)).astype(values.dtype)
                setattr(query, name, nnx.Param(values[...] / by))
        return blocks

    def encode(
        self,
        tokens: Int[Array, "*B T"],
        *,
        mask: Mask | None = None,
        types: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states.

        Args:
          mask: what else than the future is hidden: padding, other documents of a packed row.
          types: of the tokens, themselves tokens, whose embeddings are added (GPT-2).
          positions: of the tokens; 0, 1, … by default.
          key: for dropout; None means none.

        Raises:
          ValueError: positions for a model that has no use for them.
        """
        check_positions(positions, self.cfg)
        keys = (None, None) if key is None else jax.random.split(key)
        x = self.embedding(tokens, positions=positions, types=types, key=keys[0])
        x = apply_stack(
            self._blocks(), x, mask=self._mask() & mask, positions=positions, key=keys[1], unroll=self.cfg.unroll,
            remat=self.cfg.remat,
        )  # fmt: skip
        return self.norm(x) if self.cfg.block.norm_position == "pre" else x

    def hidden_states(
        self,
        tokens: Int[Array, "*B T"],
        *,
        lengths: Int[Array, "*B"] | None = None,
        segments: Int[Array, "*#B T"] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        types: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Compute the last hidden states from the inputs of a batch.

        Args:
          lengths: of the rows; they hide nothing, as no token sees the padding that comes after it.
          segments: numbers of the documents packed in a row; tokens see those of their own alone.
          positions: of the tokens; 0, 1, … by default.
          types: of the tokens, as `encode` takes them.
          key: for dropout; None means none.
        """
        mask = None if segments is None else Mask(segments=(segments, segments))
        return self.encode(tokens, mask=mask, types=types, positions=positions, key=key)

    def output(self, hidden: Float[Array, "*B T D"]) -> Output:
        """Give what logits are made of: hidden states, the output table, no bias."""
        return Output(hidden, self.embedding if self.cfg.tied_output else self.head)

    def __call__(
        self,
        tokens: Int[Array, "*B T"],
        *,
        mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T V"]:
        """Compute the logits of the token after each position; arguments as `encode`'s."""
        return self.output(self.encode(tokens, mask=mask, positions=positions, key=key)).logits()

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> CausalCache:
        """Make an empty cache for `length` positions of `batch` sequences, `beams` hypotheses each."""
        layers = map_stack(lambda block: block.attention.init_cache(batch, length, beams=beams), self.blocks)
        return CausalCache(layers, jnp.zeros((), jnp.int32))

    def prefill(
        self, tokens: Int[Array, "B P"], padding: Bool[Array, "B P"] | None = None
    ) -> tuple[Float[Array, "B V"], CausalCache]:
        """Read prompts: the logits of the token after each, and the cache to go on from.

        The cache is full; `fork` makes room. Padding is on the left, or anywhere: positions count tokens alone.

        Args:
          padding: True where there is no token; the last position must have one.

        Raises:
          ValueError: padding that is not a boolean for each token.
        """
        if padding is not None and (padding.shape != tokens.shape or padding.dtype != bool):
            raise ValueError(
                f"padding must be booleans of the tokens' shape {tokens.shape}, True where there is no token, got "
                f"{padding.dtype} of {padding.shape}"
            )
        empty = replace(self.init_cache(*tokens.shape), padding=padding)
        x, cache = self._advance(tokens, empty, Mask(offset=0))
        return self.output(x[:, -1:]).logits()[:, 0], cache

    def _advance(
        self, tokens: Int[Array, "R T"], cache: CausalCache, mask: Mask | None = None
    ) -> tuple[Float[Array, "R T D"], CausalCache]:
        T, length = tokens.shape[1], cache_length(cache.layers)
        positions = (cache.index + jnp.arange(T))[None]
        if cache.padding is not None:
            beams = tokens.shape[0] // cache.padding.shape[0]
            visible = jnp.pad(~cache.padding, ((0, 0), (0, length - cache.padding.shape[1])), constant_values=True)
            visible = jnp.repeat(visible, beams, axis=0)
            counted = jnp.cumsum(visible, axis=1, dtype=jnp.int32) - 1
            positions = jax.lax.dynamic_slice_in_dim(jnp.maximum(counted, 0), cache.index, T, axis=1)
            mask = Mask(dense=visible[:, None, None]) & mask
        if self.cfg.window is not None:
            mask = Mask(window=(self.cfg.window - 1, 0)) & mask
        x = self.embedding(tokens, positions=positions)
        x, layers = apply_stack(
            self._blocks(), x, mask=mask, positions=positions, cache=cache.layers, unroll=self.cfg.unroll
        )
        x = self.norm(x) if self.cfg.block.norm_position == "pre" else x
        return x, replace(cache, layers=layers, index=cache.index + T)

    def step(self, cache: CausalCache, token: Int[Array, "R"]) -> tuple[Float[Array, "R V"], CausalCache]:
        """Decode one token: logits of the next one, and the cache with this one in it."""
        if token.ndim != 1:
            raise ValueError(f"a step takes one token a row, [R], got shape {token.shape}")
        x, cache = self._advance(token[:, None], cache)
        return self.output(x).logits()[:, 0], cache

    def for_decoding(self) -> "Causal":
        """Copy the model, laid out for decoding on a CPU: the same function, see `nn.unstack`."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.blocks = nnx.List([block.for_decoding() for block in unstack(self._blocks())])
        output = "embedding" if self.cfg.tied_output else "head"
        setattr(copy, output, getattr(self, output).for_decoding())
        return copy
