"""The residual around any sublayer: norm and its place, dropout, drop-path and LayerScale."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_hidden, check_single
from flax_transformer.nn.config import Precision, check_at_least, check_fields, check_rates
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import check_norm, make_norm
from flax_transformer.ops import drop_path, dropout, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.parallel import constrain


@frozen
class ResidualConfig:
    """How what a sublayer computes is added to what it is given."""

    embed: int
    """D, the width of the residual stream."""
    norm: str | Callable = "layer"
    """"layer", "layer_without_bias", "rms", "zero_centered_rms", or a module-level function that takes what
    `nnx.RMSNorm` takes and makes a norm."""
    norm_eps: float = 1e-5
    """Epsilon of batch norm."""
    norm_position: Literal["pre", "post", "output", "both", "none"] = "post"
    """Of a sublayer f: "post" is norm(x + f(x)) (Vaswani et al. 2017), "pre" is x + f(norm(x)), whose stack ends in a
    norm of its own, "output" is x + norm(f(x)) (Liu et al. 2022, https://arxiv.org/abs/2111.09883, Swin V2), "both" is
    x + norm(f(norm(x))), two norms (Gemma Team 2024, https://arxiv.org/abs/2408.00118), whose stack ends in one too;
    "none" is x + f(x), and in a block of parallel sublayers f sees what the norm before the first one gives."""
    dropout: float = 0.0
    """On the sublayer's output."""
    drop_path: float = 0.0
    """How often a row does without the sublayer, while training (Huang et al. 2016)."""
    layer_scale: float | None = None
    """What the learned factor of every channel of the output starts with (Touvron et al. 2021,
    https://arxiv.org/abs/2103.17239); None: there are no such factors."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed")
        check_at_least(self, 0, "norm_eps")
        check_rates(self, "dropout", "drop_path")
        check_norm(self.norm)

    takes = ()  # of a block's arguments, beside what its sublayer takes

    def build(self, rngs: nnx.Rngs) -> "Residual":
        """Make the residual."""
        return Residual(self, rngs=rngs)

    def make_norm(self, rngs: nnx.Rngs) -> Callable[[Array], Array]:
        """Make the norm of one sublayer, or that at the end of a stack of pre-norm blocks."""
        return make_norm(self.norm, self.embed, eps=self.norm_eps, precision=self.precision, rngs=rngs)


class Residual(Module):
    """What is around a sublayer: `residual(x, sublayer, key=key)` is x plus what the sublayer makes of it.

    A sublayer is any function `f(x, *args, key=None, **kwargs)` of hidden states that gives hidden states. One that
    gives more is called between the two halves: `residual.add(x, f(residual.enter(x)))`.
    """

    def __init__(self, cfg: ResidualConfig, *, rngs: nnx.Rngs):
        self.cfg = cfg
        if cfg.norm_position != "none":
            self.norm = cfg.make_norm(rngs)
        if cfg.norm_position == "both":
            self.output_norm = cfg.make_norm(rngs)
        if cfg.layer_scale is not None:
            self.layer_scale = nnx.Param(jnp.full(cfg.embed, cfg.layer_scale, cfg.precision.dtypes["param_dtype"]))

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        sublayer: Callable[..., Array],
        *args: Any,
        key: PRNGKeyArray | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        source: Float[Array, "*B T D"] | None = None,
        **kwargs: Any,
    ) -> Float[Array, "*B T D"]:
        """Apply a sublayer.

        Args:
          args, kwargs: given to the sublayer.
          key: for dropout, the sublayer's too; None means none.
          drop_path: a rate in place of the config's.
          source: what the sublayer sees in place of x, to which it is added.

        Raises:
          ValueError: shapes that do not fit.
        """
        inner, outer = split_keys(key)
        y = sublayer(self.enter(x if source is None else source), *args, key=inner, **kwargs)
        return self.add(x, y, key=outer, drop_path=drop_path)

    def enter(self, x: Float[Array, "*B T D"]) -> Float[Array, "*B T D"]:
        """Return what the sublayer sees."""
        check_hidden(x, self.cfg.embed)
        for leaf in jax.tree.leaves(getattr(self, "norm", None)):
            check_single(leaf, 1)
        return self.norm(x) if self.cfg.norm_position in ("pre", "both") else x

    def add(
        self,
        x: Float[Array, "*B T D"],
        y: Float[Array, "*B T D"],
        *,
        key: PRNGKeyArray | None = None,
        drop_path: Float[Array, ""] | float | None = None,
    ) -> Float[Array, "*B T D"]:
        """Add what the sublayer made; arguments as in a call."""
        cfg = self.cfg
        if cfg.norm_position in ("output", "both"):
            y = self.norm(y) if cfg.norm_position == "output" else self.output_norm(y)
        if cfg.layer_scale is not None:
            y = (widen(y) * self.layer_scale[...]).astype(y.dtype)
        y = x + _dropped(y, cfg.dropout, cfg.drop_path if drop_path is None else drop_path, key)
        return constrain(self.norm(y) if cfg.norm_position == "post" else y, "batch", "length", None)


def _dropped(y: Array, rate: float, path_rate: Array | float, key: PRNGKeyArray | None) -> Array:
    y = dropout(y, rate, key)
    return y if key is None else drop_path(y, path_rate, jax.random.fold_in(key, 1))


@frozen
class LaterNormConfig(ResidualConfig):
    """A pre-norm residual without the norm in the first layer of a stack, whose embeddings have just been normalised.

    So that layers are one stack the first has the parameters of a norm too, which nothing uses: their gradient is 0.
    """

    norm_position: Literal["pre"] = "pre"
    """Of a sublayer f: x + f(norm(x)), and x + f(x) in the first layer."""

    takes = ("layer",)

    def build(self, rngs: nnx.Rngs) -> "LaterNorm":
        """Make the residual."""
        return LaterNorm(self, rngs=rngs)


class LaterNorm(Residual):
    """x + f(norm(x)), in the first layer x + f(x)."""

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        sublayer: Callable[..., Array],
        *args: Any,
        layer: Int[Array, ""] | int | None = None,
        key: PRNGKeyArray | None = None,
        drop_path: Float[Array, ""] | float | None = None,
        source: Float[Array, "*B T D"] | None = None,
        **kwargs: Any,
    ) -> Float[Array, "*B T D"]:
        """Apply a sublayer; arguments as `Residual`'s.

        Args:
          layer: the number of the layer in its stack, from 0 on.
        """
        inner, outer = split_keys(key)
        y = sublayer(self.enter(x if source is None else source, layer), *args, key=inner, **kwargs)
        return self.add(x, y, key=outer, drop_path=drop_path)

    def enter(self, x: Float[Array, "*B T D"], layer: Int[Array, ""] | int | None = None) -> Float[Array, "*B T D"]:
        """Return what the sublayer sees in the layer of that number."""
        if layer is None:
            raise ValueError("a block whose first layer has no norm must be told the number of its layer, got none")
        return jnp.where(jnp.equal(layer, 0), x, super().enter(x))
