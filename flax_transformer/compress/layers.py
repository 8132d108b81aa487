"""Stacks with fewer layers: whole layers are removed, and those that are kept follow each other (Fan et al. 2020,
https://arxiv.org/abs/1909.11556; Sanh et al. 2019, https://arxiv.org/abs/1910.01108).

Axes: L layers, the first axis of a stack's parameters.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
from flax import nnx

from flax_transformer.compress.kernel import modules_of, resized
from flax_transformer.listing import listed
from flax_transformer.nn.config import configs_in, map_configs
from flax_transformer.nn.trunk import Trunk
from flax_transformer.order import Stack
from flax_transformer.train.finetune import check_pattern


def keep_layers(model: Any, layers: Sequence[int], pattern: str = "") -> Any:
    """Return a model whose stacks have some of their layers alone, in their order.

    Args:
      layers: which are kept, from 0 on; the same of every stack.
      pattern: which stacks, by path (searched), as `encoder` or `decoder`; all by default.

    Raises:
      ValueError: layers that a stack has not or that do not ascend, a model without such a stack, one whose config has
        no depth for it, as that of stages, or one whose layers are told by their number, as those with windows in turn.
    """
    check_pattern("pattern", pattern)
    kept = tuple(layers)
    if not kept or any(a >= b for a, b in pairwise(kept)):
        raise ValueError(f"the layers that are kept must be some numbers that ascend, got {kept}")
    stacks = stacks_of(model)
    chosen = {path: trunk for path, trunk in stacks.items() if re.search(pattern, path)}
    if not chosen:
        kind, rule = type(model).__name__, f" with {pattern!r} in its path" if pattern else ""
        raise ValueError(f"layers are of a stack, a {kind} has none{rule}, there are: {listed(stacks) or 'none'}")
    rest = [trunk.cfg for path, trunk in stacks.items() if path not in chosen]
    said = list(configs_in(model.cfg))
    for path, trunk in chosen.items():
        if trunk.cfg not in said or trunk.cfg in rest:
            raise ValueError(f"the depth of a stack must be a field of its config alone, that of {path} is none")
        _check_kept(path, trunk.cfg, kept)
    config = map_configs(lambda each: _shallower(each, chosen, len(kept)), model.cfg)
    prefixes = tuple(f"{path}.blocks.".lstrip(".") for path in chosen)
    at = jnp.asarray(kept)
    return resized(model, config, lambda name, value, _: value[at] if name.startswith(prefixes) else value)


def stacks_of(model: Any) -> dict[str, Trunk]:
    """Return the trunks of a model whose layers are an axis of their parameters, by path."""
    return {
        path: trunk
        for path, trunk in modules_of(model, Trunk)
        if any(isinstance(part, Stack) for part in trunk.layer_order) and not isinstance(trunk.blocks, nnx.List)
    }


def _check_kept(path: str, config: Any, kept: tuple[int, ...]) -> None:
    name = path or "the stack"
    if kept[0] < 0 or kept[-1] >= config.depth:
        raise ValueError(f"layers of {name} must be in 0 … {config.depth - 1}, got {kept}")
    turns = len(getattr(config, "windows", (None,)))
    if len(kept) % turns or any(old % turns != new % turns for new, old in enumerate(kept)):
        raise ValueError(f"layers of {name} take {turns} windows in turn, and must still do so, got {kept}")
    if getattr(config, "numbers_layers", False) and kept[0] != 0:
        raise ValueError(f"the first layer of {name} has no norm, and is kept, got {kept}")
    if getattr(config, "falling_scale", False) and kept != tuple(range(len(kept))):
        raise ValueError(f"layers of {name} have scales by their number, and so are kept from the first, got {kept}")


def _shallower(config: Any, chosen: Mapping[str, Trunk], depth: int) -> dict[str, int]:
    return {"depth": depth} if any(config == trunk.cfg for trunk in chosen.values()) else {}
