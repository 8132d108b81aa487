"""Masked image modelling: a linear layer gives the pixels around every patch (Xie et al. 2021,
https://arxiv.org/abs/2111.09886).

Axes: B batch, H W height and width in pixels, C channels, T tokens and patches, P patches, D width.
"""

from math import isqrt
from typing import Any

from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.preset import module_of
from flax_transformer.models.protocol import Described
from flax_transformer.nn.config import Precision, check_at_least, check_fields
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.module import Module
from flax_transformer.order import Part


@frozen
class RestorerConfig:
    """A backbone of images, and a layer that gives back their pixels."""

    backbone: Any
    """The config of a model that gives hidden states of the patches of a square image."""
    embed: int
    """D, the width of these."""
    stride: int
    """Height and width, in pixels, of what one hidden state gives back."""
    channels: int = 3
    """C."""
    skip: int = 1
    """Hidden states before those of patches."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "stride", "channels")
        check_at_least(self, 0, "skip")

    def build(self, rngs: nnx.Rngs) -> "Restorer":
        """Make the model."""
        return Restorer(self, rngs=rngs)


class Restorer(Module):
    """Images with masked patches in, images out: `model.output(model.hidden_states(images, masked=masked))`."""

    layer_order = (Part("backbone"), "dense")

    use = "feature-extraction"

    @classmethod
    def example_batch(cls, config: RestorerConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch as the backbone's."""
        return module_of(config.backbone).example_batch(config.backbone, rows)

    @classmethod
    def describe_batch(cls, config: RestorerConfig, batch: dict[str, Any]) -> Described:
        """Count B images."""
        return module_of(config.backbone).describe_batch(config.backbone, batch)

    def __init__(self, cfg: RestorerConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        self.backbone = cfg.backbone.build(rngs)
        self.dense = Linear(cfg.embed, cfg.channels * cfg.stride**2, rngs=rngs, **cfg.precision.dtypes)

    def hidden_states(self, *inputs: Any, **named: Any) -> Float[Array, "*B T D"]:
        """Compute the backbone's hidden states; arguments as its own `hidden_states`'s."""
        return self.backbone.hidden_states(*inputs, **named)

    def output(self, hidden: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B H W C"]:
        """Return the pixels around every patch of a square image."""
        return from_patches(self.dense(hidden[..., self.cfg.skip :, :]), self.cfg.stride, channels_first=True)


def from_patches(patches: Float[Array, "*B P X"], stride: int, *, channels_first: bool) -> Float[Array, "*B H W C"]:
    """Put the pixels of the patches of a square image where they belong.

    Args:
      patches: the pixels of each.
      stride: height and width of each.
      channels_first: whether a patch is [C, height, width], as torch shuffles pixels, or [height, width, C].

    Raises:
      ValueError: as many patches as make no square.
    """
    *lead, P, _ = patches.shape
    side = isqrt(P)
    if side * side != P:
        raise ValueError(f"pixels are given back to square images, got {P} patches")
    shape = (-1, stride, stride) if channels_first else (stride, stride, -1)
    x = patches.reshape(*lead, side, side, *shape)
    x = x.transpose(
        *range(len(lead)), *(len(lead) + axis for axis in ((0, 3, 1, 4, 2) if channels_first else (0, 2, 1, 3, 4)))
    )
    return x.reshape(*lead, side * stride, side * stride, -1)
