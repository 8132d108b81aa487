"""What training carries from step to step: one pytree."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from jaxtyping import PRNGKeyArray

from flax_transformer.parallel import tree_shardings


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Model, optimizer state, number of steps done, and the key all of the run's randomness comes from.

    As every pytree it may hold arrays, abstract ones, or their layouts.
    """

    model: Any
    opt_state: Any
    step: Any
    """int32 []."""
    key: Any
    """A typed PRNG key []."""
    ema: Any = None
    """Exponential moving average of the model's parameters, where the run keeps one."""


def _new_state(init: Callable, optimizer: optax.GradientTransformation, ema: bool, key: PRNGKeyArray) -> TrainState:
    model_key, run_key = jax.random.split(key)
    model = init(model_key)
    average = jax.tree.map(jnp.copy, model) if ema else None
    return TrainState(model, optimizer.init(model), jnp.zeros((), jnp.int32), run_key, average)


def state_shardings(state: Any, mesh: Mesh | AbstractMesh) -> Any:
    """Lay out a (possibly abstract) TrainState by the sharding table.

    Optimizer statistics shaped like their parameter lie as it does; factored ones are small and replicated.
    """
    places = tree_shardings(state.model, mesh)
    by_shape = {
        (_tail(path), leaf.shape): place
        for (path, leaf), place in zip(
            jax.tree_util.tree_leaves_with_path(state.model), jax.tree.leaves(places), strict=True
        )
    }
    whole = NamedSharding(mesh, PartitionSpec())

    def place(path: tuple, leaf: Any) -> NamedSharding:
        name = _tail(path)
        matches = (s for (tail, shape), s in by_shape.items() if shape == leaf.shape and name.endswith(tail))
        return next(matches, whole)

    return jax.tree_util.tree_map_with_path(place, state)


def _tail(path: tuple) -> str:
    return "." + jax.tree_util.keystr(path, simple=True, separator=".")


def abstract_state(
    init: Callable[[PRNGKeyArray], Any], optimizer: optax.GradientTransformation, *, ema: bool = False
) -> TrainState:
    """Make the state of a new run with shapes in place of arrays; arguments as `init_state`'s."""
    return jax.eval_shape(partial(_new_state, init, optimizer, ema), jax.random.key(0))


def init_state(
    init: Callable[[PRNGKeyArray], Any],
    optimizer: optax.GradientTransformation,
    key: PRNGKeyArray,
    *,
    ema: bool = False,
    mesh: Mesh | None = None,
) -> TrainState:
    """Make the state of a new run, each array straight onto the devices that keep it.

    Args:
      init: makes the model from a key.
      ema: whether to keep an average of the parameters.
      mesh: where to; the default device without one.
    """

    make = partial(_new_state, init, optimizer, ema)
    if mesh is None:
        # Named, not left to default: a restored state is, and both must run the same compiled programs.
        return jax.jit(make, out_shardings=SingleDeviceSharding(jax.devices()[0]))(key)
    shardings = state_shardings(abstract_state(init, optimizer, ema=ema), mesh)
    with jax.set_mesh(mesh):
        return jax.jit(make, out_shardings=shardings)(key)


def parameter_count(tree: Any) -> int:
    """Count the numbers in a model; works on abstract ones."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))
