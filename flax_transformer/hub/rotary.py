"""Rotary positions as config.json tells them, in the form of before transformers 5 and in that of today."""

from collections.abc import Callable, Mapping
from typing import Any

from flax_transformer.hub.fields import Fields
from flax_transformer.nn import Rotary
from flax_transformer.ops import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    YarnScaling,
    rotary_frequencies,
)

ORIGINAL = "original_max_position_embeddings"


def _linear(found: Fields, whole: int) -> LinearScaling:
    return LinearScaling(factor=float(found.number("factor")))


def _dynamic(found: Fields, whole: int) -> DynamicScaling:
    return DynamicScaling(factor=float(found.number("factor")), original_length=whole)


def _llama3(found: Fields, whole: int) -> Llama3Scaling:
    return Llama3Scaling(
        factor=float(found.number("factor")),
        low=float(found.number("low_freq_factor")),
        high=float(found.number("high_freq_factor")),
        original_length=found.integer(ORIGINAL),
    )


def _yarn(found: Fields, whole: int) -> YarnScaling:
    original = found.integer(ORIGINAL)
    factor = float(found.number("factor", None) or whole / max(original, 1))
    scale, mscale, all_dim = (found.number(name, None) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if scale is None and mscale and all_dim:
        scale = _scale(factor, mscale) / _scale(factor, all_dim)
    return YarnScaling(
        factor=factor,
        original_length=original,
        fast=float(found.number("beta_fast", None) or 32),
        slow=float(found.number("beta_slow", None) or 1),
        whole=found.flag("truncate", True),
        scale=None if scale is None else float(scale),
    )


def _scale(factor: float, by: float) -> float:
    """Return what YaRN multiplies sines and cosines by, its logarithm weighted."""
    return by * (YarnScaling(factor=factor, original_length=1).amplitude - 1) + 1


def _longrope(found: Fields, whole: int) -> LongScaling:
    def divisors(name: str) -> tuple[float, ...]:
        if not isinstance(found.get(name), list):
            raise ValueError(f"config.json must give {name} as a list of numbers, it is {found.get(name)!r}")
        return tuple(float(Fields.of({name: each}).number(name)) for each in found[name])

    original, scale = found.integer(ORIGINAL), found.number("attention_factor", None)
    return LongScaling(
        factor=float(found.number("factor", None) or whole / max(original, 1)),
        original_length=original,
        short=divisors("short_factor"),
        long=divisors("long_factor"),
        scale=None if scale is None else float(scale),
    )


KINDS: Mapping[str, Callable[[Fields, int], Any] | None] = {
    "default": None, "linear": _linear, "dynamic": _dynamic, "yarn": _yarn, "longrope": _longrope, "llama3": _llama3,
}  # fmt: skip


def read_rotary(fields: Fields, *, partial_of: int | None = None) -> Rotary:
    """Read `rope_theta` with `rope_scaling`, or `rope_parameters`, which has both.

    Args:
      partial_of: H, in families that may turn a part of a head; None: all of it turns.

    Raises:
      ValueError: a kind of scaling that is not supported, parameters by layer, or positions on a part of a head in a
        family that has none.
    """
    found = next((fields[name] for name in ("rope_scaling", "rope_parameters") if fields.get(name) is not None), {})
    if not isinstance(found, dict) or any(isinstance(value, dict) for value in found.values()):
        raise ValueError(f"config.json must have one set of rotary parameters for all layers, it has {found!r}")
    beside = ("rope_theta", "partial_rotary_factor")
    found = {key: fields[key] for key in beside if fields.get(key) is not None} | found
    return read_parameters(found, fields, partial_of=partial_of)


def read_parameters(given: Mapping[str, Any], fields: Fields, *, partial_of: int | None = None) -> Rotary:
    """Read one set of rotary parameters; arguments as `read_rotary`'s."""
    whole = fields.integer("max_position_embeddings", 0)
    original = given.get(ORIGINAL, whole) if fields.get(ORIGINAL) is None else fields[ORIGINAL]
    found = Fields.of({**given, ORIGINAL: original})
    width = None
    if partial_of is None:
        found.only(partial_rotary_factor=1.0)
    else:
        turning = int(partial_of * found.number("partial_rotary_factor", 1.0))
        width = None if turning == partial_of else turning
    kind = found.get("rope_type", found.get("type", "default"))
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"config.json has the rope type {kind!r}; supported are {', '.join(KINDS)}")
    scaling = KINDS[kind]
    frequencies = rotary_frequencies if scaling is None else scaling(found, whole)
    return Rotary(base=float(found.number("rope_theta", 10_000.0)), frequencies=frequencies, width=width)


def write_rotary(rotary: Rotary, *, partial_of: int | None = None) -> dict[str, Any]:
    """Write `rope_theta` and `rope_scaling`, which every version of transformers reads.

    Args:
      partial_of: H, in families that may turn a part of a head.

    Raises:
      ValueError: frequencies of another kind than those config.json has words for, or of a part of a head in a family
        that has none.
    """
    said = {"rope_theta": rotary.base, "rope_scaling": write_scaling(rotary)}
    if partial_of is None:
        if rotary.width is not None:
            raise ValueError(f"config.json has no words for a part of a head that turns, got {rotary.width} channels")
        return said
    return {**said, "partial_rotary_factor": 1.0 if rotary.width is None else rotary.width / partial_of}


def write_scaling(rotary: Rotary) -> dict[str, Any] | None:
    """Write `rope_scaling`; None where nothing is scaled."""
    made = rotary.frequencies
    if made is rotary_frequencies:
        return None
    if isinstance(made, LinearScaling):
        return {"rope_type": "linear", "factor": made.factor}
    if isinstance(made, DynamicScaling):
        return {"rope_type": "dynamic", "factor": made.factor}
    if not isinstance(made, Llama3Scaling | YarnScaling | LongScaling):
        raise ValueError(f"config.json has no words for the rotary frequencies {made}; it has for {', '.join(KINDS)}")
    said = {"factor": made.factor, ORIGINAL: made.original_length}
    if isinstance(made, Llama3Scaling):
        return {"rope_type": "llama3", **said, "low_freq_factor": made.low, "high_freq_factor": made.high}
    said |= {} if made.scale is None else {"attention_factor": made.scale}
    if isinstance(made, LongScaling):
        return {"rope_type": "longrope", **said, "short_factor": list(made.short), "long_factor": list(made.long)}
    return {"rope_type": "yarn", **said, "beta_fast": made.fast, "beta_slow": made.slow, "truncate": made.whole}
