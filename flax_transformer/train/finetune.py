"""Fine-tuning: which parameters learn, how fast each layer does, and several tasks on one model.

Everything is an Optax transformation or a wrapper of an objective, chosen by parameter paths
(`encoder.attention.query.kernel`). Axes: L layers.
"""

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PRNGKeyArray

from flax_transformer.listing import listed
from flax_transformer.ops.split_keys import split_keys
from flax_transformer.order import Order
from flax_transformer.parallel import path_name, tree_shardings
from flax_transformer.train.carry import (
    NOTHING,
    Carry,
    Objective,
    carry_of,
    is_separable,
    on_model,
    projection_of,
    without_statistics,
)
from flax_transformer.train.mean import summed, terms_of
from flax_transformer.train.order import layer_distances
from flax_transformer.train.state import (
    Optimizer,
    TrainState,
    check_trained,
    new_state,
    state_shardings,
    strongly_typed,
)


def check_pattern(name: str, pattern: str) -> None:
    """Check that a pattern of parameter paths can be compiled.

    Raises:
      ValueError: when it is no regular expression.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{name} must be a regular expression, got {pattern!r}: {error}") from error


def path_mask(pattern: str) -> Callable[[Any], Any]:
    """Make a function from a model to a tree of booleans: whether each parameter's path matches `pattern`."""

    def matches(path, _):
        return bool(re.search(pattern, path_name(path)))

    return lambda tree: jax.tree_util.tree_map_with_path(matches, tree)


def _trainable(pattern: str, tree: Any) -> Any:
    mask = path_mask(pattern)(tree)
    if not any(jax.tree.leaves(mask)):
        paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        raise ValueError(f"trainable must match a parameter, got {pattern!r}; paths are {', '.join(paths[:3])}, …")
    return mask


def trained_count(pattern: str, model: Any) -> int:
    """Count the numbers in parameters whose path matches, but for statistics; an empty pattern matches all."""
    named = jax.tree_util.tree_leaves_with_path(without_statistics(model))
    return sum(leaf.size for path, leaf in named if re.search(pattern, path_name(path)))


def train_only(pattern: str, optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Update only parameters whose path matches; the others stay, and have no optimizer state.

    `freeze` is its companion, which saves computing the others' gradients.

    Raises:
      ValueError: at `init`, when the pattern matches no parameter, or one that is below float32.
    """

    def labels(tree: Any) -> Any:
        mask = _trainable(pattern, tree)
        named = zip(jax.tree_util.tree_leaves_with_path(tree), jax.tree.leaves(mask), strict=True)
        check_trained({path_name(path): leaf for (path, leaf), keep in named if keep})
        return jax.tree.map(lambda keep: "trained" if keep else "frozen", mask)

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def freeze(objective: Objective, pattern: str) -> Objective:
    """Differentiate only with respect to parameters whose path matches; the others get gradients of zero, for free.

    What lies below the lowest matching parameter then has no backward pass at all.

    Raises:
      ValueError: when called, if the pattern matches no parameter.
    """

    def held(model: Any) -> Any:
        def stop(leaf, keep):
            return leaf if keep else jax.lax.stop_gradient(leaf)

        return jax.tree.map(stop, model, _trainable(pattern, model))

    return on_model(objective, held)


def decay_by_layer(decay: float, order: Order | None = None) -> optax.GradientTransformation:
    """Multiply a parameter's updates by decay^d, d layers below the heads (see `layer_distances`).

    After an optimizer it is a learning rate for each layer (Howard & Ruder 2018, §3.2; Clark et al. 2020, appendix B).

    Args:
      order: that of the model's layers, where the model does not say it.

    Raises:
      ValueError: at `init`, when the order of the layers cannot be told.
    """

    def init(params: Any) -> optax.EmptyState:
        layer_distances(params, order)
        return optax.EmptyState()

    def scale(updates: Any, state: optax.EmptyState, _: Any = None) -> tuple[Any, optax.EmptyState]:
        def rate(u, d):
            return u * jnp.asarray(decay ** d.astype(np.float64), u.dtype)

        return jax.tree.map(rate, updates, layer_distances(updates, order)), state

    return optax.GradientTransformation(init, scale)


def unfreeze_gradually(every: int, order: Order | None = None) -> optax.GradientTransformation:
    """Train the heads first, and one more layer down after every `every` steps (Howard & Ruder 2018, §3.3).

    After an optimizer. Which layers move depends on the number of steps, not on the program: nothing is compiled again.
    The optimizer sees all gradients from the beginning, so that a layer does not start with a jump of cold moments.

    Args:
      order: that of the model's layers, where the model does not say it.

    Raises:
      ValueError: for an interval below 1; at `init`, when the order of the layers cannot be told.
    """
    if every < 1:
        raise ValueError(f"layers must be unfrozen every 1 or more steps, got {every}")

    def init(params: Any) -> optax.ScaleByScheduleState:
        layer_distances(params, order)
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(updates: Any, state: optax.ScaleByScheduleState, params: Any = None) -> tuple[Any, Any]:
        def move(u, d):
            return jnp.where(d <= state.count // every, u, jnp.zeros_like(u))

        moved = jax.tree.map(move, updates, layer_distances(updates, order))
        return moved, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def multi_task(objectives: Mapping[str, Objective], weights: Mapping[str, float] | None = None) -> Objective:
    """Make one objective of several, each with its own part `batch[name]` of every batch.

    With the sums sᵢ and the counts nᵢ of task i, and weights wᵢ, the step descends on Σ wᵢ sᵢ / nᵢ: every task's own
    mean, however many tokens it brought. A task without any (nᵢ = 0) adds nothing. Metrics are called `name_metric`,
    each its task's mean; `count` is Σ nᵢ.

    Args:
      objectives: by task; each takes the whole model, and uses its own head.
      weights: by task; 1 for those not named.

    Raises:
      ValueError: when a weight names no task, or is negative, or an objective carries state; when called, if the batch
        is not one part a task.
    """
    weights = dict(weights or {})
    unknown = sorted(set(weights) - set(objectives))
    if unknown or not objectives:
        raise ValueError(f"weights must name tasks, got {listed(unknown)}; there are {listed(objectives)}")
    if min(weights.values(), default=1) < 0:
        raise ValueError(f"weights must not be negative, got {weights}")
    if carrying := [name for name, objective in objectives.items() if carry_of(objective) is not NOTHING]:
        raise ValueError(f"tasks on one model must carry nothing beside gradients, got {', '.join(carrying)}")

    def objective(model: Any, batch: Mapping[str, Any], *, key: PRNGKeyArray | None = None) -> tuple[jax.Array, dict]:
        if set(batch) != set(objectives):
            raise ValueError(f"a batch must have one part a task ({listed(objectives)}), got {listed(batch)}")
        keys = split_keys(key, len(objectives))
        terms, reported, count = (), {}, 0
        for (name, each), k in zip(objectives.items(), keys, strict=True):
            loss, metrics = each(model, batch[name], key=k)
            own, said = metrics["count"], metrics.get("loss")
            minimised = terms_of(said if isinstance(said, tuple) else loss, own)
            terms += tuple(term.scaled(weights.get(name, 1.0)) for term in minimised)
            named = {"loss": minimised, **metrics}
            reported |= {f"{name}_{metric}": terms_of(v, own) for metric, v in named.items() if metric != "count"}
            count = count + own
        return summed(terms, count, **reported)

    def project(model: Any) -> Any:
        return reduce(lambda model, each: projection_of(each)(model), objectives.values(), model)

    objective.separable, objective.project = all(map(is_separable, objectives.values())), project
    return objective


def adopt_state(
    model: Any,
    optimizer: Optimizer,
    key: PRNGKeyArray,
    *,
    ema: bool = False,
    carry: Carry = NOTHING,
    mesh: Mesh | None = None,
) -> TrainState:
    """Make the state of a run that begins with a model there is, such as a pretrained one.

    Unlike an `init` that returns the model, this does not compile the weights into a program. The state takes the
    model's arrays over: a step that donates its state leaves the old ones deleted.

    Args:
      ema: whether to keep an average of the parameters.
      carry: what the objective carries, `carry_of(objective)`.
      mesh: where to; the default device without one.
    """

    def make(model, key):
        return new_state(model, optimizer, ema, key, carry)

    abstract = jax.eval_shape(make, model, key)
    # Named, not left to default: a restored state is, and both must run the same compiled programs.
    one = SingleDeviceSharding(jax.devices()[0])
    shardings = state_shardings(abstract, mesh) if mesh is not None else jax.tree.map(lambda _: one, abstract)
    model = jax.device_put(model, one if mesh is None else tree_shardings(model, mesh))
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        # The model itself stays out of the program, which would copy it.
        rest = jax.jit(
            lambda model, key: replace(make(model, key), model=None), out_shardings=replace(shardings, model=None)
        )
        return replace(rest(model, key), model=strongly_typed(carry.trained(model)))
