"""A trunk whose layers are one block, applied again and again, as often at each position as it takes (Dehghani et al.
2019, Universal Transformers, https://arxiv.org/abs/1807.03819).

Before every step the block is told where and at which step it is. With halting (adaptive computation time, Graves 2016,
https://arxiv.org/abs/1603.08983) each position ends where the probabilities it has given so far fill up: its state is
copied on through the steps that others still take, and what it gives is the mean of its states by their probabilities,
as Graves has it. The authors' own code mixes each state into what there was before it instead.

Axes: B batch, T positions, S positions of a memory and W its width, D width, L steps.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.cache import Caches, LayerCache, LayerMemory, cache_length
from flax_transformer.nn.config import check_fields
from flax_transformer.nn.embedding import SINUSOIDS
from flax_transformer.nn.linear import Linear
from flax_transformer.nn.pipeline import pipeline_stages
from flax_transformer.nn.stack import apply_stack, extend_stack, map_stack
from flax_transformer.nn.trunk import Trunk, TrunkConfig
from flax_transformer.ops import Mask, widen
from flax_transformer.ops.float32 import at_least_float32
from flax_transformer.order import Layer
from flax_transformer.parallel import constrain
from flax_transformer.parallel.axis import spelled


@frozen
class HaltingConfig:
    """How a position says that it needs no more steps: by a probability that a linear layer makes of its state."""

    epsilon: float = 0.01
    """ε: a position halts where its probabilities add up to 1 - ε, so that one step may be enough."""
    bias: float = 1.0
    """What the layer's bias starts with; the larger, the sooner positions halt."""

    def __post_init__(self):
        check_fields(self)
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be in (0, 1), got {self.epsilon}")


@frozen
class UniversalConfig(TrunkConfig):
    """One block, applied `depth` times, or at most so often at each position."""

    position: Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_spanning", "none"] = "sinusoidal"
    """How the block is told, before each step, the position and the number of the step, both in the same way; none: it
    is told neither."""
    halting: HaltingConfig | None = None
    """How positions halt; None: all take all steps."""

    def __post_init__(self):
        super().__post_init__()
        if self.layer_drop:
            raise ValueError(f"steps that share one block have no layers to drop, got layer_drop={self.layer_drop}")
        if self.position != "none" and self.block.embed % 2:
            raise ValueError(f"sinusoidal positions need an even width, got D={self.block.embed}")

    def make_trunk(self, *, causal: bool = False, key: PRNGKeyArray | None = None, rngs: nnx.Rngs) -> "UniversalTrunk":
        """Make the trunk; arguments as `Trunk`'s."""
        return UniversalTrunk(self, causal=causal, key=key, rngs=rngs)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Halting:
    """What goes from step to step where positions halt; numbers of positions are float32 or more."""

    state: Float[Array, "*B T D"]
    """After the last step; of a position that has halted, after the step at which it did."""
    mean: Float[Array, "*B T D"]
    """The states so far, each times its probability, added up."""
    total: Float[Array, "*B T"]
    """The probabilities so far, added up: 1 where a position has halted."""
    steps: Float[Array, "*B T"]
    """Graves' N: how many a position has taken."""
    rest: Float[Array, "*B T"]
    """Graves' R: the probability of the last of them."""

    @classmethod
    def begin(cls, x: Float[Array, "*B T D"]) -> "Halting":
        """Begin with hidden states."""
        none = jnp.zeros(x.shape[:-1], at_least_float32(x.dtype))
        return cls(x, jnp.zeros(x.shape, none.dtype), none, none, none)

    def advance(
        self, state: Float[Array, "*B T D"], chance: Float[Array, "*B T"], last: Array, full: float
    ) -> "Halting":
        """Take what a step makes of the states, where positions still run.

        Args:
          chance: the probability that each position gives for ending here.
          last: whether there is no step after this one, so that all halt.
          full: what probabilities must add up to, 1 - ε.
        """
        runs = self.total < full
        halts = runs & ((self.total + chance >= full) | last)
        share = checkpoint_name(jnp.where(halts, 1 - self.total, jnp.where(runs, chance, 0.0)), "halting")
        return Halting(
            jnp.where(runs[..., None], state, self.state),
            constrain(self.mean + share[..., None] * widen(state), "batch", "length", None),
            jnp.where(halts, 1.0, self.total + share),
            self.steps + runs.astype(self.steps.dtype),
            self.rest + jnp.where(halts, share, 0.0),
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class UniversalStep:
    """One turn of a block, or a stack of them."""

    number: Int[Array, "*L"]
    """From 1; it is all that tells steps apart."""

    def __call__(
        self,
        x: Any,
        trunk: tuple,
        *args: Any,
        where: Int[Array, "*#B T"],
        key: PRNGKeyArray | None = None,
        **given: Any,
    ) -> Any:
        """Apply the block; x are hidden states, or `Halting`."""
        cfg, block, halt = trunk
        state = block(self._with_position(x, where, cfg), *args, key=key, **given)
        return self._after(x, state, cfg, halt)

    def extend(
        self, x: Any, cache: LayerCache, trunk: tuple, *args: Any, where: Int[Array, "*#B T"], **given: Any
    ) -> tuple[Any, LayerCache]:
        """Apply the block to T more positions, of which the step's own cache knows the earlier ones.

        A position that has halted writes, at every later step, the keys and values of the state that it halted with.
        """
        cfg, block, halt = trunk
        state, cache = block.extend(self._with_position(x, where, cfg), cache, *args, **given)
        return self._after(x, state, cfg, halt), cache

    def _with_position(self, x: Any, where: Array, cfg: "_Static") -> Array:
        x = x.state if isinstance(x, Halting) else x
        if cfg.config.position == "none":
            return x
        wave, width = SINUSOIDS[cfg.config.position], x.shape[-1]
        return (widen(x) + wave(where, width) + wave(self.number[None], width)).astype(x.dtype)

    def _after(self, x: Any, state: Array, cfg: "_Static", halt: Linear | None) -> Any:
        if halt is None:
            return state
        chance = jax.nn.sigmoid(widen(halt(state)[..., 0]))
        return x.advance(state, chance, self.number == cfg.config.depth, 1 - cfg.config.halting.epsilon)


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    """A config, among the arguments of a stack."""

    config: UniversalConfig


class UniversalTrunk(Trunk):
    """Hidden states in, hidden states out, as `Trunk`; the caches are of steps, which share the projected memory.

    `ops.capture(f, "halting")` gives the probability of each step, [L, *B, T], where positions halt.
    """

    layer_order = ("relative", Layer("block", "halt"), "norm")

    def __init__(self, cfg: UniversalConfig, *, causal: bool = False, key: PRNGKeyArray | None = None, rngs: nnx.Rngs):
        """Make the parameters; arguments as `Trunk`'s."""
        self.cfg, self.causal, self.apart = cfg, causal, False
        self.block = cfg.block.build(nnx.Rngs(rngs.params() if key is None else key))
        if cfg.halting is not None:
            start = {
                "kernel_init": nnx.initializers.lecun_normal(),
                "bias_init": nnx.initializers.constant(cfg.halting.bias),
            }
            kinds = cfg.block.residual.precision.dtypes
            kinds = kinds | {"dtype": at_least_float32(kinds["dtype"])}
            self.halt = Linear(cfg.block.embed, 1, rngs=rngs, **start, **kinds)
        if cfg.end_norm:
            self.norm = cfg.block.residual.make_norm(rngs)
        if key is None:
            self.init_relative(rngs)

    @property
    def _steps(self) -> Any:
        numbers = jnp.arange(1, self.cfg.depth + 1)
        return (
            nnx.List([nnx.data(UniversalStep(number)) for number in numbers]) if self.apart else UniversalStep(numbers)
        )

    @property
    def _parts(self) -> tuple:
        return _Static(self.cfg), self.block, getattr(self, "halt", None)

    def _begin(self, x: Array) -> Any:
        if pipeline_stages() > 1:
            raise ValueError(
                f"one block that all steps share is in one stage of a pipeline: {spelled('layers')} must be 1, got "
                f"{pipeline_stages()}"
            )
        return x if self.cfg.halting is None else Halting.begin(x)

    def _finish(self, x: Any, like: Array) -> Array:
        return self._end(x.mean.astype(like.dtype) if isinstance(x, Halting) else x)

    def __call__(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | LayerMemory | None = None,
        *,
        mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
        **others: Any,
    ) -> Float[Array, "*B T D"]:
        """Run the block; arguments as `Trunk`'s, but that `positions` are told before every step too."""
        return self._finish(self._run(x, memory, mask, positions, key, others), x)

    def observe(
        self,
        x: Float[Array, "*B T D"],
        memory: Float[Array, "*M S W"] | LayerMemory | None = None,
        *,
        mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
        **others: Any,
    ) -> tuple[Float[Array, "*B T D"], dict[str, Float[Array, "..."]]]:
        """Run the block as in a call; give beside what halting cost, where positions halt, and else nothing.

        That is `ponder`, the steps and the rest of probability (Graves' N + R), which is to be minimised along with the
        objective, and `steps` themselves. A causal trunk tells them of each position, [*B, T]; another of each row,
        [*B]: their mean over the positions that the lengths of the mask leave.
        """
        after = self._run(x, memory, mask, positions, key, others)
        if self.cfg.halting is None:
            return self._finish(after, x), {}
        aux = {"ponder": after.steps + after.rest, "steps": after.steps}
        if not self.causal:
            lengths = None if mask is None else mask.lengths
            real = jnp.ones(x.shape[:-1]) if lengths is None else jnp.arange(x.shape[-2]) < lengths[..., None]
            aux = {name: jnp.sum(each * real, -1) / jnp.maximum(jnp.sum(real, -1), 1) for name, each in aux.items()}
        return self._finish(after, x), aux

    def _run(self, x: Array, memory: Any, mask: Any, positions: Any, key: Any, others: dict) -> Any:
        where = jnp.arange(x.shape[-2]) if positions is None else positions
        options = self._options(x, key, {"mask": mask, "positions": positions, **others})
        args = [] if memory is None else [memory]
        return apply_stack(self._steps, self._begin(x), self._parts, *args, where=where, **options)

    def extend(
        self,
        x: Float[Array, "*B T D"],
        cache: Caches,
        memory: LayerMemory | None = None,
        *,
        index: Int[Array, ""],
        mask: Mask | None = None,
        memory_mask: Mask | None = None,
        positions: Int[Array, "*#B T"] | None = None,
    ) -> tuple[Float[Array, "*B T D"], Caches]:
        """Run the block on T more positions; give the caches of all steps with them in; arguments as `Trunk`'s."""
        where = index + jnp.arange(x.shape[-2]) if positions is None else positions
        given = {
            "mask": mask, "memory_mask": memory_mask, "positions": positions,
            "bias": self._bias(x.shape[-2], cache_length(cache), index),
        }  # fmt: skip
        after, cache = extend_stack(
            self._steps, self._begin(x), cache, self._parts, *([] if memory is None else [memory]), where=where,
            unroll=self.cfg.unroll, **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip
        return self._finish(after, x), cache

    def init_cache(self, batch: int, length: int, *, beams: int = 1) -> Caches:
        """Make empty caches of all steps for `length` positions of `batch` sentences, `beams` hypotheses each."""
        return map_stack(lambda _: self.block.init_cache(batch, length, beams=beams), self._steps)

    def project(self, memory: Float[Array, "*B S W"], *, beams: int = 1) -> LayerMemory:
        """Compute the keys and values of a memory, once for all positions and steps."""
        return self.block.project(memory, beams=beams)

    def for_decoding(self) -> "UniversalTrunk":
        """Copy the trunk as decoding on a CPU wants it: the steps, and so their caches, apart."""
        copy = jax.tree.map(lambda leaf: leaf, self)
        copy.block, copy.apart = self.block.for_decoding(), True
        return copy
