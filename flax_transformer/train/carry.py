"""State beyond gradients: what an objective carries from step to step, and nobody differentiates.

Batch statistics, the parameters of a momentum teacher, a queue of negatives. An objective that carries has an attribute
`carry`, a `Carry`, and is then called as `objective(model, batch, *, key, carried) -> (loss, metrics, carried)`; all
others stay `objective(model, batch, *, key) -> (loss, metrics)`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.parallel import path_name

Objective = Callable[..., tuple]
"""`objective(model, batch, *, key) -> (loss, metrics)`: the loss summed over the batch, and sums of whatever is to be
reported, among them `count`, what every sum is divided by. Sums make accumulation and any mesh agree; those that have a
count of their own are reported as a `Mean`, and a loss of such terms is made by `summed`, both of `train.mean`.

An attribute `separable` that is False says that the sum over a batch is not that of its parts, as of a contrastive loss
over all pairs; an attribute `carry` that the objective takes and gives back what it carries."""


def _nothing(model: Any, key: PRNGKeyArray) -> None:
    """Begin to carry nothing."""


def _kept(model: Any, carried: Any) -> Any:
    return carried


def _itself(model: Any) -> Any:
    return model


def alone(model: Any, carried: Any) -> Any:
    """Return the model as it is: what is carried is no part of it."""
    return model


@frozen
class Carry:
    """What an objective carries: how it begins, changes once a step, and belongs to the model."""

    begin: Callable[[Any, PRNGKeyArray], Any] = _nothing
    """`begin(model, key) -> carried` of a new run: a pytree of arrays that keep their shapes."""
    after: Callable[[Any, Any], Any] = _kept
    """`after(model, carried) -> carried`, once a step, with the model that the optimizer has made."""
    trained: Callable[[Any], Any] = _itself
    """`trained(model) -> model`: the part that is differentiated, that the optimizer keeps statistics of, and that the
    objective is given; all of it by default."""
    whole: Callable[[Any, Any], Any] = alone
    """`whole(model, carried) -> model` to be evaluated, averaged and ended with; the trained one by default."""


NOTHING = Carry()


@dataclass(frozen=True)
class Carrying:
    """A function `objective(model, batch, *, key, carried) -> (loss, metrics, carried)` with what it carries.

    A batch cut into parts (`accumulate`) is taken part after part, each with what the one before it gave back.
    """

    objective: Objective
    carry: Carry
    separable: bool = True

    @property
    def project(self) -> Callable[[Any], Any]:
        """What is done to the model after every update."""
        return projection_of(self.objective)

    def __call__(self, model: Any, batch: Any, *, carried: Any, key: PRNGKeyArray | None = None) -> tuple:
        """Return loss, metrics, and what is carried on."""
        return self.objective(model, batch, key=key, carried=carried)


def _said(objective: Objective, name: str, default: Any) -> Any:
    while isinstance(objective, partial) and not hasattr(objective, name):
        objective = objective.func
    return getattr(objective, name, default)


def carry_of(objective: Objective) -> Carry:
    """Return what an objective carries; `NOTHING` where it does not say."""
    return _said(objective, "carry", NOTHING)


def is_separable(objective: Objective) -> bool:
    """Return whether the sums over a batch are those over its parts, as they are where an objective does not say."""
    return _said(objective, "separable", True)


def projection_of(objective: Objective) -> Callable[[Any], Any]:
    """Return `project(model) -> model`, to what an objective allows, done after every update; often nothing."""
    return _said(objective, "project", _itself)


def on_model(objective: Objective, change: Callable[[Any], Any], carry: Carry | None = None) -> Objective:
    """Make an objective of a model from one of `change(model)`; it is as separable, and carries as much.

    Args:
      carry: where it is to be another one, in terms of the model before the change.
    """

    def changed(model: Any, batch: Any, *, key: PRNGKeyArray | None = None, **carried: Any) -> tuple:
        return objective(change(model), batch, key=key, **carried)

    changed.carry = carry_of(objective) if carry is None else carry
    changed.separable, changed.project = is_separable(objective), projection_of(objective)
    return changed


def new_carried(carry: Carry, model: Any, key: PRNGKeyArray) -> Any:
    """Begin to carry, in arrays that are nobody else's, as a training step reuses the memory of its own."""

    def own(leaf):
        return jnp.copy(leaf) if _is_key(leaf) else jnp.array(leaf, jnp.result_type(leaf))

    return jax.tree.map(own, carry.begin(model, key))


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key)


def check_carried(before: Any, after: Any) -> None:
    """Check that what an objective carries on is what it was given, but for the numbers.

    Raises:
      ValueError: naming the first array that is missing, new, or of another shape or type.
    """

    def spelled(tree: Any) -> dict[str, str]:
        named = jax.tree_util.tree_leaves_with_path(tree)
        return {path_name(path): f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for path, leaf in named}

    given, back = spelled(before), spelled(after)
    for name in (*given, *back):
        if given.get(name) != back.get(name):
            raise ValueError(
                f"what is carried must keep its arrays, their shapes and types, got {name or 'an array'} as "
                f"{back.get(name, 'nothing')}, which was {given.get(name, 'nothing')}"
            )


def momentum_teacher(decay: float) -> Carry:
    """Carry a teacher, the moving average of the trained model: θ' ← decay · θ' + (1 − decay) · θ after every step.

    It begins as the model does (He et al. 2020, §3.2; Tarvainen & Valpola 2017). Floats are averaged, all else is the
    model's.
    """
    if not 0 <= decay <= 1:
        raise ValueError(f"the decay of a teacher must be in [0, 1], got {decay}")

    def blend(teacher: jax.Array, leaf: jax.Array) -> jax.Array:
        return teacher + (1 - decay) * (leaf - teacher) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return Carry(
        begin=lambda model, key: model,
        after=lambda model, teacher: jax.tree.map(blend, teacher, model),
    )


def is_variable(node: Any) -> bool:
    """Return whether a node of a model is a Flax variable."""
    return isinstance(node, nnx.Variable)


def _is_statistic(node: Any) -> bool:
    return is_variable(node) and not isinstance(node, nnx.Param)


def statistics_of(model: Any) -> dict[str, Any]:
    """Return what a model holds beside parameters, by path: the values of Flax variables that are no `nnx.Param`."""
    nodes = jax.tree_util.tree_leaves_with_path(model, is_leaf=is_variable)
    return {path_name(path): leaf for path, node in nodes if _is_statistic(node) for leaf in jax.tree.leaves(node)}


def check_new_statistics(model: Any, carry: Carry) -> None:
    """Check that the running statistics of a new model's batch norms are carried, where they are not frozen.

    Otherwise it would be trained without any normalisation: by means of 0 and variances of 1, for ever.

    Raises:
      ValueError: naming a batch norm whose statistics are not.
    """
    left = statistics_of(carry.trained(model))
    norms = [name.rpartition("mean")[0] for name in left if f".{name}".endswith(".mean")]
    lost = [norm for norm in norms if f"{norm}var" in left and f"{norm}scale" not in left]
    if lost:
        raise ValueError(
            "a new model with batch norms must be trained by their batches' statistics, as by "
            f"BatchStatistics(of=LabelLoss()), got an objective that does not carry those of {lost[0].rstrip('.')}"
            f"{f' and {len(lost) - 1} more' if len(lost) > 1 else ''}; only a checkpoint's may stay as they are"
        )


def without_statistics(model: Any) -> Any:
    """Return the model's parameters alone, with None in the places of what `statistics_of` gives."""

    def empty(node):
        return jax.tree.map(lambda _: None, node) if _is_statistic(node) else node

    return jax.tree.map(empty, model, is_leaf=is_variable)


def with_statistics(model: Any, statistics: dict[str, jax.Array]) -> Any:
    """Fill the places that `without_statistics` has left."""

    def fill(path, leaf):
        return statistics.get(path_name(path)) if leaf is None else leaf

    return jax.tree_util.tree_map_with_path(fill, model, is_leaf=lambda leaf: leaf is None)


def statistics_fixed(model: Any) -> Any:
    """Return the model with statistics that are constants to `jax.grad`."""

    def fix(node):
        return jax.lax.stop_gradient(node) if _is_statistic(node) else node

    return jax.tree.map(fix, model, is_leaf=is_variable)


BATCH_STATISTICS = Carry(
    begin=lambda model, key: statistics_of(model),
    trained=without_statistics,
    whole=with_statistics,
)
"""Carry what a model holds beside its parameters; state and optimizer then have its parameters alone."""


def batch_statistics(objective: Objective) -> Carrying:
    """Make an objective that carries a model's statistics, such as the running means of batch normalisation.

    Args:
      objective: `objective(model, batch, *, key) -> (loss, metrics, statistics)`, called with the whole model; its
        statistics are a tree with the paths they have in the model, as `{"norm": {"mean": …, "var": …}}`. Means over a
        batch on a mesh are those over all of it. A part of a batch has others, so that the objective is not separable;
        `dataclasses.replace(…, separable=True)` lets `accumulate` cut batches, with the statistics of each part.
    """

    def carrying(model: Any, batch: Any, *, key: PRNGKeyArray | None, carried: dict[str, jax.Array]) -> tuple:
        loss, metrics, new = objective(with_statistics(model, carried), batch, key=key)
        return loss, metrics, {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(new)}

    return Carrying(carrying, BATCH_STATISTICS, separable=False)
