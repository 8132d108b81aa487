"""Recordings as sequences: convolutions over time before a trunk (Baevski et al. 2020, https://arxiv.org/abs/2006.11477;
Radford et al. 2022, https://arxiv.org/abs/2212.04356).

Axes: B batch, T samples or frames of a spectrum, S positions that come of them, C channels, D width.
"""

from typing import Any, Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.conv import ConvConfig
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import LayerNorm
from flax_transformer.ops import layer_norm
from flax_transformer.ops.activation import gelu


@frozen
class FeatureExtractorConfig:
    """Convolutions over time, with GELU after each: windows and strides are of one after another."""

    embed: int
    """D, the width of the last, and so of what comes out."""
    windows: tuple[int, ...]
    """Positions that each convolution reads."""
    strides: tuple[int, ...]
    """Positions that each moves on by."""
    before: tuple[int, ...] = ()
    """Widths of the convolutions before the last; (): D as well."""
    channels: int = 1
    """C: 1 of samples, the bins of a spectrum."""
    padded: bool = False
    """Whether half a window of zeros is put at either end before each."""
    bias: bool = True
    """Whether each convolution adds one."""
    norm: Literal["none", "first", "every"] = "none"
    """Between convolution and GELU: "first", every channel over time after the first convolution, padding and
    all (a GroupNorm of as many groups as channels); "every", every position over its channels after each."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: He's."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "embed")
        check_at_least(self, 0, "init_std")
        sizes = (self.windows, self.strides, self.widths)
        if not self.windows or len({*map(len, sizes)}) > 1 or min(map(min, sizes)) < 1:
            raise ValueError(
                "convolutions must have a window, a stride and a width each, all at least 1, got "
                f"{self.windows}, {self.strides} and {self.widths}"
            )

    @property
    def widths(self) -> tuple[int, ...]:
        """Of each convolution."""
        return (*(self.before or (self.embed,) * (len(self.windows) - 1)), self.embed)

    def frames(self, length: Any) -> Any:
        """Count the positions that come of a recording of this length, or of recordings of these lengths."""
        for window, stride in zip(self.windows, self.strides, strict=True):
            length = (length + 2 * self.padding(window) - window) // stride + 1
        return length

    def length_of(self, frames: int) -> int:
        """Return the shortest recording of which so many positions come."""
        for window, stride in zip(reversed(self.windows), reversed(self.strides), strict=True):
            frames = (frames - 1) * stride + window - 2 * self.padding(window)
        return frames

    def padding(self, window: int) -> int:
        """Return the zeros at either end before a convolution."""
        return window // 2 if self.padded else 0

    def build(self, rngs: nnx.Rngs) -> "FeatureExtractor":
        """Make the layers."""
        return FeatureExtractor(self, rngs=rngs)


class ChannelNorm(LayerNorm):
    """Every channel of a sequence, normalised over time: torch's GroupNorm of as many groups as channels."""

    def __call__(self, x: Float[Array, "*B T D"]) -> Float[Array, "*B T D"]:
        """Normalise, in float32 whatever the input's type."""
        one, zero = jnp.ones(x.shape[-2]), jnp.zeros(x.shape[-2])
        y = layer_norm(x.mT, one, zero, self.epsilon).mT
        return (y * self.scale[...] + self.bias[...]).astype(self.dtype)


class FeatureExtractor(Module):
    """Recordings in, a sequence of vectors out."""

    def __init__(self, cfg: FeatureExtractorConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        inputs = (cfg.channels, *cfg.widths)
        for i, (window, stride) in enumerate(zip(cfg.windows, cfg.strides, strict=True)):
            layer = ConvConfig(
                channels=inputs[i], features=cfg.widths[i], window=(window,), stride=stride,
                padding=cfg.padding(window), bias=cfg.bias, init_std=cfg.init_std, precision=cfg.precision,
            ).build(rngs)  # fmt: skip
            setattr(self, f"conv{i + 1}", layer)
            if cfg.norm == "every" or (cfg.norm == "first" and i == 0):
                kind = LayerNorm if cfg.norm == "every" else ChannelNorm
                setattr(self, f"norm{i + 1}", kind(cfg.widths[i], epsilon=1e-5, rngs=rngs, **cfg.precision.dtypes))

    def __call__(self, x: Float[Array, "*B T C"]) -> Float[Array, "*B S D"]:
        """Embed recordings.

        Raises:
          ValueError: shapes that do not fit, or a recording that is shorter than a window.
        """
        for i in range(len(self.cfg.widths)):
            x = getattr(self, f"conv{i + 1}")(x)
            x = getattr(self, f"norm{i + 1}")(x) if hasattr(self, f"norm{i + 1}") else x
            x = gelu(x)
        return x
