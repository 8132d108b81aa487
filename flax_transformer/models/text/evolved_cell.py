"""The cells of the Evolved Transformer (So et al. 2019, https://arxiv.org/abs/1901.11117), each in the place of two
blocks of the Transformer: configs that a `TrunkConfig` stacks.

Sizes, norms and the places of dropout are those of the authors' code, Tensor2Tensor's `evolved_transformer`, whose
decoder has a norm between its two last linear layers.

Axes: *B batch, R rows (B times the hypotheses of each), T positions, S positions of a memory and W its width, D width.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.text.evolved_branch import (
    BranchCache,
    DecoderBranchesConfig,
    EncoderBranchesConfig,
    GateConfig,
    check_padding_alone,
)
from flax_transformer.nn.attention import AttentionConfig
from flax_transformer.nn.cache import KVCache, LayerCache, LayerMemory, Memory
from flax_transformer.nn.check import check_hidden, check_widths
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.feedforward import FeedForwardConfig, NormedFeedForwardConfig
from flax_transformer.nn.module import Module
from flax_transformer.nn.residual import Residual, ResidualConfig
from flax_transformer.ops import Mask
from flax_transformer.ops.split_keys import split_keys


@frozen
class EvolvedCellConfig:
    """What both kinds of cells have."""

    branches: Any
    """An `EncoderBranchesConfig`, or in a decoder a `DecoderBranchesConfig`."""
    attention: AttentionConfig
    """Self-attention of the cell."""
    feedforward: FeedForwardConfig
    """The feed-forward layer."""
    residual: ResidualConfig
    """Around each sublayer; its norm is before it."""

    def __post_init__(self):
        check_fields(self)
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        check_widths(**{name: part.embed for name, part in parts.items() if hasattr(part, "embed")})
        if self.residual.norm_position != "pre":
            position = self.residual.norm_position
            raise ValueError(f"the norms of an evolved cell are before its sublayers, got norm_position={position!r}")

    @property
    def embed(self) -> int:
        """D, the width of the residual stream."""
        return self.residual.embed


@frozen
class EvolvedEncoderConfig(EvolvedCellConfig):
    """A gate, convolutions, self-attention, a feed-forward layer; `evolved_encoder` writes it shorter."""

    gate: GateConfig
    """The gated linear unit that a cell begins with."""

    cross = None

    def build(self, rngs: nnx.Rngs) -> "EvolvedEncoderCell":
        """Make the cell."""
        return EvolvedEncoderCell(self, rngs=rngs)


@frozen
class EvolvedDecoderConfig(EvolvedCellConfig):
    """Self-attention beside attention to the memory, convolutions, each kind of attention, a feed-forward layer.

    `evolved_decoder` writes it shorter.
    """

    cross: AttentionConfig
    """Attention to the memory, both times."""
    times: int = 2
    """How many times as many heads the first self-attention has as the second, each of them as much narrower."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "times")
        if self.attention.width % self.times:
            raise ValueError(
                f"heads must divide into {self.times}, as many of them as there are in the first self-attention, got "
                f"H={self.attention.width}"
            )

    @property
    def wide(self) -> AttentionConfig:
        """The first self-attention."""
        own = self.attention
        return replace(
            own, heads=own.heads * self.times, kv_heads=own.resolved_kv_heads * self.times,
            head_width=own.width // self.times,
        )  # fmt: skip

    def build(self, rngs: nnx.Rngs) -> "EvolvedDecoderCell":
        """Make the cell."""
        return EvolvedDecoderCell(self, rngs=rngs)


def evolved_encoder(
    *, embed: int, heads: int, inner: int | None = None, dropout: float = 0.0, attention_dropout: float = 0.0,
    precision: Precision = Precision(),
) -> EvolvedEncoderConfig:  # fmt: skip
    """Make the config of an encoder's cell.

    Args:
      inner: F of the feed-forward layer and of the wider branch; 4 D by default.
      dropout: of all that is added to the residual stream, of branches, and within the feed-forward layer.

    >>> evolved_encoder(embed=64, heads=4).branches.inner
    256
    """
    inner = 4 * embed if inner is None else inner
    return EvolvedEncoderConfig(
        gate=GateConfig(embed=embed, precision=precision),
        branches=EncoderBranchesConfig(embed=embed, inner=inner, branch_dropout=dropout, precision=precision),
        attention=_attention(embed, heads, attention_dropout, precision),
        feedforward=FeedForwardConfig(embed=embed, inner=inner, activation_dropout=dropout, precision=precision),
        residual=_residual(embed, dropout, precision),
    )


def evolved_decoder(
    *, embed: int, heads: int, inner: int | None = None, dropout: float = 0.0, attention_dropout: float = 0.0,
    precision: Precision = Precision(),
) -> EvolvedDecoderConfig:  # fmt: skip
    """Make the config of a decoder's cell; arguments as of `evolved_encoder`, but branches are half as wide.

    >>> evolved_decoder(embed=64, heads=4).wide.heads
    8
    """
    inner = 4 * embed if inner is None else inner
    attention = _attention(embed, heads, attention_dropout, precision)
    return EvolvedDecoderConfig(
        branches=DecoderBranchesConfig(embed=embed, inner=inner // 2, branch_dropout=dropout, precision=precision),
        attention=attention,
        cross=attention,
        feedforward=NormedFeedForwardConfig(
            embed=embed, inner=inner, activation="swish", activation_dropout=dropout, precision=precision
        ),
        residual=_residual(embed, dropout, precision),
    )


def _attention(embed: int, heads: int, rate: float, precision: Precision) -> AttentionConfig:
    return AttentionConfig(embed=embed, heads=heads, bias=False, attention_dropout=rate, precision=precision)


def _residual(embed: int, rate: float, precision: Precision) -> ResidualConfig:
    return ResidualConfig(embed=embed, norm_position="pre", norm_eps=1e-6, dropout=rate, precision=precision)


class EvolvedEncoderCell(Module):
    """One cell of an encoder."""

    def __init__(self, cfg: EvolvedEncoderConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        for name in ("gate", "branches", "attention", "feedforward"):
            setattr(self, name, getattr(cfg, name).build(rngs))
            setattr(self, f"{name}_residual", Residual(cfg.residual, rngs=rngs))

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        bias: Float[Array, "..."] | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Apply the cell.

        Args:
          mask: lengths of rows; convolutions and attention see no padding.
          positions: of the T queries, for rotary.
          bias: None; there are no relative positions.
          drop_path: how often a row does without a sublayer, in place of what the config says.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, a bias, or a mask that hides anything but padding.
        """
        x = _given(x, self.cfg, bias)
        given = {"branches": {"mask": mask}, "attention": {"mask": mask, "positions": positions}}
        names = ("gate", "branches", "attention", "feedforward")
        for name, k in zip(names, _keys(key, len(names)), strict=True):
            residual, sublayer = getattr(self, f"{name}_residual"), getattr(self, name)
            x = residual(x, sublayer, key=k, drop_path=drop_path, **given.get(name, {}))
        return x

    def for_decoding(self) -> "EvolvedEncoderCell":
        """Copy the cell as decoding on a CPU wants it: see `Attention.for_decoding`."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.attention = self.attention.for_decoding()
        return copy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EvolvedMemory(LayerMemory):
    """What a decoder's cell makes of a memory: keys and values of each attention to it."""

    first: Memory
    second: Memory

    def share(self, beams: int) -> "EvolvedMemory":
        """Share each row among so many rows of queries."""
        return EvolvedMemory(self.first.share(beams), self.second.share(beams))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EvolvedCache(LayerCache):
    """What a decoder's cell remembers: keys and values of each self-attention, and the convolutions' windows."""

    wide: KVCache
    branches: BranchCache
    """Of each hypothesis, [R, …]."""
    attention: KVCache

    @property
    def length(self) -> int:
        """The positions there is room for."""
        return self.attention.length

    def fork(self, beams: int, length: int) -> "EvolvedCache":
        """Prepare for `beams` hypotheses of every sentence, up to `length` positions in all."""
        branches = jax.tree.map(lambda leaf: jnp.repeat(leaf, beams, axis=-3), self.branches)
        return EvolvedCache(self.wide.fork(beams, length), branches, self.attention.fork(beams, length))

    def reorder(self, rows: Int[Array, "R"]) -> "EvolvedCache":
        """Reorder: row i continues what row `rows[i]` was, a hypothesis of the same sentence."""
        branches = jax.tree.map(lambda leaf: jnp.take(leaf, rows, axis=-3, mode="clip"), self.branches)
        return EvolvedCache(self.wide.reorder(rows), branches, self.attention.reorder(rows))

    def grow(self, length: int) -> "EvolvedCache":
        """Make room for `length` positions in all; windows are as long as ever."""
        return replace(self, wide=self.wide.grow(length), attention=self.attention.grow(length))


class EvolvedDecoderCell(Module):
    """One cell of a decoder."""

    def __init__(self, cfg: EvolvedDecoderConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.wide, self.first = cfg.wide.build(rngs), cfg.cross.build(rngs)
        self.wide_residual = Residual(cfg.residual, rngs=rngs)
        for name in ("branches", "attention", "cross", "feedforward"):
            setattr(self, name, getattr(cfg, name).build(rngs))
            setattr(self, f"{name}_residual", Residual(cfg.residual, rngs=rngs))

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | EvolvedMemory | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        bias: Float[Array, "..."] | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Apply the cell.

        Args:
          memory: what attention looks at, as hidden states or by `project`.
          mask: what self-attention may see, the past and no padding; convolutions see the past alone.
          memory_mask: what of the memory may be seen.
          positions: of the T queries, for rotary.
          bias: None; there are no relative positions.
          drop_path: how often a row does without a sublayer, in place of what the config says.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, no memory, a bias, or a mask that hides anything else.
        """
        x = _given(x, self.cfg, bias, mask)
        attending = {"mask": mask, "positions": positions}
        given = {"branches": {}, "wide": attending, "attention": attending}

        def run(name: str, x: Array, *, key: PRNGKeyArray | None) -> Array:
            return getattr(self, name)(x, key=key, **given[name])

        return self._through(x, run, memory, memory_mask, drop_path, key)

    def extend(
        self,
        x: Float[Array, "*B T D"],
        cache: EvolvedCache,
        memory: EvolvedMemory | Float[Array, "*M S W"] | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        bias: Float[Array, "..."] | None = None,
    ) -> tuple[Float[Array, "*B T D"], EvolvedCache]:
        """Apply the cell to T more positions, of which the cache knows the earlier ones; the rest as in a call."""
        x = _given(x, self.cfg, bias, mask)
        attending = {"mask": mask, "positions": positions}
        given = {"branches": {}, "wide": attending, "attention": attending}
        after = {}

        def run(name: str, x: Array, *, key: None) -> Array:
            y, after[name] = getattr(self, name).extend(x, getattr(cache, name), **given[name])
            return y

        y = self._through(x, run, memory, memory_mask)
        return y, EvolvedCache(**after)

    def _through(
        self, x: Array, run: Callable, memory: Any, memory_mask: Mask | None, drop_path: Any = None, key: Any = None
    ) -> Array:
        """Go through the sublayers; `run(name, x, key=key)` applies one of those that see earlier positions."""
        if memory is None:
            raise ValueError("the cell of a decoder needs a memory, got none")
        first, second = (memory.first, memory.second) if isinstance(memory, EvolvedMemory) else (memory, memory)
        keys = _keys(key, 8)
        seen = self.wide_residual.enter(x)
        for y, k in (
            (run("wide", seen, key=keys[0]), keys[1]),
            (self.first(seen, first, mask=memory_mask, key=keys[2]), keys[3]),
        ):
            x = self.wide_residual.add(x, y, key=k, drop_path=drop_path)
        for name, k in zip(("branches", "attention"), keys[4:6], strict=True):
            residual = getattr(self, f"{name}_residual")
            x = residual(x, lambda x, *, key, name=name: run(name, x, key=key), key=k, drop_path=drop_path)
        x = self.cross_residual(x, self.cross, second, mask=memory_mask, key=keys[6], drop_path=drop_path)
        return self.feedforward_residual(x, self.feedforward, key=keys[7], drop_path=drop_path)

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> EvolvedCache:
        """Make an empty cache for `length` positions of `batch` sentences, `beams` hypotheses each."""
        wide, attention = (layer.init_cache(batch, length, beams=beams) for layer in (self.wide, self.attention))
        return EvolvedCache(wide, self.branches.init_window(batch * beams), attention)

    def project(self, memory: Float[Array, "*B S W"], *, beams: int = 1) -> EvolvedMemory:
        """Compute the keys and values of a memory, once for all positions: see `Attention.project`."""
        return EvolvedMemory(*(layer.project(memory, beams=beams) for layer in (self.first, self.cross)))

    def for_decoding(self) -> "EvolvedDecoderCell":
        """Copy the cell as decoding on a CPU wants it: see `Attention.for_decoding`."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.wide, copy.attention = self.wide.for_decoding(), self.attention.for_decoding()
        return copy


def _given(x: Array, cfg: EvolvedCellConfig, bias: Any, mask: Mask | None = None) -> Array:
    """Mark what a cell is given, and refuse what it has no use for."""
    check_hidden(x, cfg.embed)
    check_padding_alone(mask, causal=True)
    if bias is not None:
        raise ValueError("an evolved cell has no relative positions: relative must be None, got a bias")
    return checkpoint_name(x, "hidden_states")


def _keys(key: PRNGKeyArray | None, count: int) -> Any:
    return split_keys(key, count)
