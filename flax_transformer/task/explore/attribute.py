"""Which tokens, patches or frames an answer depends on, by four methods, and how far they agree.

Axes: G groups: tokens, squares of an image, or stretches of a recording.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from flax_transformer.hub import Pretrained
from flax_transformer.hub.inputs import Inputs
from flax_transformer.inside import (
    Interventions,
    Replace,
    agreement,
    by_group,
    draw_permutations,
    gradient_times_input,
    integrated_gradients,
    intervene,
    occlusion,
    shapley_values,
)
from flax_transformer.ops import capture
from flax_transformer.task.explore.answer import log_probabilities
from flax_transformer.task.explore.program import of_inputs, scores_of

EMBEDDED = "token_embedding"
NUMERIC = ("pixel_values", "input_features", "input_values", "states", "visual_feats")
"""Inputs that are numbers, so that they have a gradient themselves."""
STEPS, COMPLETE = (32, 128, 512), 1e-3
"""Points of the integral: more where it is further than this from adding up."""
ORDERS = 4
"""Orders in which groups come for Shapley values."""
METHODS = "integrated gradients", "gradient × input", "occlusion", "Shapley values"
SQUARES, STRETCHES = 8, 32
"""Groups along a side of an image, and along a recording."""


class Grouped(NamedTuple):
    """Where an attribution begins, and which of its numbers belong together."""

    what: str
    """`EMBEDDED`, or the name of an input."""
    groups: np.ndarray
    """The number of each group, which broadcasts to the input."""
    count: int
    grid: tuple[int, int] | None = None


def grouped(given: Inputs) -> Grouped:
    """Choose what is attributed to: tokens where there are any, else squares or stretches.

    Raises:
      ValueError: inputs of neither.
    """
    if given.input_ids is not None and given.input_ids.ndim == 2 and given.pixel_values is None:
        T = given.input_ids.shape[-1]
        return Grouped(EMBEDDED, np.arange(T)[None, :, None], T)
    name = next((name for name in NUMERIC if getattr(given, name) is not None), None)
    if name is None:
        raise ValueError("an answer is attributed to tokens, images or recordings, the model reads none")
    shape = getattr(given, name).shape
    if name == "pixel_values":
        frames = int(np.prod(shape[1:-3]))
        rows, columns = (np.arange(size) * min(SQUARES, size) // size for size in shape[-2:])
        down, across = int(rows[-1]) + 1, int(columns[-1]) + 1
        groups = rows[:, None] * across * frames + columns[None, :]
        shift = (np.arange(frames) * across).reshape(*shape[1:-3], 1, 1, 1)
        return Grouped(name, (groups + shift)[None], down * across * frames, (down, across * frames))
    axis = 1 if name in ("states", "visual_feats") else len(shape) - 1
    size = shape[axis]
    count = min(STRETCHES, size)
    groups = np.arange(size) * count // size
    return Grouped(name, groups.reshape([-1 if i == axis else 1 for i in range(len(shape))]), count, (1, count))


class Question(NamedTuple):
    """Which answer is attributed, of what inputs, under what intervention, and which numbers belong together."""

    given: Inputs
    edits: Interventions
    groups: Array
    row: Array
    answer: Array


def attribute(pretrained: Pretrained, asked: Question, *, what: str, count: int) -> dict[str, Float[Array, "G"]]:
    """Return each group's part in the log-probability of an answer, by all methods but the integral."""
    (value, x), groups = _begun(pretrained, asked, what), asked.groups
    orders = draw_permutations(jax.random.key(0), ORDERS, count)
    return {
        "gradient × input": by_group(gradient_times_input(value, x), groups, count),
        "occlusion": occlusion(value, x, groups, count=count),
        "Shapley values": shapley_values(value, x, groups, orders),
    }


def integrate(
    pretrained: Pretrained, asked: Question, *, what: str, count: int, steps: int
) -> tuple[Float[Array, "G"], Float[Array, ""]]:
    """Return integrated gradients by group, and how far they are from adding up."""
    value, x = _begun(pretrained, asked, what)
    found = integrated_gradients(value, x, steps=steps)
    return by_group(found.values, asked.groups, count), found.error


def _begun(pretrained: Pretrained, asked: Question, what: str) -> tuple[Callable[[Array], Array], Array]:
    """Return the log-probability of an answer as a function of what it is attributed to, and that."""
    given, edits = asked.given, asked.edits

    def value(x: Array) -> Array:
        if what == EMBEDDED:
            output = intervene(of_inputs)({**edits, EMBEDDED: [Replace(x)]}, pretrained, given)
        else:
            output = intervene(of_inputs)(edits, pretrained, replace(given, **{what: x}))
        return log_probabilities(*scores_of(output))[asked.row, asked.answer]

    if what != EMBEDDED:
        return value, getattr(given, what)
    return value, capture(partial(intervene(of_inputs), edits), EMBEDDED)(pretrained, given)[1][0]


def as_json(found: Mapping[str, np.ndarray], error: float, real: int) -> dict[str, Any]:
    """Return attributions of the real groups, and how their ranks agree."""
    cut = {name: np.asarray(found[name])[:real] for name in METHODS}
    ranks = agreement(cut) if real > 1 else np.ones((len(cut), len(cut)))
    values = {name: [float(f"{value:.6g}") for value in each] for name, each in cut.items()}
    return {"values": values, "error": float(error), "agreement": np.round(ranks, 3).tolist()}
