"""The training step: a pure function from state and batch to state and metrics."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from flax_transformer.parallel import axis_rules, batch_sharding
from flax_transformer.parallel.axis import axis_to_mesh
from flax_transformer.parallel.explicit import implicit
from flax_transformer.train.state import TrainState, state_shardings

Objective = Callable[..., tuple[jax.Array, dict[str, jax.Array]]]
"""`objective(model, batch, *, key) -> (loss, metrics)`: the loss summed over the batch, and sums of whatever is to be
reported, among them `count`, what every sum is divided by. Sums make accumulation and any mesh agree."""


def _gradients(objective: Objective, model: Any, batch: Any, key: jax.Array, accumulate: int) -> tuple[Any, dict]:
    """Sum gradients and metrics over `accumulate` equal parts of the batch, one at a time."""

    @implicit("rows")
    def sums(model: Any, rows: Any, key: jax.Array) -> tuple[jax.Array, dict]:
        return objective(model, rows, key=key)

    def part(rows: Any, k: jax.Array) -> tuple[Any, dict]:
        (loss, metrics), grads = jax.value_and_grad(sums, has_aux=True)(model, rows, k)
        return grads, {"loss": loss, **metrics}

    if accumulate == 1:
        return part(batch, key)

    def split(leaf: jax.Array) -> jax.Array:
        if leaf.shape[0] % accumulate:
            raise ValueError(f"accumulation must divide the batch, got {leaf.shape[0]} rows in {accumulate} parts")
        # Every part takes rows from all over the batch, so that a split batch stays split in each.
        return leaf.reshape(-1, accumulate, *leaf.shape[1:]).swapaxes(0, 1)

    parts = jax.tree.map(split, batch)
    keys = jax.random.split(key, accumulate)
    zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(part, jax.tree.map(lambda leaf: leaf[0], parts), key))
    add = lambda total, rows_and_key: (jax.tree.map(jnp.add, total, part(*rows_and_key)), None)  # noqa: E731
    return jax.lax.scan(add, zero, (parts, keys))[0]


def make_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, *, accumulate: int = 1, ema: float = 0.0
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """Make the pure function `train_step(state, batch) -> (state, metrics)`.

    Args:
      accumulate: parts each batch is cut into, one after the other, to save memory. The result is the same.
      ema: decay of the parameters' moving average; 0 keeps none.
    """
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1, got {accumulate}")

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(state.key, state.step)
        grads, sums = _gradients(objective, state.model, batch, key, accumulate)
        count = sums["count"]
        scale = 1.0 / jnp.maximum(count, 1)
        grads = jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
        metrics = {name: value if name == "count" else value * scale for name, value in sums.items()}
        metrics["gradient_norm"] = optax.global_norm(grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
        model = optax.apply_updates(state.model, updates)
        average = optax.incremental_update(model, state.ema, 1 - ema) if ema else state.ema
        new = replace(state, model=model, opt_state=opt_state, step=state.step + 1, ema=average)
        return new, metrics

    return train_step


def laid_out(train_step: Callable, state: Any, mesh: Mesh | None = None) -> Callable:
    """Jit a training step; the old state's memory is reused for the new one.

    Args:
      state: a (possibly abstract) state, for its layout.
      mesh: with one, state and batch are laid out by the sharding table, and metrics are whole everywhere. Call or
        trace it within `jax.set_mesh(mesh)`, and under the same `axis_rules`.
    """
    if mesh is None:
        return jax.jit(train_step, donate_argnums=0)
    places = state_shardings(state, mesh)
    return jax.jit(
        train_step, in_shardings=(places, batch_sharding(mesh)), out_shardings=(places, None), donate_argnums=0,
    )  # fmt: skip


def jit_train_step(train_step: Callable, state: Any, mesh: Mesh | None = None) -> Callable:
    """Jit a training step as `laid_out` does, and let each process give its own rows of the batch.

    The mesh, and what `axis_rules` says of its axes here, hold in every call.
    """
    compiled = laid_out(train_step, state, mesh)
    if mesh is None:
        return compiled
    rule = axis_to_mesh()

    def run(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        with jax.set_mesh(mesh), axis_rules(rule):
            whole = jax.tree.map(partial(jax.make_array_from_process_local_data, batch_sharding(mesh)), batch)
            return compiled(state, whole)

    return run
