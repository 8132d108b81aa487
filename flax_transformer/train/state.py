"""What training carries from step to step: one pytree."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import PRNGKeyArray

from flax_transformer.parallel import path_name, tree_shardings
from flax_transformer.train.carry import (
    NOTHING,
    Carry,
    check_new_statistics,
    is_variable,
    new_carried,
    statistics_of,
    without_statistics,
)


@runtime_checkable
class Optimizer(Protocol):
    """What a state of training is made for: an Optax transformation, or a `train.step.OwnStep`."""

    init: Callable[[Any], Any]
    """`init(model) -> opt_state`."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Model, optimizer state, number of steps done, the key all of the run's randomness comes from, what is carried.

    As every pytree it may hold arrays, abstract ones, or their layouts.
    """

    model: Any
    opt_state: Any
    step: Any
    """int32 []."""
    key: Any
    """A typed PRNG key []."""
    ema: Any = None
    """Exponential moving average of the model's parameters, where the run keeps one: ready for use, see
    `moving_average`."""
    carried: Any = None
    """What is carried from step to step and not differentiated, see `train.carry`; None where nothing is."""


_CARRIED = 2**32 - 1
"""What is folded into the run's key for what is carried; steps fold in their number, which stays below 2³¹."""


def new_state(model: Any, optimizer: Optimizer, ema: bool, key: PRNGKeyArray, carry: Carry = NOTHING) -> TrainState:
    """Put a state of no steps around a model.

    Args:
      carry: what the objective carries, `carry_of(objective)`.

    Raises:
      ValueError: when parameters below float32 would be trained, or a model whose batch norms have never seen a batch
        without their statistics.
    """
    if _untouched(statistics_of(model)):
        check_new_statistics(model, carry)
    trained = strongly_typed(carry.trained(model))
    opt_state = optimizer.init(trained)
    check_trained(_narrow_trained(trained, opt_state))
    carried = None if carry is NOTHING else new_carried(carry, model, jax.random.fold_in(key, _CARRIED))
    average = jax.tree.map(jnp.copy, carry.whole(trained, carried)) if ema else None
    return TrainState(trained, opt_state, jnp.zeros((), jnp.int32), key, average, carried)


def strongly_typed(model: Any) -> Any:
    """Return a model whose parameters have types of their own, not those of Python's numbers, as `jnp.full((), 0.1)`:
    what a step gives back has, so that another program would be compiled for the second.
    """
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype) if jax.typeof(x).weak_type else x, model)


def _new_state(init: Callable, optimizer: Optimizer, ema: bool, carry: Carry, key: PRNGKeyArray) -> TrainState:
    model_key, run_key = jax.random.split(key)
    return new_state(init(model_key), optimizer, ema, run_key, carry)


def evaluated_model(state: TrainState, carry: Carry = NOTHING) -> Any:
    """Return the model that is evaluated: the moving average where the run keeps one, with what is carried in it."""
    return carry.whole(state.model, state.carried) if state.ema is None else state.ema


def _untouched(statistics: Mapping[str, Any]) -> bool:
    """Return whether all running means are known to be 0, and all variances 1."""
    if any(isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array) for leaf in statistics.values()):
        return False
    means = {name: leaf for name, leaf in statistics.items() if f".{name}".endswith((".mean", ".var"))}
    return all(bool(jnp.all(leaf == float(name.endswith("var")))) for name, leaf in means.items())


def _is_narrow(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating) and jnp.finfo(leaf.dtype).bits < 32


def check_trained(parameters: Mapping[str, Any]) -> None:
    """Check that parameters to be trained, by path, are at least float32.

    Below, steps and averages are rounded away, and Adam's squares leave float16's range, all without a sign.
    """
    narrow = {name: leaf.dtype for name, leaf in parameters.items() if _is_narrow(leaf)}
    if narrow:
        name, dtype = next(iter(narrow.items()))
        more = f" and {len(narrow) - 1} more" if len(narrow) > 1 else ""
        raise ValueError(
            f"what is trained must be kept in float32, got {name} in {dtype}{more}: let precision.params be float32 "
            f"and precision.compute {dtype}, or cast the leaves of a model there is; what is frozen may stay as it is"
        )


def _narrow_trained(model: Any, opt_state: Any) -> dict[str, Any]:
    """Find the parameters below float32 that an optimizer trains, as far as its state tells.

    One with statistics that are as narrow is trained. Where nothing is masked all are; an optimizer that masks some
    is taken at its word (`train_only` checks its part).
    """
    narrow = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(model) if _is_narrow(leaf)}
    if not narrow:
        return {}
    leaves = jax.tree_util.tree_leaves_with_path(opt_state)
    statistics = [f".{path_name(path)}" for path, leaf in leaves if _is_narrow(leaf)]
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, optax.MaskedState))
    masks = isinstance(opt_state, optax.EmptyState) or any(isinstance(node, optax.MaskedState) for node in nodes)
    if not masks:
        return narrow
    return {name: leaf for name, leaf in narrow.items() if any(path.endswith(f".{name}") for path in statistics)}


def moving_average(average: Any, model: Any, decay: float, step: Any) -> Any:
    """Take the parameters after a step into their moving average, with a decay that is ramped.

    The decay of step t is min(d, (1 + t) / (10 + t)), as TensorFlow's `ExponentialMovingAverage` has it with
    `num_updates`: an average over the last tenth of a run that is short, which becomes one over 1 / (1 − d) steps. The
    first step takes the parameters as they are, so that nothing of those before it is in the average. Parameters below
    float32 are frozen, so they are their own average, as are whole numbers.

    Args:
      decay: d.
      step: t, counted from 1.
    """
    t = jnp.asarray(step, jnp.float32)
    rate = jnp.where(t > 1, jnp.maximum(1 - decay, 9 / (10 + t)), 1)

    def blend(old: Any, new: Any) -> Any:
        if _is_narrow(new) or not jnp.issubdtype(new.dtype, jnp.inexact):
            return new
        return old + rate.astype(old.dtype) * (new - old)

    return jax.tree.map(blend, average, model)


def state_shardings(state: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Lay out a (possibly abstract) TrainState by the sharding table.

    Optimizer statistics, averages and teachers shaped like a parameter lie as it does, by the end of their path. What
    else is carried, such as a discriminator, lies by the table where that has a rule which fits. All other arrays, such
    as adafactor's rows [L, D] and columns [L, N·H] of a kernel [L, D, N, H], or a queue, lie whole on every device.
    """
    shardings = tree_shardings(state.model, mesh)
    whole = NamedSharding(mesh, PartitionSpec())
    by_tail: dict[tuple[str, tuple[int, ...]], NamedSharding] = {}
    for (path, leaf), place in zip(
        jax.tree_util.tree_leaves_with_path(state.model), jax.tree.leaves(shardings), strict=True
    ):
        tails = _tails(path)
        for tail in tails[: max(len(tails) - 1, 1)]:  # a name alone, such as `kernel`, says too little
            by_tail.setdefault((tail, leaf.shape), place)

    def place(path: tuple, leaf: Any) -> NamedSharding | None:
        return next((by_tail[key] for tail in _tails(path) if (key := (tail, leaf.shape)) in by_tail), None)

    def carried(path: tuple, node: Any) -> Any:
        name, table = path_name(path), None
        with contextlib.suppress(ValueError):
            table = tree_shardings({name: node}, mesh)[name]
        table = jax.tree.map(lambda _: whole, node) if table is None else table
        return jax.tree_util.tree_map_with_path(lambda rest, leaf, by: place((*path, *rest), leaf) or by, node, table)

    rest = replace(state, model=None, carried=None)
    laid = jax.tree_util.tree_map_with_path(lambda path, leaf: place(path, leaf) or whole, rest)
    kept = jax.tree_util.tree_map_with_path(carried, state.carried, is_leaf=is_variable)
    return replace(laid, model=shardings, carried=kept)


def _tails(path: tuple) -> list[str]:
    """Return the ends of a path, the longest first."""
    parts = path_name(path).split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]


def abstract_state(
    init: Callable[[PRNGKeyArray], Any],
    optimizer: Optimizer,
    *,
    ema: bool = False,
    carry: Carry = NOTHING,
) -> TrainState:
    """Make the state of a new run with shapes in place of arrays; arguments as `init_state`'s."""
    return jax.eval_shape(partial(_new_state, init, optimizer, ema, carry), jax.random.key(0))


def init_state(
    init: Callable[[PRNGKeyArray], Any],
    optimizer: Optimizer,
    key: PRNGKeyArray,
    *,
    ema: bool = False,
    carry: Carry = NOTHING,
    mesh: Mesh | None = None,
) -> TrainState:
    """Make the state of a new run, each array straight onto the devices that keep it.

    Args:
      init: makes the model from a key.
      ema: whether to keep an average of the parameters.
      carry: what the objective carries, `carry_of(objective)`.
      mesh: where to; the default device without one.
    """

    make = partial(_new_state, init, optimizer, ema, carry)
    if mesh is None:
        # Named, not left to default: a restored state is, and both must run the same compiled programs.
        return jax.jit(make, out_shardings=SingleDeviceSharding(jax.devices()[0]))(key)
    shardings = state_shardings(abstract_state(init, optimizer, ema=ema, carry=carry), mesh)
    with jax.set_mesh(mesh):
        return jax.jit(make, out_shardings=shardings)(key)


def parameter_count(tree: Any) -> int:
    """Count the numbers in a model, but for its statistics, as papers do; works on abstract ones."""
    return sum(leaf.size for leaf in jax.tree.leaves(without_statistics(tree)))
