"""Convolutions over pictures, channels last.

Axes: B batch, H W height and width, C channels in, D features out.
"""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_images
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.linear import whole_kernel
from flax_transformer.nn.module import Module
from flax_transformer.ops import widen
from flax_transformer.ops.convolution import convolution
from flax_transformer.parallel import constrain
from flax_transformer.parallel.explicit import implicit

_he = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
_AXES = (None, None, None, "embed")


@frozen
class ConvConfig:
    """A convolution of pictures."""

    channels: int
    """C."""
    features: int
    """D."""
    window: tuple[int, int]
    """Height and width of what a feature sees at once."""
    stride: int = 1
    """From window to window, in both directions."""
    padding: int = 0
    """Lines of zeros at every side."""
    dilation: int = 1
    """From place to place within a window."""
    groups: int = 1
    """Parts of the channels, and of the features, that see each other alone; as many as channels: each its own."""
    bias: bool = True
    init_std: float | None = None
    """Standard deviation the kernel starts with; None: He's, by what it gives."""
    precision: Precision = Precision()

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "channels", "features", "stride", "dilation", "groups")
        check_at_least(self, 0, "padding", "init_std")
        if min(self.window) < 1:
            raise ValueError(f"a window must be at least 1×1, got {self.window[0]}×{self.window[1]}")
        if self.channels % self.groups or self.features % self.groups:
            raise ValueError(
                f"groups must divide channels and features, got {self.groups} groups, C={self.channels}, "
                f"D={self.features}"
            )

    def build(self, rngs: nnx.Rngs) -> "Conv":
        """Make the layer."""
        return Conv(self, rngs=rngs)


class Conv(Module):
    """Pictures in, pictures out; the kernel is [height, width, C / groups, D]."""

    def __init__(self, cfg: ConvConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        init = _he if cfg.init_std is None else nnx.initializers.normal(cfg.init_std)
        kind = cfg.precision.dtypes["param_dtype"]
        kernel = init(rngs.params(), (*cfg.window, cfg.channels // cfg.groups, cfg.features), kind)
        self.kernel = nnx.Param(kernel, out_sharding=_AXES, eager_sharding=False)
        if cfg.bias:
            self.bias = nnx.Param(jnp.zeros(cfg.features, kind), out_sharding=(None,), eager_sharding=False)

    @implicit("x")
    def __call__(self, x: Float[Array, "*B H W C"]) -> Float[Array, "*B I J D"]:
        """Convolve; the bias is added in float32 or more.

        Raises:
          ValueError: shapes that do not fit.
        """
        cfg, dtype = self.cfg, self.cfg.precision.dtypes["dtype"]
        check_images(x, cfg.channels)
        kernel = whole_kernel(self.kernel[...].astype(dtype), _AXES)
        y = convolution(x.astype(dtype), kernel, stride=cfg.stride, padding=cfg.padding, dilation=cfg.dilation)
        y = (widen(y) + self.bias[...]).astype(y.dtype) if cfg.bias else y
        return constrain(y, "batch", None, None, None)
