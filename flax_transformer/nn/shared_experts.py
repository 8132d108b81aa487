"""Experts of which some see every token, and a router that chooses the others within groups (DeepSeekMoE, Dai et al.
2024, https://arxiv.org/abs/2401.06066; DeepSeek-AI 2024, DeepSeek-V3, https://arxiv.org/abs/2412.19437, §2.1.2).

Axes: B rows, T positions, D width, E experts that are chosen, A of them that a token is sent to.
"""

from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.nn.config import check_at_least, check_fields
from flax_transformer.nn.experts import Experts, ExpertsConfig
from flax_transformer.nn.feedforward import FeedForward
from flax_transformer.ops import widen
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.ops.token_choice import check_groups, choose_in_groups, of_chosen


@frozen
class GroupRouterConfig:
    """How a token's experts are chosen, and weighted: DeepSeek-V3's way is the default."""

    score: Literal["sigmoid", "softmax"] = "sigmoid"
    """What the router's logits become: of each expert by itself, or of all together."""
    correction: bool = True
    """Whether an expert's score has a bias by which it is chosen, but not weighted: what balances experts without a
    loss. No gradient comes to it."""
    groups: int = 1
    """Groups of consecutive experts."""
    kept: int = 1
    """How many groups the experts of a token are in."""
    best: int = 2
    """How many experts of a group say how good it is, the best ones: by the sum of their scores."""
    routed_scale: float = 1.0
    """What the weights of a token's experts are multiplied by, after they are normalised."""

    def __post_init__(self):
        check_fields(self)
        check_at_least(self, 1, "groups", "kept", "best")


@frozen
class SharedExpertsConfig(ExpertsConfig):
    """Experts that a router chooses, and others, computed as one wider layer, that see every token."""

    shared: int = 1
    """How many experts see every token."""
    router: GroupRouterConfig = GroupRouterConfig()
    """How the others are chosen."""

    def __post_init__(self):
        super().__post_init__()
        check_at_least(self, 1, "shared")
        router = self.router
        check_groups(self.experts, self.active, groups=router.groups, kept=router.kept, best=router.best)

    def build(self, rngs: nnx.Rngs) -> "SharedExperts":
        """Make the layer."""
        return SharedExperts(self, rngs=rngs)


class SharedExperts(Experts):
    """What the chosen experts make of each token, plus what the `shared` layer makes of it."""

    def __init__(self, cfg: SharedExpertsConfig, *, rngs: nnx.Rngs):
        super().__init__(cfg, rngs=rngs)
        self.shared = FeedForward(replace(cfg.expert, inner=cfg.shared * cfg.inner), rngs=rngs)
        if cfg.router.correction:
            self.correction = nnx.Param(jnp.zeros(cfg.experts, self.router.dtype))

    def observe(
        self,
        x: Float[Array, "*B T D"],
        *,
        real: Bool[Array, "*#B T"] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "*B T D"], dict[str, Float[Array, "*B"]]]:
        """Apply the layer; arguments and what is told beside as `Experts.observe`'s.

        `balance` is of the scores divided by their sum, as DeepSeek-V3 has it of each sequence.
        """
        inner, outer = split_keys(key)
        y, aux = super().observe(x, real=real, key=inner)
        return y + self.shared(x, key=outer).astype(y.dtype), aux

    def _route(self, logits: Float[Array, "*B T E"]) -> tuple[Int[Array, "*B T A"], Array, Float[Array, "*B T E"]]:
        cfg, how, logits = self.cfg, self.cfg.router, widen(logits)
        log_scores = jax.nn.log_sigmoid(logits) if how.score == "sigmoid" else jax.nn.log_softmax(logits)
        scores = jax.nn.sigmoid(logits) if how.score == "sigmoid" else jax.nn.softmax(logits)
        ranked = scores + self.correction[...] if how.correction else scores
        groups = {"groups": how.groups, "kept": how.kept, "best": how.best}
        chosen = choose_in_groups(ranked, cfg.active, **groups)
        weights = of_chosen(scores, chosen)
        if cfg.normalized:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        return chosen, weights * how.routed_scale, log_scores
