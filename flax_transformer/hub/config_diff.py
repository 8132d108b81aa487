"""In what two configs are other functions of the parameters."""

import dataclasses
import re
from typing import Any

from flax_transformer.nn import AttentionConfig, TransformerBlockConfig

FREE = re.compile(r"attend|precision|remat|unroll|.*init_std|.*dropout.*|drop_path|layer_drop")
"""Fields of configs that change how a model trains or runs, and not what it is."""


def config_diff(one: Any, other: Any, path: str = "") -> list[str]:
    """List in what two configs are other functions of the parameters."""
    if type(one) is not type(other) or not dataclasses.is_dataclass(one):
        return [] if one == other else [f"{path.rstrip('.')} {other!r} instead of {one!r}"]
    if isinstance(one, AttentionConfig | TransformerBlockConfig):
        one, other = one.resolved(), other.resolved()
    names = [f.name for f in dataclasses.fields(one) if not FREE.fullmatch(f.name)]
    return [line for name in names for line in config_diff(getattr(one, name), getattr(other, name), f"{path}{name}.")]
