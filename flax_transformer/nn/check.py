"""What layers refuse at the door. All of it happens while tracing, and none of it is in a compiled program.

Axes: B batch, T positions, D width; I frames, H W height and width in pixels, C channels.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

_KEPT = {
    nnx.RngState: "the state of a random generator, which would draw the same at every call: write "
    "`ops.dropout(x, rate, key)` with the `key` that a stack gives each block",
    nnx.BatchStat: "running statistics, which nobody would update: use nnx.LayerNorm, nnx.RMSNorm or nnx.GroupNorm",
    nnx.Cache: "a cache, which nobody would update: take it as an argument and return it",
}


def check_hidden(x: Any, width: int, what: str = "x") -> None:
    """Raise ValueError unless x is hidden states [*B, T, D] in floating point."""
    if not jnp.issubdtype(getattr(x, "dtype", bool), jnp.floating):
        raise ValueError(f"{what} must be hidden states in floating point, got {getattr(x, 'dtype', type(x).__name__)}")
    if x.ndim < 2:
        raise ValueError(f"{what} must be hidden states [*B, T, D], got shape {x.shape}")
    if x.shape[-1] != width:
        raise ValueError(f"D must be {width}, got {x.shape[-1]}: {what} has shape {x.shape}")


def check_images(images: Any, channels: int) -> None:
    """Raise ValueError unless these are images [*B, H, W, C] in floating point."""
    if not jnp.issubdtype(getattr(images, "dtype", bool), jnp.floating):
        kind = getattr(images, "dtype", type(images).__name__)
        raise ValueError(f"images must be in floating point, scaled as the model wants them, got {kind}")
    if images.ndim < 3 or images.shape[-1] != channels:
        raise ValueError(f"images must be [*B, H, W, C] with C={channels} channels, got shape {images.shape}")


def check_videos(videos: Any, channels: int) -> None:
    """Raise ValueError unless these are videos [*B, I, H, W, C] in floating point."""
    if getattr(videos, "ndim", 0) < 4:
        raise ValueError(f"videos must be [*B, I, H, W, C], got shape {jnp.shape(videos)}")
    check_images(videos, channels)


def check_widths(**widths: int) -> None:
    """Raise ValueError unless the parts of a model, by name, have one width D."""
    if len(set(widths.values())) > 1:
        found = ", ".join(f"{name}={width}" for name, width in widths.items())
        raise ValueError(f"all parts must have one model width, got {found}")


def check_ids(what: str, ids: Any) -> None:
    """Raise ValueError unless these are whole numbers [*B, T]."""
    if not jnp.issubdtype(getattr(ids, "dtype", bool), jnp.integer) or ids.ndim < 1:
        kind = f"{ids.dtype} of shape {ids.shape}" if hasattr(ids, "dtype") else repr(ids)
        raise ValueError(f"{what} must be an array [*B, T] of whole numbers, got {kind}")


def check_embeddings(
    embeddings: Any, width: int, what: str = "tokens must be whole numbers, or embeddings in their place"
) -> None:
    """Raise ValueError unless these are embeddings [*B, T, D] of a table's width in floating point."""
    dtype, shape = getattr(embeddings, "dtype", np.dtype(bool)), jnp.shape(embeddings)
    if not jnp.issubdtype(dtype, jnp.floating) or len(shape) < 2 or shape[-1] != width:
        raise ValueError(f"{what} must be floats [*B, T, {width}], as wide as the token table, got {dtype} of {shape}")


def check_positions(positions: Any, model: Any) -> None:
    """Raise ValueError for positions given to a model whose config has no place for them."""
    rotary = getattr(getattr(model.block, "attention", None), "rotary", None)
    positional = {model.embedding.position, getattr(model, "position", "none")} != {"none"}
    if positions is not None and not positional and rotary is None:
        raise ValueError("positions serve embeddings or rotary attention, and the model has neither; got positions")


def check_length(tokens: Any, most: int) -> None:
    """Raise ValueError for more tokens than there are learned positions; a length that is open says how many it has."""
    try:
        too_long = tokens > most
    except jax.errors.InconclusiveDimensionOperation as error:
        raise ValueError(
            f"a length that an export leaves open must be at most the {most} positions there are: "
            f"symbolic_shape(…, constraints=['{tokens} <= {most}'])"
        ) from error
    if too_long:
        raise ValueError(f"the input is longer than the positions: {tokens} tokens, {most} positions")


def check_beams(beams: int) -> None:
    """Raise ValueError for fewer hypotheses than one."""
    if beams < 1:
        raise ValueError(f"beams must be at least 1, got {beams}")


def check_single(kernel: Any, axes: int) -> None:
    """Raise ValueError for the kernel of a stack of blocks, where one block is called."""
    if len(kernel.shape) != axes:
        raise ValueError(
            "a stack is run by `apply_stack`, and `layer(stack, i)` takes a block out of it to be called; got a kernel "
            f"of shape {kernel.shape}, where a block's has {axes} axes"
        )


def check_stateless(blocks: Any) -> None:
    """Raise ValueError where a block keeps what changes from call to call, which a pure function cannot."""
    leaves = jax.tree_util.tree_leaves_with_path(blocks, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
    for path, leaf in leaves:
        for kind, what in _KEPT.items():
            if isinstance(leaf, kind):
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                raise ValueError(f"a block keeps parameters and nothing else, got {what}. It is at {name!r}")


def check_depth(what: str, value: Any, depth: int, apart: bool) -> None:
    """Raise ValueError unless there is an entry for each layer: on the leading axis, or in a tuple of a stack apart."""
    if apart and isinstance(value, tuple | list):
        sizes = {len(value)}
    else:
        sizes = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else 0 for leaf in jax.tree.leaves(value)}
    if sizes - {depth}:
        found = ", ".join(map(str, sorted(sizes)))
        raise ValueError(f"{what} must have an entry for each layer, of which there are {depth}, got {found}")
