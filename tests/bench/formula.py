"""Model FLOPs by formula, written from the parameters and sizes alone: what the walk over programs is compared with.

Linear layers cost 2 × parameters × tokens, an attention 4 T S N H. Axes: B rows, T queries, S keys, D width, V words.
"""

import re

import jax

from flax_transformer.models.causal import CausalConfig
from flax_transformer.models.encoder import MaskedLMConfig
from flax_transformer.models.text.dense_first import DenseFirstTrunk
from flax_transformer.models.text.pointer import PointerConfig
from flax_transformer.nn import stack_depth
from flax_transformer.ops.dropless import block_count, block_size
from flax_transformer.parallel import path_name


def linear_parameters(tree, pattern=""):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    names = ((path_name(path), leaf.size) for path, leaf in leaves)
    return sum(size for name, size in names if name.endswith("kernel") and re.search(pattern, name))


def pair_width(cfg, *, one_by_one):
    """Return the multiply-adds of a head for a query and a key: over the latents where tokens are decoded one by one,
    and else over values that are filled up to the width of keys."""
    if not hasattr(cfg, "latent"):
        return 2 * cfg.width
    if one_by_one:
        return 2 * cfg.latent + cfg.rotary_width
    return cfg.query_width + max(cfg.query_width, cfg.value_width)


def copy_flops(model, rows, queries, memory):
    """Count where a pointer-generator copies from: two projections, one head's attention, the gate."""
    sizes = {name: linear_parameters(getattr(model, name)) for name in ("copy_query", "copy_key", "generate")}
    linear = (sizes["copy_query"] + sizes["generate"]) * queries + sizes["copy_key"] * memory
    return 2 * rows * (linear + queries * memory * (model.cfg.copy_width + model.cfg.encoder.block.embed))


def chosen_linear(blocks, cfg, rows, queries, *, one_by_one):
    """Return what experts, none of which drops a token, cost a row beyond parameters × tokens (less than nothing)."""
    if not hasattr(cfg, "experts"):
        return 0
    parameters, calls = linear_parameters(blocks, r"\.experts\."), queries if one_by_one else 1
    visits = rows * queries * cfg.active // calls
    size = block_size(visits // cfg.active, cfg.active, cfg.experts)
    places = size * block_count(visits, cfg.experts, size)
    return parameters // cfg.experts * places * calls // rows - parameters * queries


def stack_flops(blocks, cfg, rows, queries, memory=0, *, pairs=None):
    """Count a stack of blocks; `pairs` of queries and keys in self-attention, T × T by default."""
    projected = linear_parameters(blocks, r"(^|\.)(cross|first)\.(key|value)\.")
    linear = (linear_parameters(blocks) - projected) * queries + projected * memory
    # What a window of three has no input for, at either end of a row.
    linear -= 2 * linear_parameters(blocks, r"branches\.narrow\.kernel") // 3
    linear += chosen_linear(blocks, cfg.feedforward, rows, queries, one_by_one=pairs is not None)
    heads, width = stack_depth(blocks) * cfg.attention.heads, pair_width(cfg.attention, one_by_one=pairs is not None)
    pairs = queries * queries if pairs is None else pairs
    twice = 2 if hasattr(cfg, "wide") else 1  # a cell's two attentions to either side
    products = twice * heads * (width * pairs + 2 * cfg.attention.width * queries * memory)
    return 2 * rows * (linear + products)


def trunk_flops(trunk, cfg, rows, queries, memory=0, *, pairs=None):
    """Count a trunk; a block that all steps share counts at each."""
    if hasattr(trunk, "blocks"):
        return stack_flops(trunk.blocks, cfg.block, rows, queries, memory, pairs=pairs)
    steps = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((cfg.depth, *leaf.shape), leaf.dtype), trunk.block)
    halts = cfg.depth * linear_parameters(trunk, r"(^|\.)halt\.") * queries
    return stack_flops(steps, cfg.block, rows, queries, memory, pairs=pairs) + 2 * rows * halts


def causal_flops(trunk, cfg, rows, queries, *, pairs=None):
    """Count a decoder, and the blocks with a dense layer below those with experts where there are some."""
    stacks = [(trunk.blocks, cfg.block)]
    if isinstance(trunk, DenseFirstTrunk):
        stacks.append((trunk.dense_blocks, cfg.dense_block))
    return sum(stack_flops(*stack, rows, queries, pairs=pairs) for stack in stacks)


def projected_once(trunk, cfg, rows, memory):
    """Count what is saved where steps that share a block share its keys and values of a memory too.

    Decoding projects it once, and JAX takes it out of the loop of a training step's forward pass.
    """
    if hasattr(trunk, "blocks"):
        return 0
    return 2 * rows * (cfg.depth - 1) * linear_parameters(trunk, r"(^|\.)cross\.(key|value)\.") * memory


def gate_flops(blocks, cfg, rows, queries):
    """Count how the probabilities of chosen experts are picked out, by a product with zeros and ones."""
    chosen = cfg.feedforward.experts * cfg.feedforward.active if hasattr(cfg.feedforward, "experts") else 0
    return 2 * rows * queries * stack_depth(blocks) * chosen


def room(stages):
    """Count what tokens see that are decoded one by one over a cache that grows: all it has room for."""
    return sum(stage * (stage - before) for before, stage in zip((0, *stages), stages))  # noqa: B905


def programs(model, config, rows, length, stages):
    """Count forward pass, training step and decoding of a preset on rows of `length` tokens, on each side alike."""
    if isinstance(config, MaskedLMConfig):
        cfg, guessed = config.encoder, -(-length // 7)
        stack = stack_flops(model.encoder.trunk.blocks, cfg.block, rows, length)
        head = 2 * rows * cfg.block.embed * (cfg.block.embed + cfg.embedding.vocab)
        return {"forward": stack + length * head, "train": 3 * (stack + guessed * head)}
    output, saved = 2 * rows * length * config.embedding.vocab * config.embedding.embed, 0
    if isinstance(config, CausalConfig):
        stacks = [causal_flops(model.trunk, config, rows, length, pairs=p) for p in (None, room(stages))]
        encoder, gates = 0, gate_flops(model.trunk.blocks, config.block, rows, length)
    else:
        gates = 0
        encoder = trunk_flops(model.encoder, config.encoder, rows, length)
        stacks = [
            trunk_flops(model.decoder, config.decoder, rows, length, length, pairs=p) for p in (None, room(stages))
        ]
        saved = projected_once(model.decoder, config.decoder, rows, length)
        output += copy_flops(model, rows, length, length) if isinstance(config, PointerConfig) else 0
    whole, decoded = (encoder + stack + output for stack in stacks)
    return {"forward": whole + gates, "train": 3 * whole + 2 * gates - saved, "decode": decoded + gates - saved}
