"""No encoder: what a decoder looks at is given, states that something else has made.

Axes: B batch, S positions of the states, W their width.
"""

from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import LENGTH
from flax_transformer.models.protocol import Described
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_at_least
from flax_transformer.nn.module import Module
from flax_transformer.ops import Mask


@frozen
class GivenStatesConfig:
    """What stands in the place of an encoder's config in a `Seq2SeqConfig`."""

    embed: int
    """W, the width of the states."""

    def __post_init__(self):
        check_at_least(self, 1, "embed")

    def build(self, rngs: nnx.Rngs) -> "GivenStates":
        """Make the module, which has no parameters."""
        return GivenStates(self)


class GivenStates(Module):
    """An encoder whose source is its output, [*B, S, W]."""

    layer_order = ()

    use = "feature-extraction"

    def __init__(self, cfg: GivenStatesConfig):
        self.cfg = cfg

    def __call__(
        self, source: Float[Array, "*B S W"], *, mask: Mask | None = None, key: PRNGKeyArray | None = None
    ) -> Float[Array, "*B S W"]:
        """Return the states.

        Raises:
          ValueError: states of another width.
        """
        check_hidden(source, self.cfg.embed, "the states to look at")
        return source

    def memory_mask(self, mask: Mask | None) -> Mask | None:
        """Return what of the states is padding."""
        return mask

    @classmethod
    def example_batch(cls, config: GivenStatesConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B rows of states."""
        shape = (rows, length or LENGTH, config.embed)
        return {"inputs": {"states": np.random.default_rng(0).standard_normal(shape, dtype=np.float32)}}

    @classmethod
    def describe_batch(cls, config: GivenStatesConfig, batch: dict[str, Any]) -> Described:
        """Count B · S positions."""
        rows, length, _ = batch["inputs"]["states"].shape
        return Described({"rows": rows, "length": length}, rows * length, "positions")
