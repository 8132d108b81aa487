"""Attention in windows beside global tokens, which all see and are seen by all, and a trunk whose layers have it.

Beltagy et al. 2020, https://arxiv.org/abs/2004.05150: global tokens have queries, keys and values of their own.
Axes: B batch, T positions, G global tokens, N heads, H head width, D width.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn import Attention, AttentionConfig, Cycle, TrunkConfig
from flax_transformer.nn.check import check_ids
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.linear import LinearGeneral, Product, initializer
from flax_transformer.nn.module import Module
from flax_transformer.nn.trunk import Trunk
from flax_transformer.ops import Dropout, Mask
from flax_transformer.ops.attention.sliding import sliding_attention
from flax_transformer.ops.attention.xla import attention_weights, weighted_values
from flax_transformer.ops.mask_field import check_broadcast, within
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain


@frozen
class GlobalAttentionConfig(AttentionConfig):
    """Attention in the window of its mask, beside global tokens that have projections of their own."""

    takes = "mask", "global_positions"
    function = "attention in windows with global tokens"

    def __post_init__(self):
        super().__post_init__()
        if self.rotary is not None or self.qk_norm is not None or self.resolved_kv_heads != self.heads:
            raise ValueError("attention in windows has no rotary positions, norms of queries or shared heads, got some")

    def build(self, rngs: nnx.Rngs) -> "GlobalAttention":
        """Make the layer."""
        return GlobalAttention(self, rngs=rngs)


class Projections(Module):
    """Queries of global tokens, and the keys and values that they see."""

    def __init__(self, cfg: AttentionConfig, *, rngs: nnx.Rngs):
        def project(layer: str) -> LinearGeneral:
            return LinearGeneral(
                cfg.embed, (cfg.heads, cfg.width), use_bias=layer in cfg.biased, kernel_init=initializer(cfg),
                dot_general=Product(layer), rngs=rngs, **cfg.precision.dtypes,
            )  # fmt: skip

        self.query, self.key, self.value = project("query"), project("key"), project("value")


class GlobalAttention(Attention):
    """Self-attention of long texts: time and memory grow as T times the window and the number of global tokens."""

    def __init__(self, cfg: GlobalAttentionConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.everywhere = Projections(cfg, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        mask: Mask | None = None,
        global_positions: Int[Array, "*B G"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"]:
        """Attend.

        Args:
          mask: has the window, and says which keys are padding; nothing else.
          global_positions: positions of tokens that see everything and that all see; −1 where a row has fewer.
          key: for attention dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or a mask of another kind.
        """
        self._check(x)
        cfg, (*lead, T, _) = self.cfg, x.shape
        if mask is None or mask.window is None:
            raise ValueError("attention in windows needs a mask with a window, such as Mask(window=256), got none")
        visible, keys = keys_seen(mask, (*lead, T)), split_keys(key)

        def dropout(key):
            return Dropout(cfg.attention_dropout, key) if key is not None and cfg.attention_dropout else None

        q, k, v = self.query(x), self.key(x), self.value(x)
        if global_positions is None:
            y = sliding_attention(q, k, v, visible, window=mask.window, scale=cfg.scale, dropout=dropout(keys[0]))
            y = _mark(y, q, k, visible, None, mask.window, cfg.scale)
        else:
            at, real, which, chosen = _found(global_positions, visible, T)

            def take(x):
                return jnp.take_along_axis(x, at[..., None, None], axis=-3)

            y = sliding_attention(
                q, k, v, visible & ~chosen, (take(k), take(v), real), window=mask.window, scale=cfg.scale,
                dropout=dropout(keys[0]),
            )  # fmt: skip
            query = self.everywhere.query(jnp.take_along_axis(x, at[..., None], axis=-2))
            seen = Mask(dense=visible[..., None, None, :])
            weights = attention_weights(query, self.everywhere.key(x), seen, scale=cfg.scale)
            far = weighted_values(weights, self.everywhere.value(x), dropout(keys[1]))
            y = jnp.where(chosen[..., None, None], jnp.take_along_axis(far, which[..., None, None], axis=-3), y)
            y = _mark(y, q, k, visible, (weights, which, chosen), mask.window, cfg.scale)
        y = jnp.where(visible[..., None, None], y, 0)  # what is padding itself sees nothing
        return self.out(constrain(checkpoint_name(y, "head_outputs"), "batch", "length", "heads", None))

    def init_cache(self, *args: object, **options: object) -> None:
        """Refuse: there is no cache for windows and global tokens."""
        raise ValueError("attention with global tokens sees what comes later, so it has no cache")

    extend = init_cache

    def for_decoding(self) -> "GlobalAttention":
        """Copy the layer as it is: a source is read once, whatever is decoded."""
        return jax.tree.map(lambda leaf: leaf, self)


@partial(jax.jit, static_argnames=("window", "scale"))
def _mark(
    y: Float[Array, "*B T N H"],
    q: Float[Array, "*B T N H"],
    k: Float[Array, "*B T N H"],
    visible: Bool[Array, "*B T"],
    everywhere: tuple[Float[Array, "*B N G T"], Int[Array, "*B T"], Bool[Array, "*B T"]] | None,
    window: tuple[int, int],
    scale: float | None,
) -> Float[Array, "*B T N H"]:
    """Return `y`, and mark the weights of all positions [*B, N, T, T] for `ops.capture`.

    They are no part of `y`, so nothing of their size is computed but by who captures them.

    Args:
      everywhere: the weights of global tokens, whose each position is, and whether it is one; None: there are none.
    """
    T = q.shape[-3]
    near = within(np.arange(T) - np.arange(T)[:, None], False, window)
    chosen = jnp.zeros((), bool) if everywhere is None else everywhere[2][..., None, None, :]
    shown = Mask(dense=(near | chosen) & visible[..., None, None, :])
    weights = attention_weights(q, k, shown, scale=scale)
    if everywhere is not None:
        far, which, chosen = everywhere
        rows = jnp.take_along_axis(far, which[..., None, :, None], axis=-2)
        weights = jnp.where(chosen[..., None, :, None], rows, weights)
    checkpoint_name(jnp.where(visible[..., None, :, None], weights, 0), "attention_weights")
    return y


def keys_seen(mask: Mask | None, shape: tuple[int, ...]) -> Bool[Array, "*B T"]:
    """Return which keys are no padding.

    Raises:
      ValueError: a mask that says more of keys than whether they are seen.
    """
    if mask is None:
        return jnp.ones(shape, bool)
    *lead, T = shape
    mask.check(tuple(lead), 1, T, T)
    dense = mask.dense
    if mask.causal or mask.segments is not None or mask.also or (dense is not None and dense.shape[-2] != 1 < T):
        raise ValueError(
            "attention of long texts takes a mask that hides padding, by lengths or dense with one row for all "
            "queries; got one that is causal, has segments, or differs by query"
        )
    seen = jnp.ones(shape, bool) if mask.lengths is None else jnp.arange(T) < mask.lengths[..., None]
    return jnp.broadcast_to(seen if dense is None else seen & dense[..., 0, -1, :], shape)


def _found(positions: Array, visible: Array, T: int) -> tuple[Array, Array, Array, Array]:
    """Return indices of global tokens, which of them count, and of each position whose it is and whether it is one.

    A place that is named twice counts once, one that is padding not at all.
    """
    at = jnp.clip(positions, 0, T - 1)
    real = (positions >= 0) & jnp.take_along_axis(visible, at, axis=-1)
    match = real[..., None] & (at[..., None] == jnp.arange(T))
    which = jnp.argmax(match, axis=-2)
    real = real & (jnp.take_along_axis(which, at, axis=-1) == jnp.arange(at.shape[-1]))
    return at, real, which, match.any(axis=-2)


@frozen
class GlobalTrunkConfig(TrunkConfig):
    """A stack of blocks that see windows; the attention of its blocks is a `GlobalAttentionConfig`."""

    windows: tuple[int, ...] = (512,)
    """How many tokens each sees besides itself, half of them on either side; layers take turns."""
    leading: int = 0
    """How many tokens at the beginning of a text are global, where a call does not say which are."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 0, "leading")
        if not self.windows or any(window < 2 or window % 2 for window in self.windows):
            raise ValueError(f"windows must be even numbers of at least 2, half on either side, got {self.windows}")
        if self.depth % len(self.windows):
            raise ValueError(f"layers must be a multiple of the windows, got L={self.depth}, windows={self.windows}")
        if not isinstance(self.block.attention, GlobalAttentionConfig):
            raise ValueError(
                f"a Longformer's attention must be a GlobalAttentionConfig, got {type(self.block.attention).__name__}"
            )

    def make_trunk(self, *, causal: bool = False, key: PRNGKeyArray | None = None, rngs: nnx.Rngs) -> "GlobalTrunk":
        """Make the trunk."""
        return GlobalTrunk(self, causal=causal, key=key, rngs=rngs)


class GlobalTrunk(Trunk):
    """Hidden states of tokens that see those near them, and of global tokens that see all."""

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        *,
        mask: Mask | None = None,
        global_positions: Int[Array, "*#B G"] | None = None,
        key: PRNGKeyArray | None = None,
        **others: Any,
    ) -> Float[Array, "*B T D"]:
        """Run the blocks.

        Args:
          mask: which positions are padding.
          global_positions: positions of global tokens; −1 where a row has fewer than others. None: the leading ones.
          key: for dropout; None means none.
          others: as a `Trunk`'s.

        Raises:
          ValueError: places that the text has not; of places that are not known yet, in a transform, NaN comes.
        """
        shape = x.shape[:-1]
        if global_positions is None and self.cfg.leading:
            global_positions = jnp.arange(min(self.cfg.leading, shape[-1]))
        if global_positions is not None:
            x = jnp.where(_wrong(global_positions, shape)[..., None, None], jnp.nan, x)
            many = (*shape[:-1], global_positions.shape[-1])
            others["global_positions"] = jnp.broadcast_to(global_positions, many)
        masks = Cycle.of(self.cfg.windows, lambda window: Mask(window=window // 2) & mask)
        return super().__call__(x, mask=masks, key=key, **others)


def _wrong(positions: Array, shape: tuple[int, ...]) -> Bool[Array, "*B"]:
    """Return which rows have places that they have not; raise where that is known already."""
    check_ids("global_positions", positions)
    check_broadcast("global_positions", positions.shape[:-1], shape[:-1])
    wrong = ((positions < -1) | (positions >= shape[-1])).any(axis=-1)
    if not isinstance(wrong, jax.core.Tracer) and np.any(wrong):
        raise ValueError(
            f"global_positions must be positions of the text, in [0, {shape[-1]}), or -1 for none, got "
            f"{int(positions.min())} to {int(positions.max())}"
        )
    return wrong
