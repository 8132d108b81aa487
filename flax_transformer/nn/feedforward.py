"""The position-wise feed-forward layer, plain (Vaswani et al. 2017, §3.3) or gated (Shazeer 2020)."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, PRNGKeyArray

from flax_transformer.nn.check import check_hidden, check_single
from flax_transformer.nn.config import BlockConfig
from flax_transformer.nn.linear import Linear, Product, initializer
from flax_transformer.ops import activation, dropout
from flax_transformer.parallel import constrain
from flax_transformer.parallel.explicit import implicit


class FeedForward(nnx.Module):
    """Two linear layers D → F → D with an activation between, or three when gated."""

    def __init__(self, cfg: BlockConfig, *, rngs: nnx.Rngs):
        def linear(layer: str, inputs: int, outputs: int, *, residual: bool = False) -> Linear:
            return Linear(
                inputs,
                outputs,
                use_bias=cfg.bias,
                kernel_init=initializer(cfg, residual=residual),
                dot_general=Product(layer),
                rngs=rngs,
                **cfg.dtypes,
            )

        self.cfg = cfg
        self.up, self.down = linear("up", cfg.embed, cfg.hidden), linear("down", cfg.hidden, cfg.embed, residual=True)
        self.down.dtype = jnp.dtype(cfg.precision.residual)
        if cfg.gated:
            self.gate = linear("gate", cfg.embed, cfg.hidden)

    @implicit("x")
    def __call__(self, x: Float[Array, "*B T D"], *, key: PRNGKeyArray | None = None) -> Float[Array, "*B T D"]:
        """Apply to every position alike; `key` is for activation dropout."""
        check_hidden(x, self.cfg.embed)
        check_single(self.down.kernel, 2)
        act = activation(self.cfg.activation)
        hidden = self.up(x)
        hidden = act(self.gate(x)) * hidden if self.cfg.gated else act(hidden)
        hidden = constrain(hidden, "batch", "length", "hidden")
        return self.down(dropout(hidden, self.cfg.activation_dropout, key))
