"""Fine-tuning: which parameters learn, how fast each layer does, and several tasks on one model.

Everything is an Optax transformation or a wrapper of an objective, chosen by parameter paths
(`encoder.attention.query.kernel`). Axes: L layers.
"""

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, SingleDeviceSharding
from jaxtyping import PRNGKeyArray

from flax_transformer.frozen import frozen
from flax_transformer.listing import listing
from flax_transformer.parallel import path_name, tree_shardings
from flax_transformer.train.carry import NOTHING, Carry, Objective, carry_of, is_separable, on_model
from flax_transformer.train.state import Optimizer, TrainState, check_trained, new_state, state_shardings


def check_pattern(name: str, pattern: str) -> None:
    """Check that a pattern of parameter paths can be compiled.

    Raises:
      ValueError: when it is no regular expression.
    """
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{name} must be a regular expression, got {pattern!r}: {error}") from error


@frozen
class LayerOrder:
    """How parameters lie on top of each other: embeddings, then each stack's layers, then everything else (heads).

    A stack is what lies under one of the names in `stacks`, the innermost where they nest (`encoder.blocks`); its
    leaves have a leading layer axis. What is in no stack and no embedding, such as a final norm or an output layer,
    belongs to the heads.
    """

    embeddings: str = r"(^|\.)(\w*embedding\w*|bucket)\.|^(token|position)\."
    """Pattern of their paths; relative position buckets are among them."""
    stacks: tuple[str, ...] = ("encoder", "decoder", "blocks", "layers")
    """From the bottom up: a decoder lies on its encoder. Two stacks of one name (two towers) lie beside each other."""

    def __post_init__(self):
        check_pattern("layers.embeddings", self.embeddings)


def path_mask(pattern: str) -> Callable[[Any], Any]:
    """Make a function from a model to a tree of booleans: whether each parameter's path matches `pattern`."""
    matches = lambda path, _: bool(re.search(pattern, path_name(path)))  # noqa: E731
    return lambda tree: jax.tree_util.tree_map_with_path(matches, tree)


def _trainable(pattern: str, tree: Any) -> Any:
    mask = path_mask(pattern)(tree)
    if not any(jax.tree.leaves(mask)):
        paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        raise ValueError(f"trainable must match a parameter, got {pattern!r}; paths are {', '.join(paths[:3])}, …")
    return mask


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
        stop = lambda leaf, keep: leaf if keep else jax.lax.stop_gradient(leaf)  # noqa: E731
        return jax.tree.map(stop, model, _trainable(pattern, model))

    return on_model(objective, held)


def _stack_of(name: str, order: LayerOrder) -> str | None:
    """Give the path down to the innermost part that is called as a stack."""
    parts = name.split(".")
    last = max((i for i, part in enumerate(parts) if part in order.stacks), default=None)
    return None if last is None else ".".join(parts[: last + 1])


def _stack_depths(leaves: Mapping[str, Any], order: LayerOrder) -> dict[str, int]:
    """Count the layers of every stack, by its path."""
    found: dict[str, dict[int, str]] = {}
    for name, leaf in leaves.items():
        stack = _stack_of(name, order)
        if stack is not None:
            found.setdefault(stack, {}).setdefault(leaf.shape[0] if leaf.ndim else 0, name)
    stacks = {path: depths for path, depths in found.items() if not any(p.startswith(f"{path}.") for p in found)}
    for path, depths in stacks.items():
        if len(depths) > 1:
            shown = ", ".join(f"{name} has {depth}" for depth, name in depths.items())
            raise ValueError(f"all parameters of a stack must have one layer axis, got {shown} under {path}")
    if not stacks:
        raise ValueError(f"no parameter belongs to a stack of layers, got the names {listing(order.stacks)}")
    return {path: next(iter(depths)) for path, depths in stacks.items()}


def layer_distances(tree: Any, order: LayerOrder = LayerOrder()) -> Any:
    """Tell how many layers down from the heads each parameter lies.

    Returns:
      A tree of NumPy integers that broadcast with the leaves: 0 for heads, 1 for the highest layer, one more for each
      layer below it (a stack's leaf gets an array [L, 1, …]), and one more for embeddings. Only layers that have
      parameters in `tree` count.

    Raises:
      ValueError: when no parameter belongs to a stack, or the leaves of one differ in their first axis.
    """
    depths = _stack_depths({path_name(p): leaf for p, leaf in jax.tree_util.tree_leaves_with_path(tree)}, order)
    floor = {path: min(order.stacks.index(part) for part in path.split(".") if part in order.stacks) for path in depths}
    heights = [max((n for p, n in depths.items() if floor[p] == i), default=0) for i in range(len(order.stacks))]

    def distance(path: tuple, leaf: Any) -> np.ndarray:
        name = path_name(path)
        stack = _stack_of(name, order)
        if stack in depths:
            down = sum(heights[floor[stack] + 1 :]) + depths[stack] - np.arange(depths[stack])
            return down.reshape(-1, *(1,) * (leaf.ndim - 1))
        return np.asarray(sum(heights) + 1 if re.search(order.embeddings, name) else 0)

    return jax.tree_util.tree_map_with_path(distance, tree)


def decay_by_layer(decay: float, order: LayerOrder = LayerOrder()) -> optax.GradientTransformation:
    """Multiply a parameter's updates by decay^d, d layers below the heads (see `layer_distances`).

    After an optimizer it is a learning rate for each layer (Howard & Ruder 2018, §3.2; Clark et al. 2020, appendix B).
    """

    def scale(updates: Any, _: Any) -> Any:
        rate = lambda u, d: u * jnp.asarray(decay ** d.astype(np.float64), u.dtype)  # noqa: E731
        return jax.tree.map(rate, updates, layer_distances(updates, order))

    return optax.stateless(scale)


def unfreeze_gradually(every: int, order: LayerOrder = LayerOrder()) -> optax.GradientTransformation:
    """Let the heads learn first, and one more layer down after every `every` steps (Howard & Ruder 2018, §3.3).

    After an optimizer. Which layers move depends on the number of steps, not on the program: nothing is compiled again.
    The optimizer sees all gradients from the beginning, so that a layer does not start with a jump of cold moments.
    """
    if every < 1:
        raise ValueError(f"layers must be unfrozen every 1 or more steps, got {every}")

    def init(_: Any) -> optax.ScaleByScheduleState:
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    def update(updates: Any, state: optax.ScaleByScheduleState, params: Any = None) -> tuple[Any, Any]:
        move = lambda u, d: jnp.where(d <= state.count // every, u, jnp.zeros_like(u))  # noqa: E731
        moved = jax.tree.map(move, updates, layer_distances(updates, order))
        return moved, optax.ScaleByScheduleState(optax.safe_increment(state.count))

    return optax.GradientTransformation(init, update)


def multi_task(objectives: Mapping[str, Objective], weights: Mapping[str, float] | None = None) -> Objective:
    """Make one objective of several, each with its own part `batch[name]` of every batch.

    With the sums sᵢ and the counts nᵢ of task i, N = Σ nᵢ, and weights wᵢ, it gives the sum Σ wᵢ (N / nᵢ) sᵢ and the
    count N, so that the step, which divides by the count, descends on Σ wᵢ sᵢ / nᵢ: every task's own mean, however many
    tokens it brought. A task without any (nᵢ = 0) adds nothing. Metrics are called `name_metric`, each its task's mean.

    A batch cut into parts (`accumulate`) gives the mean of the parts, weighted by N; it is the same number where each
    part has the same share nᵢ / N of each task.

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
        raise ValueError(f"weights must name tasks, got {listing(unknown)}; there are {listing(objectives)}")
    if min(weights.values(), default=1) < 0:
        raise ValueError(f"weights must not be negative, got {weights}")
    if carrying := [name for name, objective in objectives.items() if carry_of(objective) is not NOTHING]:
        raise ValueError(f"tasks on one model must carry nothing beside gradients, got {', '.join(carrying)}")

    def objective(model: Any, batch: Mapping[str, Any], *, key: PRNGKeyArray) -> tuple[jax.Array, dict]:
        if set(batch) != set(objectives):
            raise ValueError(f"a batch must have one part a task ({listing(objectives)}), got {listing(batch)}")
        keys = jax.random.split(key, len(objectives))
        sums = {name: objectives[name](model, batch[name], key=k) for name, k in zip(objectives, keys, strict=True)}
        count = sum(metrics["count"] for _, metrics in sums.values())
        total, reported = 0.0, {}
        for name, (loss, metrics) in sums.items():
            share = count / jnp.maximum(metrics["count"], 1)
            total = total + weights.get(name, 1.0) * share * loss
            named = {"loss": loss, **metrics}
            reported |= {f"{name}_{metric}": share * value for metric, value in named.items() if metric != "count"}
        return total, {**reported, "count": count}

    objective.separable = all(map(is_separable, objectives.values()))
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

    make = lambda model, key: new_state(model, optimizer, ema, key, carry)  # noqa: E731
    abstract = jax.eval_shape(make, model, key)
    # Named, not left to default: a restored state is, and both must run the same compiled programs.
    one = SingleDeviceSharding(jax.devices()[0])
    places = state_shardings(abstract, mesh) if mesh is not None else jax.tree.map(lambda _: one, abstract)
    model = jax.device_put(model, one if mesh is None else tree_shardings(model, mesh))
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        # The model itself stays out of the program, which would copy it.
        rest = jax.jit(
            lambda model, key: replace(make(model, key), model=None), out_shardings=replace(places, model=None)
        )
        return replace(rest(model, key), model=carry.trained(model))
