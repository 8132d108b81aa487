"""Many interventions of one kind: each head, layer, neuron or position switched off, or patched from another input.

Axes: M edits, L layers.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from flax_transformer.inside.edit import Interventions, Replace, Scale, intervene
from flax_transformer.ops.capture import capture, places
from flax_transformer.ops.marked import Place


def places_of(f: Callable, name: str, *args: Any) -> list[Place]:
    """Return where f marks values by a name when it is called so, in program order.

    Raises:
      ValueError: when there is none.
    """
    every = places(f, *args)
    found = [place for place in every if place.name == name]
    if not found:
        names = ", ".join(dict.fromkeys(place.name for place in every)) or "nothing"
        raise ValueError(f"f marks {names}; got {name!r}")
    return found


def entries(place: Place, axis: int | None) -> list[tuple[int, ...]]:
    """Return every (layer, index along an axis) of a place; layers alone without an axis.

    >>> entries(Place("head_outputs", (2,), (1, 9, 2, 8), None), -2)
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    sizes = (*place.loops, *(() if axis is None else (place.shape[axis],)))
    return [*product(*map(range, sizes))]


def masks(place: Place, axis: int | None, chosen: Iterable[Sequence[int]]) -> Bool[np.ndarray, "M *_"]:
    """Return for each chosen (layer, index along an axis) a mask that broadcasts to the values of a place.

    >>> masks(Place("head_outputs", (2,), (1, 9, 2, 8), None), -2, [(1, 0)]).shape
    (1, 2, 1, 1, 2, 1)
    """
    chosen, kept = list(chosen), None if axis is None else axis % len(place.shape)
    shape = [size if i == kept else 1 for i, size in enumerate(place.shape)]
    found = np.zeros((len(chosen), *place.loops, *shape), bool)
    for i, each in enumerate(chosen):
        layers, index = tuple(each)[: len(place.loops)], tuple(each)[len(place.loops) :]
        within = [index[0] if i == kept else 0 for i in range(len(shape))]
        found[(i, *layers, *within)] = True
    return found


def switch_off(
    f: Callable, name: str, *args: Any, axis: int | None, chosen: Iterable[tuple[int, Sequence[int]]]
) -> Interventions:
    """Make the intervention that multiplies some of the values that f marks by 0.

    Args:
      args: what f is given; values of the shapes will do.
      axis: of the marked value, along which something is chosen: -2 of "head_outputs" for heads, -1 of "neurons".
      chosen: the place of that name in program order, and (layer, index) there; without an axis the layer alone.
    """
    there, chosen = places_of(f, name, *args), [(where, tuple(each)) for where, each in chosen]
    edits: list[Scale | None] = []
    for number, place in enumerate(there):
        own = [each for where, each in chosen if where == number]
        edits.append(Scale(1.0 - masks(place, axis, own).any(0)) if own else None)
    return {name: edits}


def try_each(f: Callable, edits: Interventions, *args: Any, batch: int = 16) -> Any:
    """Return what f returns under each of M interventions, whose leaves are stacked on their first axis, so stacked.

    Args:
      batch: interventions at a time; more take more memory.
    """
    return jax.lax.map(lambda each: intervene(f)(each, *args), edits, batch_size=batch)


def without_each(
    f: Callable, name: str, *args: Any, axis: int | None = None, place: int = 0, batch: int = 16
) -> tuple[list[tuple[int, ...]], Any]:
    """Return every (layer, index along an axis), and what f returns without it, stacked.

    Args:
      args, axis: as of `switch_off`.
      place: which of the values of that name, in program order.
    """
    there = places_of(f, name, *args)[place]
    chosen = entries(there, axis)
    edits = {name: [*[None] * place, Scale(1.0 - masks(there, axis, chosen))]}
    return chosen, try_each(f, edits, *args, batch=batch)


def patch_each(
    f: Callable,
    name: str,
    source: Sequence[Any],
    target: Sequence[Any],
    *,
    axis: int | None = None,
    place: int = 0,
    batch: int = 16,
) -> tuple[list[tuple[int, ...]], Any]:
    """Return every (layer, index along an axis), and what f makes of a target with that patched in from a source.

    With hidden states along positions this is causal tracing (Meng et al. 2022, https://arxiv.org/abs/2202.05262), with
    the outputs of heads path-free activation patching of heads (Wang et al. 2022, https://arxiv.org/abs/2211.00593).

    Args:
      source, target: arguments of f, of the same shapes.
      axis: of the marked value; of "hidden_states" -2 for positions.
      place: which of the values of that name, in program order.
    """
    there = places_of(f, name, *target)[place]
    chosen, value = entries(there, axis), capture(f, name)(*source)[1][place]
    expected = (*there.loops, *there.shape)
    if value.shape != expected:
        raise ValueError(f"source and target must give values of one shape, got {value.shape} and {expected}")

    def one(where: Array) -> Any:
        return intervene(f)({name: [*[None] * place, Replace(value, where)]}, *target)

    return chosen, jax.lax.map(one, jnp.asarray(masks(there, axis, chosen)), batch_size=batch)
