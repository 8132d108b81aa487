"""The training step: a pure function from state and batch to state and metrics."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from flax_transformer.parallel import axis_rules, batch_sharding, sharding_rules
from flax_transformer.parallel.axis import axis_to_mesh
from flax_transformer.parallel.explicit import implicit, laid_as
from flax_transformer.parallel.sharding import given_rules
from flax_transformer.train.carry import (
    NOTHING,
    Carry,
    Objective,
    carry_of,
    check_carried,
    is_separable,
    projection_of,
    statistics_fixed,
)
from flax_transformer.train.compiled_step import CachedStep
from flax_transformer.train.mean import Mean, means, reciprocal
from flax_transformer.train.state import TrainState, moving_average, state_shardings

Step = Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]
"""`train_step(state, batch) -> (state, metrics)`, metrics being means, but for `count`."""


def _gradients(
    objective: Objective, model: Any, carried: Any, batch: Any, key: jax.Array, accumulate: int
) -> tuple[tuple[Any, dict], Any]:
    """Sum gradients and metrics over `accumulate` equal parts of the batch, one at a time; carry on what is carried.

    The gradients of an objective with one count are sums, to be divided by it. Those of one whose terms have counts of
    their own are divided already, by the counts of the whole batch: with more than one part these are added first.
    """
    carries = carry_of(objective) is not NOTHING

    @implicit("rows")
    def sums(model: Any, rows: Any, key: jax.Array, carried: Any, counts: Any) -> tuple[jax.Array, tuple[dict, Any]]:
        model = statistics_fixed(model)
        if carries:
            loss, metrics, new = objective(model, rows, key=key, carried=carried)
            check_carried(carried, new)
        else:
            (loss, metrics), new = objective(model, rows, key=key), carried
        if "count" not in metrics:
            given = ", ".join(metrics) or "no metrics"
            raise ValueError(f"an objective must report `count`, what its sums are divided by, got {given}")
        terms = metrics.get("loss")
        if isinstance(terms, tuple):
            counts = [each.count for each in terms] if counts is None else counts
            loss = sum(Mean(each.total, n).value() for each, n in zip(terms, counts, strict=True))
        return loss, ({"loss": loss, **metrics}, new)

    def part(rows: Any, k: jax.Array, carried: Any, counts: Any = None) -> tuple[tuple[Any, dict], Any]:
        gradient = jax.value_and_grad(sums, has_aux=True, allow_int=True)
        (_, (added, new)), grads = gradient(model, rows, k, carried, counts)
        grads = jax.tree.map(_of_whole_numbers, grads, model)
        return (grads, added), laid_as(new, carried)

    if accumulate == 1:
        return part(batch, key, carried)

    def counts_of(rows: Any, k: jax.Array) -> list[jax.Array]:
        return [each.count for each in sums(model, rows, k, carried, None)[1][0]["loss"]]

    parts = jax.tree.map(partial(_split, accumulate), batch)
    keys = jax.random.split(key, accumulate)
    one = jax.tree.map(lambda leaf: leaf[0], parts)
    zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(lambda: part(one, key, carried)[0]))
    counts = None
    if isinstance(zero[1]["loss"], tuple):
        # Counts hardly ever depend on the model, and the compiler then leaves it out of this pass.
        found = jax.lax.scan(lambda _, each: (None, counts_of(*each)), None, (parts, keys))[1]
        counts = [each.sum(axis=0) for each in found]

    def add(so_far: tuple, rows_and_key: tuple) -> tuple[tuple, None]:
        total, carried = so_far
        more, carried = part(*rows_and_key, carried, counts)
        return (jax.tree.map(jnp.add, total, more), carried), None

    return jax.lax.scan(add, (zero, carried), (parts, keys))[0]


def _split(parts: int, leaf: jax.Array) -> jax.Array:
    """Return equal parts of a batch; each takes rows from all over it, so that a split batch stays split in each."""
    if leaf.shape[0] % parts:
        raise ValueError(f"accumulation must divide the batch, got {leaf.shape[0]} rows in {parts} parts")
    return leaf.reshape(-1, parts, *leaf.shape[1:]).swapaxes(0, 1)


def _of_whole_numbers(gradient: Any, param: jax.Array) -> Any:
    """Return zeros as the gradient of what a frozen kernel of few bits is made of."""
    return jnp.zeros_like(param) if gradient.dtype == jax.dtypes.float0 else gradient


def make_train_step(
    objective: Objective, optimizer: optax.GradientTransformation, *, accumulate: int = 1, ema: float = 0.0
) -> Step:
    """Make the pure function `train_step(state, batch) -> (state, metrics)`.

    Args:
      accumulate: parts each batch is cut into, one after the other, to save memory. The result is the same.
      ema: decay of the parameters' moving average (see `moving_average`); 0 keeps none.

    Raises:
      ValueError: when a batch would be cut for an objective that is not separable; when called, if the objective
        carries state and has none.
    """
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1, got {accumulate}")
    if accumulate > 1 and not is_separable(objective):
        raise ValueError(
            f"a batch cannot be cut into parts for an objective that is not separable over rows, got "
            f"accumulate={accumulate}; it must be 1"
        )
    carry, project = carry_of(objective), projection_of(objective)

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        if state.carried is None and carry.begin is not NOTHING.begin:
            raise ValueError("the objective carries state, the training state has none: make it with carry=carry_of(…)")
        key = jax.random.fold_in(state.key, state.step)
        (grads, sums), carried = _gradients(objective, state.model, state.carried, batch, key, accumulate)
        if not isinstance(sums["loss"], tuple):
            scale = reciprocal(sums["count"])
            grads = jax.tree.map(lambda g: g * scale.astype(g.dtype), grads)
        metrics = means(sums)
        floats = [leaf for leaf in jax.tree.leaves(grads) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        metrics["gradient_norm"] = optax.global_norm(floats)
        with jax.named_scope("optimizer"):
            updates, opt_state = optimizer.update(grads, state.opt_state, state.model)
            model = project(optax.apply_updates(state.model, updates))
        return advanced(replace(state, model=model, opt_state=opt_state, carried=carried), carry, ema), metrics

    return train_step


def advanced(state: TrainState, carry: Carry, ema: float) -> TrainState:
    """Do what every step ends with: change what is carried, count the step, average the whole model."""
    carried = carry.after(state.model, state.carried)
    check_carried(state.carried, carried)
    step, average = state.step + 1, state.ema
    if ema:
        average = moving_average(average, carry.whole(state.model, carried), ema, step)
    return replace(state, carried=carried, step=step, ema=average)


@dataclass(frozen=True)
class OwnStep:
    """A training step of one's own, in place of one made of an objective and an optimizer; two optimizers, say.

    Count, key, average and layout are the state's as with any other, and loop, checkpoints and resumption do not know
    the difference.
    """

    init: Callable[[Any], Any]
    """`init(model) -> opt_state`, as of an optimizer: any pytree. What ends in a parameter's path lies as that does."""
    update: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    """`update(state, batch, *, key) -> (state, metrics)`: a state with another model, opt_state and perhaps carried;
    means over the batch, among them `loss` and `gradient_norm`, and `count`, what these means weigh among others'."""
    carry: Carry = NOTHING


OWN_METRICS = ("loss", "gradient_norm", "count")
"""What a step of one's own must report."""


def make_own_step(own: OwnStep, *, ema: float = 0.0) -> Step:
    """Make the pure function `train_step(state, batch) -> (state, metrics)` of a step of one's own.

    Args:
      ema: as of `make_train_step`.
    """

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        new, metrics = own.update(state, batch, key=jax.random.fold_in(state.key, state.step))
        if missing := [name for name in OWN_METRICS if name not in metrics]:
            raise ValueError(f"a step must report {', '.join(OWN_METRICS)}, got no {', '.join(missing)}")
        check_carried(state.carried, new.carried)
        return advanced(replace(new, step=state.step, key=state.key, ema=state.ema), own.carry, ema), metrics

    return train_step


def laid_out(train_step: Step, state: Any, mesh: Mesh | None = None) -> Callable:
    """Jit a training step; the old state's memory is reused for the new one.

    Args:
      state: a (possibly abstract) state, for its layout.
      mesh: with one, state and batch are laid out by the sharding table, and metrics are whole everywhere. Call or
        trace it within `jax.set_mesh(mesh)`, and under the same `axis_rules`.
    """
    if mesh is None:
        return jax.jit(train_step, donate_argnums=0)
    shardings = state_shardings(state, mesh)
    # No compiler options: what makes TPUs fetch parameters while they multiply v5e does by itself, and for others the
    # compiler warns of it.
    given = shardings, batch_sharding(mesh)
    return jax.jit(train_step, in_shardings=given, out_shardings=(shardings, None), donate_argnums=0)


def jit_train_step(
    train_step: Callable, state: Any, mesh: Mesh | None = None, programs: Path | None = None
) -> Callable:
    """Jit a training step as `laid_out` does, and let each process give its own rows of the batch.

    The mesh, and what `axis_rules` and `sharding_rules` say here, hold in every call.

    Args:
      programs: a folder of compiled steps; those that are not there are added to it.
    """
    compiled = laid_out(train_step, state, mesh)
    if programs is not None:
        compiled = CachedStep(compiled, programs, jax.devices()[:1] if mesh is None else list(mesh.devices.flat))
    if mesh is None:
        return compiled
    rule, said = axis_to_mesh(), given_rules()

    def run(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        with jax.set_mesh(mesh), axis_rules(rule), sharding_rules(said):
            whole = jax.tree.map(partial(jax.make_array_from_process_local_data, batch_sharding(mesh)), batch)
            return compiled(state, whole)

    return run
