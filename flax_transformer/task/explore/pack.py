"""What of a look goes to the page: weights and norms as short integers, and what can be switched off.

Axes: L layers, N heads, T queries, S keys.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flax_transformer.hub.inputs import Inputs
from flax_transformer.inside import rollout, value_weighted_norms
from flax_transformer.task.explore.kind import WEIGHTS, Kind
from flax_transformer.task.explore.program import Program, parts_of


def packed(kind: Kind, norms: Mapping[tuple[int, int], np.ndarray], switches: bool) -> dict[str, Any]:
    """Pack a kind's weights, and rollout where it looks at itself, as 16-bit integers."""
    weights, largest = kind.weights, 1.0
    if norms and all(origin in norms for origin in kind.origin):
        T, S = weights.shape[-2:]
        own = np.stack([norms[origin] for origin in kind.origin])[..., :T, :S]
        if own.shape == weights.shape:
            largest = float(own.max()) or 1.0
            weights = own / largest
    square = weights.shape[-1] == weights.shape[-2]
    through = _packed_array(rollout(kind.weights)) if square and kind.weights.shape[-1] <= 256 else None
    return {
        "name": kind.name, "rows": kind.rows, "columns": kind.columns, "layers": weights.shape[0],
        "heads": weights.shape[1], "origin": kind.origin, "side": kind.side, "grid": kind.grid, "largest": largest,
        "switches": switches, "weights": _packed_array(weights), "rollout": through,
    }  # fmt: skip


def _packed_array(values: np.ndarray) -> str:
    codes = np.round(65535 * np.clip(np.nan_to_num(values), 0, 1)).astype("<u2")
    return base64.b64encode(codes.tobytes()).decode()


def norms_of(found: Mapping[str, Sequence[np.ndarray]]) -> dict[tuple[int, int], np.ndarray]:
    """Return the norm of what each head moves from key to query [N, T, S], by place and layer; of windows none."""
    names = (WEIGHTS, "value", "out_kernel")
    if len({len(found.get(name, ())) for name in names}) != 1:
        return {}
    norms = {}
    for number, (weights, values, out) in enumerate(zip(*(found[name] for name in names), strict=True)):
        if weights.ndim == 4 or (weights.ndim == 5 and out.ndim == 4):
            layers = [weights, values, out] if weights.ndim == 5 else [weights[None], values[None], out[None]]
            for layer, each in enumerate(zip(*layers, strict=True)):
                norms[number, layer] = np.asarray(value_weighted_norms(*map(np.asarray, each)), np.float32)[0]
    return norms


def stacked_norms(found: Mapping[str, Sequence[np.ndarray]], place: int) -> np.ndarray | None:
    """Return the norms of what the heads of a stack move [L, B, N, T, S]; None where not all that it takes is there."""
    names = (WEIGHTS, "value", "out_kernel")
    if len({len(found.get(name, ())) for name in names}) != 1 or found["out_kernel"][place].ndim != 4:
        return None
    return np.asarray(value_weighted_norms(*(np.asarray(found[name][place]) for name in names)))


def sublayers_of(program: Program, given: Inputs) -> list[dict[str, Any]]:
    """Return what can be switched off beside heads: sublayers, by name and place."""
    there = program.places(given)
    return [
        {"name": name, "place": number, "layers": int(np.prod(place.loops))}
        for name in parts_of(there)
        for number, place in enumerate(each for each in there if each.name == name)
    ]
