"""Losses of two players: a critic that tells real data from generated, and who generates them; penalties of the critic.

A critic gives a number for each row or for each place of a row: the greater, the more real.
Axes: B rows.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

Logits = Float[Array, "*B"]
Loss = Callable[[Logits], Logits]

AdversarialName = Literal["hinge", "non-saturating", "least-squares", "wasserstein", "relativistic"]
"""A loss of two players, by name."""


class AdversarialLoss(NamedTuple):
    """What both players minimise, as functions of the critic's numbers of real data and of generated."""

    critic: Callable[[Logits, Logits], tuple[Logits, Logits]]
    """The critic's loss of real data and of generated, of the numbers of real data and of generated."""
    fool: Callable[[Logits, Callable[[], Logits]], Logits]
    """The generator's loss of what it has generated, of the numbers of generated data and, where it calls for them, of
    real."""


def _apart(real: Loss, fake: Loss, fool: Loss) -> AdversarialLoss:
    """Return losses in which real data and generated are not compared."""
    return AdversarialLoss(lambda r, f: (real(r), fake(f)), lambda f, r: fool(f))


def _relativistic(real: Logits, fake: Logits) -> tuple[Logits, Logits]:
    half = jax.nn.softplus(fake - real) / 2
    return half, half


ADVERSARIAL_LOSSES: dict[AdversarialName, AdversarialLoss] = {
    "hinge": _apart(lambda x: jax.nn.relu(1 - x), lambda x: jax.nn.relu(1 + x), lambda x: -x),
    "non-saturating": _apart(lambda x: jax.nn.softplus(-x), jax.nn.softplus, lambda x: jax.nn.softplus(-x)),
    "least-squares": _apart(lambda x: (x - 1) ** 2, lambda x: x**2, lambda x: (x - 1) ** 2),
    "wasserstein": _apart(lambda x: -x, lambda x: x, lambda x: -x),
    "relativistic": AdversarialLoss(_relativistic, lambda f, r: jax.nn.softplus(r() - f)),
}
"""By name: hinge (Lim & Ye 2017; Miyato et al. 2018), non-saturating (Goodfellow et al. 2014), least-squares (Mao et
al. 2017), Wasserstein (Arjovsky et al. 2017), which takes a critic with a bounded gradient; relativistic, of pairs of a
real and a generated row (Jolicoeur-Martineau 2018), so that no row of the data may be left out by the generator (Huang
et al. 2024, https://arxiv.org/abs/2501.05441, who bound the gradient at both)."""

Critic = Callable[[Array], Logits]
"""Of rows."""


def squared_gradients(critic: Critic, x: Float[Array, "B *X"]) -> Float[Array, " B"]:
    """Compute |∇ critic(x)|² of each row, where no row changes what the critic says of another.

    What a critic says of several places of a row is averaged.
    """
    gradients = jax.grad(lambda x: _by_row(critic(x)).sum())(x)
    return jnp.sum(gradients.reshape(len(x), -1).astype(jnp.float32) ** 2, axis=1)


def r1_penalty(critic: Critic, real: Float[Array, "B *X"]) -> Float[Array, " B"]:
    """Compute ½ |∇ critic|² at real data (Mescheder et al. 2018, https://arxiv.org/abs/1801.04406)."""
    return squared_gradients(critic, real) / 2


def gradient_penalty(
    critic: Critic, real: Float[Array, "B *X"], fake: Float[Array, "B *X"], key: PRNGKeyArray
) -> Float[Array, " B"]:
    """Compute (|∇ critic| - 1)² between real and generated rows, each at a place that is drawn (WGAN-GP, Gulrajani et
    al. 2017, https://arxiv.org/abs/1704.00028).
    """
    share = jax.random.uniform(key, (len(real), *(1,) * (real.ndim - 1)))
    squared = squared_gradients(critic, share * real + (1 - share) * fake)
    return (jnp.sqrt(squared + 1e-12) - 1) ** 2


def _by_row(logits: Float[Array, "B *P"]) -> Float[Array, " B"]:
    return logits.reshape(len(logits), -1).mean(axis=1)
