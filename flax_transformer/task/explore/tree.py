"""The beams of a search as a tree: what was looked at, what was kept, what comes out."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from flax_transformer.decode import beam_tree
from flax_transformer.hub import Pretrained
from flax_transformer.hub.generate import search_beams
from flax_transformer.hub.generation_input import start_of
from flax_transformer.task.explore.case import WRITTEN, generation_inputs, spelt

BEAMS, TOKENS = (2, 8), (1, WRITTEN)
"""From and to: how many beams, and how many tokens, a search that is drawn has."""


def writes(pretrained: Pretrained) -> bool:
    """Return whether a model writes texts by beams that can be drawn."""
    try:
        start_of(pretrained)
    except ValueError:
        return False
    return True


def tree_of(pretrained: Pretrained, inputs: Mapping[str, np.ndarray], beams: Any, tokens: Any) -> dict[str, Any]:
    """Return the tree of the search that `generate(num_beams=beams, max_new_tokens=tokens)` runs of one row.

    Raises:
      ValueError: a model that writes nothing, or sizes that cannot be drawn.
    """
    for name, value, (low, high) in (("beams", beams, BEAMS), ("tokens", tokens, TOKENS)):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a tree has {low} to {high} {name}, got {value!r:.40}")
    start = start_of(pretrained)
    leading, given = generation_inputs(inputs)
    settings = {"num_beams": beams, "num_return_sequences": beams, "max_new_tokens": tokens, "do_sample": False}
    nodes = beam_tree(*search_beams(pretrained, *leading, **given, **settings))
    names = spelt(pretrained, [node.token for node in nodes], target=not start.continues)
    return {
        "beams": beams, "tokens": tokens, "continues": start.continues,
        "nodes": [
            {
                "parent": node.parent, "depth": node.depth, "id": node.token, "name": name,
                "p": float(f"{np.exp(node.logprob):.6g}"), "total": float(f"{node.total:.6g}"), "kept": node.kept,
                "ends": node.ends, "rank": node.rank, "score": node.score,
            }
            for node, name in zip(nodes, names, strict=True)
        ],
    }  # fmt: skip
