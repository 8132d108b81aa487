"""The Decision Transformer: actions in a sequence with what was seen and the return that is asked for (Chen et al.
2021, https://arxiv.org/abs/2106.01345).

A step is three positions: the return still to come, the state, and the action that was taken; what a state's position
gives says the action.

Axes: B batch, T steps, S numbers of a state, A numbers of an action, D width.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.models.example import LENGTH
from flax_transformer.models.protocol import Described
from flax_transformer.nn import Precision, Trunk, TrunkConfig, transformer_block
from flax_transformer.nn.check import check_hidden
from flax_transformer.nn.config import check_at_least, check_rates
from flax_transformer.nn.linear import Linear, axes_metadata, initializer
from flax_transformer.nn.module import Module
from flax_transformer.nn.norm import make_norm
from flax_transformer.ops import Mask, dropout, lookup, widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Part
from flax_transformer.parallel import constrain
from flax_transformer.parallel.sharding import Axes

FLOAT32 = Precision()


@frozen
class DecisionConfig(TrunkConfig):
    """A trunk that sees the past, over returns, states and actions."""

    states: int
    """S."""
    actions: int
    """A: numbers of an action, or kinds of actions."""
    times: int = 4096
    """Steps of the longest episode."""
    positions: int = 1024
    """Rows of a table of positions, of which checkpoints use the first for every position."""
    tanh: bool = True
    """Whether actions are numbers from -1 to 1."""
    dropout: float = 0.0
    """After what a trunk is given is normalised."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "states", "actions", "times", "positions")
        check_rates(self, "dropout")
        if self.cross:
            raise ValueError("a decision transformer attends to no memory, got a block with cross-attention")

    def build(self, rngs: nnx.Rngs) -> "DecisionTransformer":
        """Make the model."""
        return DecisionTransformer(self, rngs=rngs)


class TrajectoryPrediction(NamedTuple):
    """What is said at each step."""

    actions: Float[Array, "*B T A"]
    """The action to take: numbers, or logits of its kinds."""
    states: Float[Array, "*B T S"]
    """The state that follows."""
    returns: Float[Array, "*B T 1"]
    """The return that is then to come."""


class DecisionTransformer(Module):
    """`model.output(model.hidden_states(states=…, actions=…, returns=…, times=…)).actions` says what to do."""

    layer_order = (
        "returns", "states", "actions", "time", "position", "norm", Part("trunk"), "action", "state", "left",
    )  # fmt: skip

    use = "reinforcement-learning"

    @classmethod
    def example_batch(cls, config: DecisionConfig, rows: int, length: int | None = None) -> dict[str, Any]:
        """Make a batch of B episodes' parts of T steps, each with a kind of action as label."""
        random, shape = np.random.default_rng(0), (rows, length or LENGTH)
        inputs = {
            "states": random.standard_normal((*shape, config.states), np.float32),
            "actions": random.standard_normal((*shape, config.actions), np.float32),
            "returns": random.standard_normal((*shape, 1), np.float32),
            "times": np.tile(np.arange(shape[1], dtype=np.int32) % config.times, (rows, 1)),
        }
        labels = random.integers(config.actions, size=shape).astype(np.int32)
        return {"inputs": inputs, "labels": labels, "weights": np.ones(shape, np.float32)}

    @classmethod
    def describe_batch(cls, config: DecisionConfig, batch: dict[str, Any]) -> Described:
        """Count B · T steps."""
        rows, length, _ = batch["inputs"]["states"].shape
        return Described({"rows": rows, "length": length}, rows * length, "steps")

    def __init__(self, cfg: DecisionConfig, *, rngs: nnx.Rngs):
        like, D = cfg.block.feedforward, cfg.block.embed
        dtypes = like.precision.dtypes

        def linear(inputs: int, outputs: int, axes: Axes) -> Linear:
            return Linear(inputs, outputs, axes=axes, kernel_init=initializer(like), rngs=rngs, **dtypes)

        table = nnx.initializers.normal(0.02 if like.init_std is None else like.init_std)
        self.cfg = cfg
        widths = 1, cfg.states, cfg.actions
        self.returns, self.states, self.actions = (linear(width, D, (None, "embed")) for width in widths)
        self.time = nnx.Embed(
            cfg.times, D, embedding_init=table, embedding_metadata=axes_metadata((None, "embed")), rngs=rngs, **dtypes
        )
        self.position = nnx.Embed(cfg.positions, D, embedding_init=table, rngs=rngs, **dtypes)
        self.norm = make_norm("layer", D, eps=1e-5, precision=like.precision, rngs=rngs)
        self.trunk = Trunk(cfg, causal=True, rngs=rngs)
        widths = cfg.actions, cfg.states, 1
        self.action, self.state, self.left = (linear(D, width, ("embed", None)) for width in widths)

    def hidden_states(
        self,
        *,
        states: Float[Array, "*B T S"],
        actions: Float[Array, "*B T A"],
        returns: Float[Array, "*B T 1"],
        times: Int[Array, "*B T"],
        mask: Mask | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*B 3*T D"]:
        """Compute the last hidden states: of each step those of its return, its state and its action.

        Args:
          states: what was seen.
          actions: what was done, which the position of its step's state does not see.
          returns: the sum of the rewards from each step on, or what is asked for.
          times: of the steps in their episode; one that the table has not gives NaN.
          mask: what else than the future is hidden, of 3T positions.
          key: for dropout; None means none.

        Raises:
          ValueError: shapes that do not fit.
        """
        cfg, keys = self.cfg, split_keys(key)
        check_hidden(states, cfg.states, "states")
        check_hidden(actions, cfg.actions, "actions")
        check_hidden(returns, 1, "returns")
        parts = (self.returns(returns), self.states(states), self.actions(actions))
        at = lookup(self.time.embedding[...], times)
        x = jnp.stack([widen(part) + at for part in parts], axis=-2)
        x = self.norm(x.reshape(*x.shape[:-3], -1, x.shape[-1])) + widen(self.position.embedding[0])
        x = dropout(x.astype(cfg.block.residual.precision.residual), cfg.dropout, keys[0])
        return self.trunk(constrain(x, "batch", "length", None), mask=Mask(causal=True) & mask, key=keys[1])

    def output(self, hidden: Float[Array, "*B P D"]) -> TrajectoryPrediction:
        """Predict each step's action from the output at its state's position (of P = 3T), the rest at its action's."""
        x = hidden.reshape(*hidden.shape[:-2], -1, 3, hidden.shape[-1])
        actions = widen(self.action(x[..., 1, :]))
        return TrajectoryPrediction(
            jnp.tanh(actions) if self.cfg.tanh else actions, widen(self.state(x[..., 2, :])),
            widen(self.left(x[..., 2, :])),
        )  # fmt: skip


def decision_transformer(
    states: int = 17, actions: int = 6, *, dropout: float = 0.1, precision: Precision = FLOAT32
) -> DecisionConfig:
    """Return the published size for locomotion: 3 layers, D=128, one head, 1.26 M parameters."""
    return DecisionConfig(
        block=transformer_block(
            embed=128, heads=1, inner=512, norm_position="pre", activation="relu", dropout=dropout,
            attention_dropout=dropout, init_std=0.02, precision=precision,
        ),
        depth=3,
        states=states,
        actions=actions,
        dropout=dropout,
    )  # fmt: skip
