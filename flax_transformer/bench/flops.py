"""Model FLOPs by formula: what the arithmetic of a model needs, however it is computed.

A multiplication and an addition are two. Counted are matrix products alone: 2 × parameters of the linear layers × the
tokens they see, and 4 T S N H for the two products of each attention with T queries and S keys; causal attention counts
in full (Chowdhery et al. 2022, https://arxiv.org/abs/2204.02311, appendix B). A training step is 3 × its forward
pass, whatever is computed again to save memory. XLA's own cost analysis is no help: it counts a loop's body once.

Axes: B rows, T queries, S keys, N heads, H head width, L layers, D width, V vocabulary.
"""

import re
from typing import Any

import jax

from flax_transformer.nn import BlockConfig, stack_depth
from flax_transformer.parallel import path_name

FORMULA = "2 × linear parameters × tokens + 4·T·S·N·H an attention, causal in full; training 3 × forward"
TRAINING = 3
"""A backward pass makes two products, by inputs and by weights, of each that the forward pass has."""


def matmul_parameters(tree: Any, pattern: str = "") -> int:
    """Count the parameters of linear layers, those whose path matches; works on abstract arrays.

    Embedding tables are looked up, not multiplied: an output layer that shares one is counted by who knows it.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = ((path_name(path), leaf.size) for path, leaf in leaves)
    return sum(size for name, size in names if name.endswith("kernel") and re.search(pattern, name))


def stack_flops(
    blocks: Any, cfg: BlockConfig, rows: int, queries: int, memory: int = 0, *, pairs: int | None = None
) -> int:
    """Count the forward pass of a stack of blocks.

    Args:
      blocks: stacked, as `nn.init_stack` makes them; abstract arrays will do.
      cfg: of each block.
      rows: B.
      queries: T.
      memory: S, positions that cross-attention sees; it projects them once.
      pairs: query-key pairs of self-attention; T × T by default. Decoding T tokens one by one has T (T + 1) / 2.
    """
    projected = matmul_parameters(blocks, r"(^|\.)cross\.(key|value)\.")
    linear = (matmul_parameters(blocks) - projected) * queries + projected * memory
    pairs = queries * queries if pairs is None else pairs
    products = 2 * stack_depth(blocks) * cfg.attention.heads * cfg.attention.width * (pairs + queries * memory)
    return 2 * rows * (linear + products)
