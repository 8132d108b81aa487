"""Rotary positions as config.json tells them, in the form of before transformers 5 and in that of today."""

from typing import Any

from flax_transformer.hub.fields import Fields
from flax_transformer.nn import Rotary
from flax_transformer.ops import LinearScaling, Llama3Scaling, rotary_frequencies

KINDS = ("default", "linear", "llama3")


def read_rotary(fields: Fields) -> Rotary:
    """Read `rope_theta` with `rope_scaling`, or `rope_parameters`, which has both.

    Raises:
      ValueError: a kind of scaling that is not supported, parameters by layer, or positions on a part of a head.
    """
    found = next((fields[name] for name in ("rope_scaling", "rope_parameters") if fields.get(name) is not None), {})
    if not isinstance(found, dict) or any(isinstance(value, dict) for value in found.values()):
        raise ValueError(f"config.json must have one set of rotary parameters for all layers, it has {found!r}")
    found = Fields.of({key: fields[key] for key in ("rope_theta", "partial_rotary_factor") if key in fields} | found)
    found.only(partial_rotary_factor=1.0)
    kind = found.get("rope_type", found.get("type", "default"))
    base = float(found.number("rope_theta", 10_000.0))
    if kind == "default":
        return Rotary(base=base)
    if kind == "linear":
        return Rotary(base=base, frequencies=LinearScaling(factor=float(found.number("factor"))))
    if kind == "llama3":
        whole = fields.get("original_max_position_embeddings", fields.get("max_position_embeddings"))
        found = Fields.of({"original_max_position_embeddings": whole} | found.data)
        scaling = Llama3Scaling(
            factor=float(found.number("factor")),
            low=float(found.number("low_freq_factor")),
            high=float(found.number("high_freq_factor")),
            original_length=found.integer("original_max_position_embeddings"),
        )
        return Rotary(base=base, frequencies=scaling)
    raise ValueError(f"config.json has the rope type {kind!r}; supported are {', '.join(KINDS)}")


def write_rotary(rotary: Rotary) -> dict[str, Any]:
    """Write `rope_theta` and `rope_scaling`, which every version of transformers reads.

    Raises:
      ValueError: frequencies of another kind than those config.json has words for.
    """
    made = rotary.frequencies
    if made is rotary_frequencies:
        scaling = None
    elif isinstance(made, LinearScaling):
        scaling = {"rope_type": "linear", "factor": made.factor}
    elif isinstance(made, Llama3Scaling):
        scaling = {
            "rope_type": "llama3",
            "factor": made.factor,
            "low_freq_factor": made.low,
            "high_freq_factor": made.high,
            "original_max_position_embeddings": made.original_length,
        }
    else:
        raise ValueError(f"config.json has no words for the rotary frequencies {made}; it has for {', '.join(KINDS)}")
    return {"rope_theta": rotary.base, "rope_scaling": scaling}
