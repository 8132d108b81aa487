"""The position-wise feed-forward layer, plain (Vaswani et al. 2017, §3.3) or gated (Shazeer 2020)."""

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.check import check_hidden, check_single
from flax_transformer.nn.config import Precision, check_at_least, check_fields, check_rates
from flax_transformer.nn.linear import Linear, Product, initializer
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import make_norm
from flax_transformer.ops import activation, dropout
from flax_transformer.ops.remat import recomputed
from flax_transformer.parallel import constrain


@frozen
class FeedForwardConfig:
    """A feed-forward layer, applied to every position alike."""

    embed: int
    """D, the width of the residual stream."""
    inner: int
    """F, the width between the two linear layers."""
    activation: str | Callable = "relu"
    """A name, or any module-level function of an array."""
    gated: bool = False
    """Gated (Shazeer 2020): activation(gate(x)) * up(x)."""
    bias: bool = True
    """Biases of the linear layers."""
    activation_dropout: float = 0.0
    """After the activation."""
    init_std: float | None = None
    """Standard deviation kernels start with; None: Xavier's."""
    residual_init_std: float | None = None
    """That of the layer that writes to the residual stream; None: as `init_std`."""
    precision: Precision = Precision()
    """Types of parameters and of what is computed."""

    takes = ()  # of a block's arguments: see `Sublayer`

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "embed", "inner")
        check_at_least(self, 0, "init_std", "residual_init_std")
        check_rates(self, "activation_dropout")
        activation(self.activation)

    def build(self, rngs: nnx.Rngs) -> "FeedForward":
        """Make the layer."""
        return FeedForward(self, rngs=rngs)


class FeedForward(Module):
    """Two linear layers D → F → D with an activation between, or three when gated.

    `ops.capture(f, "neurons")` gives the activations [*B, T, F].
    """

    def __init__(self, cfg: FeedForwardConfig, *, rngs: nnx.Rngs):
        def linear(layer: str, inputs: int, outputs: int, *, residual: bool = False) -> Linear:
            return Linear(
                inputs,
                outputs,
                axes=None,
                use_bias=cfg.bias,
                kernel_init=initializer(cfg, residual=residual),
                dot_general=Product(layer),
                rngs=rngs,
                **cfg.precision.dtypes,
            )

        self.cfg = cfg
        self.up, self.down = linear("up", cfg.embed, cfg.inner), linear("down", cfg.inner, cfg.embed, residual=True)
        self.down.dtype = jnp.dtype(cfg.precision.residual)
        if cfg.gated:
            self.gate = linear("gate", cfg.embed, cfg.inner)

    def __call__(self, x: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B T D"]:
        """Apply to every position alike; `key` is for activation dropout."""
        check_hidden(x, self.cfg.embed)
        check_single(self.down.kernel, 2)
        return self._rest((self.gate(x), self.up(x)) if self.cfg.gated else (self.up(x),), key)

    def _rest(self, inner: tuple[Array, ...], key: PRNGKeyArray | None) -> Array:
        """Go on from what the first linear layers give, of which each is [*B, T, F]."""

        def rest(first: Array, *up: Array) -> Array:
            hidden = activation(self.cfg.activation)(first)
            hidden = checkpoint_name(hidden * up[0] if up else hidden, "neurons")
            return self.down(self._before_down(constrain(hidden, "batch", "length", "inner"), key))

        return recomputed(rest)(*inner)

    def _before_down(self, hidden: Array, key: PRNGKeyArray | None) -> Array:
        """Return what the second linear layer is given."""
        return dropout(hidden, self.cfg.activation_dropout, key)


@frozen
class NormedFeedForwardConfig(FeedForwardConfig):
    """A feed-forward layer with a norm before its second linear layer."""

    norm_eps: float = 1e-6
    """What the norm adds to a variance."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 0, "norm_eps")

    def build(self, rngs: nnx.Rngs) -> "NormedFeedForward":
        """Make the layer."""
        return NormedFeedForward(self, rngs=rngs)


class NormedFeedForward(FeedForward):
    """Two linear layers with an activation and a norm between, or three when gated."""

    def __init__(self, cfg: NormedFeedForwardConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.norm = make_norm("layer", cfg.inner, eps=cfg.norm_eps, precision=cfg.precision, rngs=rngs)

    def _before_down(self, hidden: Array, key: PRNGKeyArray | None) -> Array:
        return self.norm(super()._before_down(hidden, key))
