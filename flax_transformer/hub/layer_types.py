"""Layers of local and global attention that take turns, as config.json lists them: `layer_types`, and rotary positions
of either kind.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from flax_transformer.hub.fields import Fields
from flax_transformer.hub.rotary import read_parameters, write_rotary, write_scaling
from flax_transformer.nn import Rotary

FULL, SLIDING = "full_attention", "sliding_attention"
MOST = 10_000
"""Layers that are listed one by one."""
Window = int | tuple[int | None, ...] | None
"""As `CausalConfig.window` has it."""


def depth_of(fields: Fields) -> int:
    """Read how many layers there are, of a model that lists them one by one.

    Raises:
      ValueError: more than any model has.
    """
    depth = fields.integer("num_hidden_layers")
    if depth > MOST:
        raise ValueError(f"config.json must give at most {MOST:,} as num_hidden_layers, it is {depth}")
    return depth


def read_window(fields: Fields, window: int | None, usual: Sequence[str]) -> Window:
    """Return the window of each layer, in as few turns as there are.

    Args:
      window: of the layers that have one.
      usual: kinds of layers where config.json does not list them.

    Raises:
      ValueError: no list of kinds, one of another length than there are layers, other kinds, or windows of no size.
    """
    kinds, depth = fields.get("layer_types"), depth_of(fields)
    kinds = list(usual) if kinds is None else kinds
    if not isinstance(kinds, list) or any(kind not in (FULL, SLIDING) for kind in kinds) or len(kinds) != depth:
        raise ValueError(f"config.json must give layer_types as {depth} of {FULL} and {SLIDING}, it is {kinds!r}")
    if window is None and SLIDING in kinds:
        raise ValueError(f"config.json must give sliding_window where layers are {SLIDING}, it is None")
    windows = tuple(None if kind == FULL else window for kind in kinds)
    period = next(p for p in range(1, depth + 1) if all(windows[i] == windows[i % p] for i in range(depth)))
    return windows[0] if period == 1 else windows[:period]


def write_window(windows: Sequence[int | None], depth: int) -> dict[str, Any]:
    """Write `sliding_window` and `layer_types`; windows are those of the turns.

    Raises:
      ValueError: windows of several sizes.
    """
    sizes = {window for window in windows if window is not None}
    if len(sizes) > 1:
        raise ValueError(f"config.json has one window for all layers that have any, got {sorted(sizes)}")
    kinds = [FULL if windows[i % len(windows)] is None else SLIDING for i in range(depth)]
    return {"sliding_window": max(sizes, default=None), "layer_types": kinds}


def read_two_rotaries(
    fields: Fields, *, full: float, sliding: float, names: tuple[str, str], both: bool = False
) -> Rotary:
    """Read rotary positions that are others in layers with a window: by `rope_parameters`, or by two bases.

    Args:
      full, sliding: the bases where config.json says none.
      names: of the fields that have them, before transformers 5.
      both: whether `rope_scaling` is of both kinds of layers; else of those without a window.

    Raises:
      ValueError: rotary parameters that are not by kind of layer, or as `read_rotary` does.
    """
    given = fields.get("rope_parameters")
    given = {FULL: {}, SLIDING: {}} if given is None else given
    if not isinstance(given, dict) or not all(isinstance(given.get(kind, {}), dict) for kind in (FULL, SLIDING)):
        raise ValueError(f"config.json must have rotary parameters for each kind of layer, it has {given!r}")
    if set(given) - {FULL, SLIDING}:
        raise ValueError(f"config.json must have rotary parameters of {FULL} and {SLIDING}, it has {given!r}")
    scaling = fields.get("rope_scaling")
    if not isinstance(scaling, dict | None):
        raise ValueError(f"config.json must give rope_scaling as an object, it is {scaling!r}")
    bases = [fields.number(name, usual) for name, usual in zip(names, (full, sliding), strict=True)]
    of_full: Mapping[str, Any] = {"rope_theta": bases[0], **given.get(FULL, {}), **(scaling or {})}
    of_local = {"rope_theta": bases[1], **given.get(SLIDING, {}), **((scaling or {}) if both else {})}
    local = read_parameters(of_local, fields)
    whole = read_parameters(of_full, fields)
    return Rotary(base=whole.base, frequencies=whole.frequencies, window=local)


def write_two_rotaries(rotary: Rotary, names: tuple[str, str], *, both: bool = False) -> dict[str, Any]:
    """Write what `read_two_rotaries` reads: two bases, or `rope_parameters` where these do not say it all."""
    local = rotary if rotary.window is None else rotary.window
    sets = {FULL: rotary, SLIDING: local}
    if write_scaling(local) == (write_scaling(rotary) if both else None):
        said = write_rotary(Rotary(base=rotary.base, frequencies=rotary.frequencies, width=rotary.width))
        return {names[0]: said["rope_theta"], names[1]: local.base, "rope_scaling": said["rope_scaling"]}
    return {
        "rope_parameters": {
            kind: {"rope_theta": each.base, "rope_type": "default", **(write_scaling(each) or {})}
            for kind, each in sets.items()
        }
    }
