"""Attention weights of any family as tables of heads with names along both sides, and where each table comes from.

Axes: L layers, N heads, T queries, S keys.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from flax_transformer.hub import ModelOutput
from flax_transformer.hub.inputs import Inputs
from flax_transformer.models.patch_attention import PatchAttention
from flax_transformer.ops.marked import Place
from flax_transformer.task.explore.case import Case
from flax_transformer.task.explore.program import Program
from flax_transformer.task.image_attention import layout_of

WEIGHTS = "attention_weights"
NAMES = {
    "attentions": "self", "encoder_attentions": "encoder self", "decoder_attentions": "decoder self",
    "cross_attentions": "cross", "language_attentions": "text self", "vision_attentions": "image self",
    "cross_encoder_attentions": "cross",
}  # fmt: skip
LARGEST = 512
"""Positions along a side at most: windows beyond are left out."""


@dataclass(frozen=True)
class Kind:
    """The heads of some layers that look from and to the same positions."""

    name: str
    weights: Float[np.ndarray, "L N T S"]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    origin: tuple[tuple[int, int], ...]
    """Of each layer: the place in program order and the layer there."""
    side: tuple[str, str] = ("", "")
    """Whose positions rows and columns are: "source", "target", "patches" or neither."""
    grid: tuple[int, int, int] | None = None
    """Tokens before the first patch along the columns, rows and columns of patches."""


def kinds_of(program: Program, case: Case, given: Any, output: Any, weights: Sequence[np.ndarray]) -> list[Kind]:
    """Return all heads of a model, of images laid out over their patches where the model says how."""
    there = [place for place in program.places(given) if place.name == WEIGHTS]
    return _over_patches(program, case, given, weights, there) or _plain(program, case, given, output, weights, there)


def _plain(
    program: Program, case: Case, given: Inputs, output: Any, weights: Sequence[np.ndarray], there: Sequence[Place]
) -> list[Kind]:
    named, found = _named(program, output, there), []
    for number, (place, each) in enumerate(zip(there, weights, strict=True)):
        depth = int(np.prod(place.loops))
        if (square := _windows(each.reshape(depth, *place.shape))) is None:
            continue
        T, S = square.shape[-2:]
        name = named.get(number) or ("self" if T == S else "cross") + (f" {number + 1}" if len(there) > 1 else "")
        rows, columns = _sides(name, T, S, case, given)
        square = square[:, :, : len(rows[1]), : len(columns[1])]
        origin = tuple((number, layer) for layer in range(depth))
        found.append(Kind(name, square, rows[1], columns[1], origin, (rows[0], columns[0])))
    return _joined(found)


def _joined(kinds: list[Kind]) -> list[Kind]:
    """Join kinds that look from and to the same with as many heads, as layers one by one do."""
    found: list[Kind] = []
    for kind in kinds:
        last = found[-1] if found else None
        same = last is not None and (last.name, last.rows, last.columns) == (kind.name, kind.rows, kind.columns)
        if same and last.weights.shape[1] == kind.weights.shape[1]:
            weights = np.concatenate([last.weights, kind.weights])
            found[-1] = Kind(last.name, weights, kind.rows, kind.columns, last.origin + kind.origin, last.side)
        else:
            found.append(kind)
    return found


def _windows(weights: Float[np.ndarray, "L 1 ..."]) -> Float[np.ndarray, "L N T S"] | None:
    """Return weights of one row; windows stand along the diagonal, as none sees another."""
    weights = weights[:, 0].astype(np.float32)
    if weights.ndim == 4:
        return weights
    *_, N, T, S = weights.shape
    weights = weights.reshape(len(weights), -1, N, T, S)
    W = weights.shape[1]
    if W * max(T, S) > LARGEST:
        return None
    square = np.zeros((len(weights), N, W * T, W * S), np.float32)
    for w in range(W):
        square[:, :, w * T : (w + 1) * T, w * S : (w + 1) * S] = weights[:, w]
    return square


def _named(program: Program, output: Any, there: Sequence[Place]) -> dict[int, str]:
    """Return what the architecture calls the weights of each place, by giving it their numbers in place of them."""
    numbers = [np.broadcast_to(np.float32(i + 1), (*place.loops, *place.shape)) for i, place in enumerate(there)]
    try:
        made = program.pretrained.architecture.layers({WEIGHTS: numbers}, output)
    except (ValueError, TypeError, IndexError, KeyError, AttributeError):  # what it is called then is its number
        return {}
    found: dict[int, str] = {}
    for name, value in _leaves(made):
        number = int(np.max(value)) - 1 if np.size(value) else -1
        found.setdefault(number, name)
    return found


def _leaves(made: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name in made:
        value = made[name]
        if isinstance(value, ModelOutput | dict):
            yield from _leaves(value, {"text_model_output": "text ", "vision_model_output": "image "}.get(name, ""))
        elif isinstance(value, tuple | list) and name in NAMES:
            for each in value:
                yield before + NAMES[name], each


Side = tuple[str, tuple[str, ...]]


def _sides(name: str, T: int, S: int, case: Case, given: Inputs) -> tuple[Side, Side]:
    """Return whose positions the rows and columns of a kind are."""
    order = ("target", "source") if name.startswith("decoder") else ("source", "target")
    if name.startswith("cross"):
        return _side(T, case, given, ("target", "source")), _side(S, case, given, ("source",))
    return _side(T, case, given, order), _side(S, case, given, order)


def _side(length: int, case: Case, given: Inputs, order: tuple[str, ...]) -> Side:
    """Return the names of positions: of the tokens that are as many, padding included."""
    sides = {"source": (case.source, given.input_ids), "target": (case.target, given.decoder_input_ids)}
    for side in order:
        tokens, ids = sides[side]
        if tokens and ids is not None and length in (len(tokens), ids.shape[-1]):
            return side, tokens
    return "", tuple(str(i + 1) for i in range(length))


def _over_patches(
    program: Program, case: Case, given: Any, weights: Sequence[np.ndarray], there: Sequence[Place]
) -> list[Kind]:
    """Return heads laid out over the patches of an image; none where the model does not say how, or not of all."""
    known = program.pretrained.architecture
    if given.pixel_values is None:
        return []
    model = getattr(program.pretrained.model, "backbone", program.pretrained.model)
    try:
        if known.inputs.frames:
            pixels = given.pixel_values
            laid = model.over_video(weights, *pixels.shape[1:2], *pixels.shape[-2:])
        elif (layout := layout_of(program.pretrained)) is not None:
            laid = layout(weights, *given.pixel_values.shape[-2:])
        else:
            return []
    except (ValueError, AttributeError, TypeError, IndexError, StopIteration):  # inputs that it is not laid out for
        return []
    origins = [(i, layer) for i, place in enumerate(there) for layer in range(int(np.prod(place.loops)))]
    if any(each.weights is None for each in laid) or sum(len(each.weights) for each in laid) != len(origins):
        return []
    found, first = [], 0
    for each in laid:
        own = tuple(origins[first : first + len(each.weights)])
        first += len(each.weights)
        if {there[place].shape[-3] for place, _ in own} != {each.weights.shape[1]}:
            return []
        found.append(_kind_of(each, own, case))
    return found


def _kind_of(laid: PatchAttention, origin: tuple[tuple[int, int], ...], case: Case) -> Kind:
    rows, columns = (_tile_names(tiles, case) for tiles in (laid.queries, laid.keys))
    grid = (len(laid.keys.tokens), *laid.keys.grid) if np.prod(laid.keys.grid) else None
    side = tuple("patches" if np.prod(tiles.grid) else "target" for tiles in (laid.queries, laid.keys))
    return Kind(laid.name, np.asarray(laid.weights, np.float32), rows, columns, origin, side, grid)


def _tile_names(tiles: Any, case: Case) -> tuple[str, ...]:
    tokens = tuple(each.replace("_token", "") for each in tiles.tokens)
    if case.source and len(case.source) <= len(tokens):
        tokens = (*case.source, *tokens[len(case.source) :])
    rows, columns = tiles.grid
    return (*tokens, *(f"row {r + 1}, column {c + 1}" for r in range(rows) for c in range(columns)))
