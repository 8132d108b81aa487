"""Training of parts of a model that play against each other, as generator and discriminator do, an optimizer each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax

from flax_transformer.train.carry import statistics_fixed
from flax_transformer.train.mean import means, reciprocal
from flax_transformer.train.state import TrainState
from flax_transformer.train.step import OwnStep


@dataclass(frozen=True)
class Player:
    """A part of a model, what it minimises, and the optimizer that it alone has."""

    name: str
    """The model's attribute that the part is."""
    loss: Callable[..., tuple]
    """`loss(model, batch, *, key) -> (loss, metrics)` of the whole model, in sums, as an objective gives them."""
    optimizer: optax.GradientTransformation


def with_part(model: Any, name: str, part: Any) -> Any:
    """Return a model with another module in place of one of its attributes."""
    changed = jax.tree.map(lambda leaf: leaf, model)
    setattr(changed, name, part)
    return changed


def alternate(players: Sequence[Player]) -> OwnStep:
    """Make a step in which each player in turn takes a step of its own; it meets the others as they have become.

    The last player's metrics are reported by their names, with its `loss` and `gradient_norm`; those of the others
    have the player's name in front.
    """

    def init(model: Any) -> dict[str, Any]:
        return {each.name: each.optimizer.init(getattr(model, each.name)) for each in players}

    def update(state: TrainState, batch: Any, *, key: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        model, opt_state, reported = state.model, dict(state.opt_state), {}
        for number, each in enumerate(players):
            part = getattr(model, each.name)
            grads, metrics = _gradients(each, model, part, batch, jax.random.fold_in(key, number))
            updates, opt_state[each.name] = each.optimizer.update(grads, opt_state[each.name], part)
            model = with_part(model, each.name, optax.apply_updates(part, updates))
            if each is not players[-1]:
                metrics = {f"{each.name}_{name}": value for name, value in metrics.items() if name != "count"}
            reported |= metrics
        return replace(state, model=model, opt_state=opt_state), reported

    return OwnStep(init=init, update=update)


def _gradients(player: Player, model: Any, part: Any, batch: Any, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
    """Compute the gradient of a player's mean loss in its own part, and the means that it reports."""

    def total(part: Any) -> tuple[jax.Array, dict[str, Any]]:
        loss, metrics = player.loss(with_part(model, player.name, statistics_fixed(part)), batch, key=key)
        return loss, {"loss": loss, **metrics}

    grads, sums = jax.grad(total, has_aux=True)(part)
    scale = reciprocal(sums["count"])
    grads = jax.tree.map(lambda leaf: leaf * scale.astype(leaf.dtype), grads)
    floats = [leaf for leaf in jax.tree.leaves(grads) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return grads, {**means(sums), "gradient_norm": optax.global_norm(floats)}
