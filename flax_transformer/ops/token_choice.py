"""Which experts each token chooses by their scores, and with how much weight.

Axes: B rows, T positions, E experts, A experts that a token is sent to, K groups of experts that it may be sent to.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from flax_transformer.ops.float32 import widen


def route(
    logits: Float[Array, "*B T E"], active: int, *, normalized: bool = True
) -> tuple[Int[Array, "*B T A"], Float[Array, "*B T A"]]:
    """Choose each token's experts, the likeliest first, and the weights of what they make of it.

    Args:
        logits: of the router.
        active: A, how many experts a token is sent to.
        normalized: whether the weights of a token add up to 1 (Mixtral, https://arxiv.org/abs/2401.04088), or are the
            probabilities themselves (Switch, Fedus et al. 2021, https://arxiv.org/abs/2101.03961).

    Raises:
        ValueError: more experts than there are, or none.

    >>> chosen, weights = route(jnp.log(jnp.array([[0.1, 0.6, 0.3]])), 2)
    >>> chosen.tolist(), [round(weight, 3) for weight in weights[0].tolist()]
    ([[1, 2]], [0.667, 0.333])
    """
    if not 1 <= active <= logits.shape[-1]:
        raise ValueError(f"a token is sent to 1 to E={logits.shape[-1]} experts, got {active}")
    probabilities = jax.nn.softmax(widen(logits), axis=-1)
    found = largest(probabilities, active)
    weights = of_chosen(probabilities, found)
    return found, weights / weights.sum(-1, keepdims=True) if normalized else weights


def largest(scores: Float[Array, "*B E"], count: int) -> Int[Array, "*B A"]:
    """Return where the largest scores are, the very largest first."""
    left, chosen = scores, []
    for _ in range(count):  # `top_k` would gather the rows of all devices
        chosen.append(jnp.argmax(left, axis=-1))
        left = jnp.where(jax.nn.one_hot(chosen[-1], scores.shape[-1], dtype=bool), -jnp.inf, left)
    return jnp.stack(chosen, axis=-1)


def of_chosen(scores: Float[Array, "*B E"], chosen: Int[Array, "*B A"]) -> Float[Array, "*B A"]:
    """Return the scores of what was chosen."""
    return jnp.einsum("...ae,...e->...a", jax.nn.one_hot(chosen, scores.shape[-1]), scores)


def choose_in_groups(
    scores: Float[Array, "*B T E"], active: int, *, groups: int, kept: int, best: int
) -> Int[Array, "*B T A"]:
    """Choose each token's experts among those of a few groups (DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437).

    Args:
        scores: by which experts are chosen.
        active: A, how many experts a token is sent to.
        groups: how many groups there are, of consecutive experts, all of one size.
        kept: K, how many of them a token may be sent to.
        best: how many experts of a group say how good it is, the best ones: by the sum of their scores.

    Raises:
        ValueError: groups that do not divide the experts, or that have too few.

    >>> choose_in_groups(jnp.array([[0.9, 0.0, 0.6, 0.5]]), 2, groups=2, kept=1, best=2).tolist()
    [[2, 3]]
    """
    check_groups(scores.shape[-1], active, groups=groups, kept=kept, best=best)
    size = scores.shape[-1] // groups
    of_group = jnp.sort(scores.reshape(*scores.shape[:-1], groups, size), axis=-1)[..., -best:].sum(-1)
    seen = jax.nn.one_hot(largest(of_group, kept), groups, dtype=bool).any(-2)
    return largest(jnp.where(jnp.repeat(seen, size, axis=-1), scores, -jnp.inf), active)


def check_groups(E: int, active: int, *, groups: int, kept: int, best: int) -> None:
    """Raise ValueError for groups that E experts cannot be divided into, or that have too few; arguments as above."""
    if E % groups or not (1 <= kept <= groups and 1 <= best <= E // groups):
        raise ValueError(
            f"groups must divide the experts, some be kept, and the best be in one, got E={E}, groups={groups}, "
            f"kept={kept}, best={best}"
        )
    if not 1 <= active <= kept * (E // groups):
        raise ValueError(
            f"a token is sent to 1 to {kept * (E // groups)} experts, those of {kept} groups, got {active}"
        )
