"""The block: attention, cross-attention where asked for, feed-forward, residuals around each."""

from collections.abc import Callable

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.nn.attention import Attention
from flax_transformer.nn.cache import KVCache, Memory
from flax_transformer.nn.check import check_hidden, check_single
from flax_transformer.nn.config import BlockConfig
from flax_transformer.nn.feedforward import FeedForward
from flax_transformer.nn.norm import make_norm
from flax_transformer.ops import Mask, dropout
from flax_transformer.parallel import constrain
from flax_transformer.parallel.explicit import implicit


class Block(nnx.Module):
    """One layer of an encoder, a decoder, or both; `ops.capture(f, "hidden_states")` gives what each layer is given.

    Post-norm is norm(x + f(x)), the paper's; pre-norm is x + f(norm(x)), and whoever stacks pre-norm blocks
    normalises once more at the end.
    """

    def __init__(self, cfg: BlockConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.attention = Attention(cfg, rngs=rngs)
        self.attention_norm = make_norm(cfg, rngs=rngs)
        if cfg.cross:
            self.cross = Attention(cfg, rngs=rngs)
            self.cross_norm = make_norm(cfg, rngs=rngs)
        self.feedforward = FeedForward(cfg, rngs=rngs)
        self.feedforward_norm = make_norm(cfg, rngs=rngs)

    def for_decoding(self) -> "Block":
        """Copy the block as decoding on a CPU wants it: see `Attention.for_decoding`."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.attention = self.attention.for_decoding()
        return copy

    def _residual(self, x: Array, norm: Callable, sublayer: Callable, rate: float, key: PRNGKeyArray | None) -> Array:
        """Apply a sublayer with dropout, residual and normalisation in the configured order."""
        inner, outer = (None, None) if key is None else jax.random.split(key)
        pre = self.cfg.norm_position == "pre"
        y = x + dropout(sublayer(norm(x) if pre else x, inner), rate, outer)
        return constrain(y if pre else norm(y), "batch", "length", None)

    @implicit("x")
    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S D"] | Memory | None = None,
        *,
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        cache: KVCache | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B T D"] | tuple[Float[Array, "*B T D"], KVCache]:
        """Apply the block; with a cache, return (y, cache).

        Args:
          memory: what cross-attention looks at, as hidden states or projected keys and values: see `Attention`.
          mask: what self-attention may see.
          memory_mask: what cross-attention may see.
          bias: added to the products of self-attention, e.g. relative positions.
          positions: of the T queries, for rotary.
          key: for dropout; None means none.

        Raises:
          ValueError: when a memory is given to a block without cross-attention, or missing for one with it; or shapes
            that do not fit, a whole stack called as a block among them.
        """
        check_hidden(x, self.cfg.embed)
        check_single(self.attention.out.kernel, 3)
        if self.cfg.cross != (memory is not None):
            rule = "needs a memory" if self.cfg.cross else "takes no memory"
            raise ValueError(
                f"a block with cross={self.cfg.cross} {rule}, got memory={'none' if memory is None else 'one'}"
            )
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        x, after = checkpoint_name(x, "hidden_states"), cache

        def attend(h: Array, k: PRNGKeyArray | None) -> Array:
            nonlocal after
            y = self.attention(h, mask=mask, bias=bias, positions=positions, cache=cache, key=k)
            if cache is not None:
                y, after = y
            return y

        x = self._residual(x, self.attention_norm, attend, self.cfg.resolved_out_dropout, keys[0])
        if self.cfg.cross:
            look = lambda h, k: self.cross(h, memory, mask=memory_mask, key=k)  # noqa: E731
            x = self._residual(x, self.cross_norm, look, self.cfg.resolved_out_dropout, keys[1])
        feed = lambda h, k: self.feedforward(h, key=k)  # noqa: E731
        x = self._residual(x, self.feedforward_norm, feed, self.cfg.dropout, keys[2])
        return x if cache is None else (x, after)
