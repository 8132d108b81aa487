"""What the cells of the Evolved Transformer have beside attention (So et al. 2019, https://arxiv.org/abs/1901.11117): a
gate over channels, and two convolutions side by side with a separable one after them.

Of two branches the narrower one is added to the first channels of the other.

Axes: *B batch, T positions, W those of windows and of T, C channels in, D width, F width of the wider branch.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_hidden, check_single
from flax_transformer.nn.config import Precision, check_at_least, check_fields, check_rates
from flax_transformer.nn.conv import ConvConfig
from flax_transformer.nn.linear import Linear, Product
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import make_norm
from flax_transformer.ops import Mask, dropout
from flax_transformer.ops.mask import check_mask
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain

_xavier = nnx.initializers.xavier_uniform()


@frozen
class GateConfig:
    """A linear layer whose channels another one opens and closes (Dauphin et al. 2017)."""

    embed: int
    """D, the width of the residual stream."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed")

    def build(self, rngs: nnx.Rngs) -> "Gate":
        """Make the layer."""
        return Gate(self, rngs=rngs)


class Gate(Module):
    """`up(x) * sigmoid(gate(x))` (https://arxiv.org/abs/1612.08083)."""

    def __init__(self, cfg: GateConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.up, self.gate = (_linear(cfg, cfg.embed, cfg.embed, name, rngs) for name in ("up", "gate"))

    def __call__(self, x: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B T D"]:
        """Apply to every position alike; there is nothing random in it."""
        check_hidden(x, self.cfg.embed)
        check_single(self.up.kernel, 2)
        return constrain(self.up(x) * jax.nn.sigmoid(self.gate(x)), "batch", "length", "inner")


class Separable(Module):
    """A convolution of each channel by itself, and a linear layer (Chollet 2017, https://arxiv.org/abs/1610.02357).

    It convolves what it is given and nothing else: of W positions come W - window + 1.
    """

    def __init__(self, channels: int, features: int, window: int, precision: Precision, *, rngs: nnx.Rngs):
        self.each = ConvConfig(
            channels=channels, features=channels, window=(window,), groups=channels, bias=False,
            init_std=math.sqrt(2 / (window * (channels + 1))), precision=precision,
        ).build(rngs)  # fmt: skip
        self.project = Linear(
            channels, features, kernel_init=_xavier, dot_general=Product(), rngs=rngs, **precision.dtypes
        )

    def __call__(self, x: Float[Array, "*B W C"]) -> Float[Array, "*B T D"]:
        """Convolve."""
        return self.project(self.each(x))


@frozen
class BranchesConfig:
    """Two convolutions side by side, and one after them; `EncoderBranchesConfig` and `DecoderBranchesConfig` build."""

    embed: int
    """D, the width of the residual stream; the narrower branch is half as wide."""
    inner: int
    """F, the width of the wider branch."""
    branch_dropout: float = 0.0
    """After each branch."""
    norm_eps: float = 1e-6
    """What the norm of both branches together adds to a variance."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 2, "embed")
        check_at_least(self, 0, "norm_eps")
        check_rates(self, "branch_dropout")
        if self.embed % 2 or self.inner < self.half:
            raise ValueError(
                f"a branch is half as wide as the model and the other no narrower, got D={self.embed}, F={self.inner}"
            )

    @property
    def half(self) -> int:
        """Width of the narrower branch."""
        return self.embed // 2


@frozen
class EncoderBranchesConfig(BranchesConfig):
    """A linear layer and a convolution of 3 positions, ReLU after each, then a separable one of 9."""

    def build(self, rngs: nnx.Rngs) -> "EncoderBranches":
        """Make the layer."""
        return EncoderBranches(self, rngs=rngs)


class EncoderBranches(Module):
    """Windows have a position in their middle: as many are seen before it as after it."""

    def __init__(self, cfg: EncoderBranchesConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.up = _linear(cfg, cfg.embed, cfg.inner, "up", rngs)
        self.narrow = ConvConfig(
            channels=cfg.embed, features=cfg.half, window=(3,), padding=1,
            init_std=math.sqrt(2 / (3 * (cfg.embed + cfg.half))), precision=cfg.precision,
        ).build(rngs)  # fmt: skip
        self.norm = make_norm("layer", cfg.inner, eps=cfg.norm_eps, precision=cfg.precision, rngs=rngs)
        self.last = Separable(cfg.inner, cfg.half, 9, cfg.precision, rngs=rngs)

    def __call__(
        self, x: Float[Array, "*B T D"], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B T D"]:
        """Convolve; the channels from D / 2 on are zero.

        Args:
          mask: with the lengths of rows, if any: what comes after them is seen by no window.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit, or a mask that hides anything else.
        """
        check_hidden(x, self.cfg.embed)
        check_single(self.up.kernel, 2)
        check_padding_alone(mask)
        keys = split_keys(key)
        x = _unpadded(x, mask)
        wide = dropout(jax.nn.relu(self.up(x)), self.cfg.branch_dropout, keys[0])
        narrow = dropout(jax.nn.relu(self.narrow(x)), self.cfg.branch_dropout, keys[1])
        y = _unpadded(self.norm(wide + _widened(narrow, self.cfg.inner)), mask)
        return _widened(self.last(_between(y, 4, 4)), self.cfg.embed)


@frozen
class DecoderBranchesConfig(BranchesConfig):
    """Separable convolutions of 11 positions, with ReLU, and of 7, then one of 7."""

    def build(self, rngs: nnx.Rngs) -> "DecoderBranches":
        """Make the layer."""
        return DecoderBranches(self, rngs=rngs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BranchCache:
    """The last positions that the next one's windows reach: what both branches read, and what the last one reads."""

    first: Float[Array, "*B _ D"]
    second: Float[Array, "*B _ F"]


class DecoderBranches(Module):
    """Windows end with a position: all else that they see is before it."""

    def __init__(self, cfg: DecoderBranchesConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.wide = Separable(cfg.embed, cfg.inner, 11, cfg.precision, rngs=rngs)
        self.narrow = Separable(cfg.embed, cfg.half, 7, cfg.precision, rngs=rngs)
        self.norm = make_norm("layer", cfg.inner, eps=cfg.norm_eps, precision=cfg.precision, rngs=rngs)
        self.last = Separable(cfg.inner, cfg.embed, 7, cfg.precision, rngs=rngs)

    def init_window(self, *batch: int) -> BranchCache:
        """Make what comes before the first position: zeros."""
        dtype = self.cfg.precision.dtypes["dtype"]
        return BranchCache(
            jnp.zeros((*batch, 10, self.cfg.embed), dtype), jnp.zeros((*batch, 6, self.cfg.inner), dtype)
        )

    def __call__(self, x: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B T D"]:
        """Convolve; a key is for dropout."""
        check_hidden(x, self.cfg.embed)
        return self._extend(x, self.init_window(*x.shape[:-2]), key)[0]

    def extend(self, x: Float[Array, "*B T D"], window: BranchCache) -> tuple[Float[Array, "*B T D"], BranchCache]:
        """Convolve T more positions; the window knows the last of the earlier ones."""
        check_hidden(x, self.cfg.embed)
        return self._extend(x, window, None)

    def _extend(self, x: Array, window: BranchCache, key: PRNGKeyArray | None) -> tuple[Array, BranchCache]:
        check_single(self.wide.project.kernel, 2)
        keys = split_keys(key)
        first = jnp.concatenate([window.first, x.astype(window.first.dtype)], axis=-2)
        wide = dropout(jax.nn.relu(self.wide(first)), self.cfg.branch_dropout, keys[0])
        narrow = dropout(self.narrow(first[..., 11 - 7 :, :]), self.cfg.branch_dropout, keys[1])
        y = self.norm(wide + _widened(narrow, self.cfg.inner))
        second = jnp.concatenate([window.second, y.astype(window.second.dtype)], axis=-2)
        return self.last(second), BranchCache(first[..., -10:, :], second[..., -6:, :])


def check_padding_alone(mask: Mask | None, *, causal: bool = False) -> None:
    """Raise ValueError for a mask that hides what windows see: all but padding, and where they are causal the future.

    Args:
      causal: whether windows are, so that they see no padding either.
    """
    if mask is None:
        return
    check_mask(mask)
    hides = [name for name in ("window", "segments", "dense") if getattr(mask, name) is not None]
    hides += ["also"] * bool(mask.also) + ["causal"] * (mask.causal and not causal)
    if hides:
        raise ValueError(f"convolutions see all that is in their windows but padding, got a mask with {hides[0]}")


def _unpadded(x: Array, mask: Mask | None) -> Array:
    """Put zeros where there is padding."""
    if mask is None or mask.lengths is None:
        return x
    return jnp.where((jnp.arange(x.shape[-2]) < mask.lengths[..., None])[..., None], x, 0)


def _between(x: Array, before: int, after: int) -> Array:
    """Put positions of zeros before and after."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(before, after), (0, 0)])


def _widened(x: Array, width: int) -> Array:
    """Add channels of zeros."""
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def _linear(cfg: GateConfig | BranchesConfig, inputs: int, outputs: int, name: str, rngs: nnx.Rngs) -> Linear:
    return Linear(
        inputs, outputs, axes=None, kernel_init=_xavier, dot_general=Product(name), rngs=rngs, **cfg.precision.dtypes
    )  # fmt: skip
