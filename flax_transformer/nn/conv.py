"""Convolutions over images and over time, channels last.

Axes: B batch, H W height and width, T time, C channels in, D features out.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_hidden, check_images
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.linear import whole_kernel
from flax_transformer.nn.module import Module
from flax_transformer.ops import widen
from flax_transformer.ops.convolution import convolution
from flax_transformer.parallel import constrain

_he = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
_he_in = nnx.initializers.variance_scaling(2.0, "fan_in", "normal", in_axis=-2, out_axis=-1, batch_axis=(0, 1))


@frozen
class ConvConfig:
    """A convolution of images, or of sequences, by the axes of its window."""

    channels: int
    """C."""
    features: int
    """D."""
    window: tuple[int, ...]
    """Height and width of what a feature sees at once, or its length in time alone."""
    stride: int = 1
    """From window to window, in every direction."""
    padding: int = 0
    """Lines of zeros at every side."""
    dilation: int = 1
    """From place to place within a window."""
    groups: int = 1
    """Parts of the channels, and of the features, that see each other alone; as many as channels: each its own."""
    bias: bool = True
    """Whether the convolution adds one."""
    init_std: float | None = None
    """Standard deviation the kernel starts with; None: He's, by what it gives."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "features", "stride", "dilation", "groups")
        check_at_least(self, 0, "padding", "init_std")
        if len(self.window) not in (1, 2) or min(self.window) < 1:
            found = "×".join(map(str, self.window))
            raise ValueError(f"a window must have one axis or two, each at least 1 long, at least 1×1, got {found}")
        if self.channels % self.groups or self.features % self.groups:
            raise ValueError(
                f"groups must divide channels and features, got {self.groups} groups, C={self.channels}, "
                f"D={self.features}"
            )

    def build(self, rngs: nnx.Rngs) -> "Conv":
        """Make the layer."""
        return Conv(self, rngs=rngs)


class Conv(Module):
    """Images in, images out; the kernel is [height, width, C / groups, D]. Of sequences, [length, …]."""

    def __init__(self, cfg: ConvConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        init = _he if cfg.init_std is None else nnx.initializers.normal(cfg.init_std)
        kind = cfg.precision.dtypes["param_dtype"]
        kernel = init(rngs.params(), (*cfg.window, cfg.channels // cfg.groups, cfg.features), kind)
        self.kernel = nnx.Param(kernel, out_sharding=_axes(cfg), eager_sharding=False)
        if cfg.bias:
            self.bias = nnx.Param(jnp.zeros(cfg.features, kind), out_sharding=(None,), eager_sharding=False)

    def weights(self) -> Float[Array, "..."]:
        """Return the kernel, which a subclass may make of other parameters."""
        return self.kernel[...]

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Convolve images [*B, H, W, C] or sequences [*B, T, C]; the bias is added in float32 or more.

        Raises:
          ValueError: shapes that do not fit.
        """
        cfg, dtype = self.cfg, self.cfg.precision.dtypes["dtype"]
        check_images(x, cfg.channels) if len(cfg.window) == 2 else check_hidden(x, cfg.channels)
        kernel = whole_kernel(self.weights().astype(dtype), _axes(cfg))
        y = convolution(x.astype(dtype), kernel, stride=cfg.stride, padding=cfg.padding, dilation=cfg.dilation)
        y = (widen(y) + self.bias[...]).astype(y.dtype) if cfg.bias else y
        return constrain(y, "batch", *(None,) * (len(cfg.window) + 1))


@frozen
class UpConvConfig:
    """A transposed convolution of images whose windows do not overlap, so that it makes them so many times larger."""

    channels: int
    """C."""
    features: int
    """D."""
    factor: int = 2
    """r, how many times higher and wider an image becomes; windows are as large."""
    init_std: float | None = None
    """Standard deviation the kernel starts with; None: He's, by what it is given."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "features", "factor")
        check_at_least(self, 0, "init_std")

    def build(self, rngs: nnx.Rngs) -> "UpConv":
        """Make the layer."""
        return UpConv(self, rngs=rngs)


class UpConv(Module):
    """Images in, larger images out; the kernel is [r, r, C, D]."""

    def __init__(self, cfg: UpConvConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        init = _he_in if cfg.init_std is None else nnx.initializers.normal(cfg.init_std)
        kind, axes = cfg.precision.dtypes["param_dtype"], (None, None, None, "embed")
        kernel = init(rngs.params(), (cfg.factor, cfg.factor, cfg.channels, cfg.features), kind)
        self.kernel = nnx.Param(kernel, out_sharding=axes, eager_sharding=False)
        self.bias = nnx.Param(jnp.zeros(cfg.features, kind), out_sharding=(None,), eager_sharding=False)

    def __call__(self, x: Float[Array, "*B H W C"]) -> Float[Array, "*B rH rW D"]:
        """Enlarge images; the bias is added in float32 or more.

        Raises:
          ValueError: shapes that do not fit.
        """
        cfg, dtype = self.cfg, self.cfg.precision.dtypes["dtype"]
        check_images(x, cfg.channels)
        kernel = whole_kernel(self.kernel[...].astype(dtype), (None, None, None, "embed"))
        *lead, H, W, _ = x.shape
        y = jnp.einsum("...hwc,ijcd->...hiwjd", x.astype(dtype), kernel)
        y = y.reshape(*lead, cfg.factor * H, cfg.factor * W, cfg.features)
        return constrain((widen(y) + self.bias[...]).astype(y.dtype), "batch", None, None, None)


def _axes(cfg: ConvConfig) -> tuple[str | None, ...]:
    return (*(None,) * (len(cfg.window) + 1), "embed")
