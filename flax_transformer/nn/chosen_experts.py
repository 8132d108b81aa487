"""Experts of which each computes the tokens that chose it, all of them, on one device or on a mesh.

A mesh that splits experts gathers the tokens of the devices that share them out, and sums what each has made of a token
where that token is: less is sent than all to all as long as a token has about as many experts as there are devices, and
nothing depends on how evenly the tokens chose.

Axes: B rows, T positions, D width, E experts, A experts that a token is sent to.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flax_transformer.ops.device_map import device_map, places, summable
from flax_transformer.ops.dropless import apply_chosen
from flax_transformer.ops.eager_call import reused
from flax_transformer.ops.row_random import drawn
from flax_transformer.parallel.axis import auto_axes, mesh_axes
from flax_transformer.parallel.explicit import implicit
from flax_transformer.parallel.sharding import Axes, constrain, path_name, tree_axes


@implicit("x")
@reused
def by_choice(
    run: Callable[[Any, Array, Any], Array],
    experts: Any,
    x: Float[Array, "*B T D"],
    chosen: Int[Array, "*B T A"],
    weights: Float[Array, "*B T A"],
    key: PRNGKeyArray | None = None,
) -> Float[Array, "*B T D"]:
    """Add up what each token's experts make of it, weighted.

    Args:
      run, experts: as `ops.dropless.apply_chosen` has them.
      key: for what is random in an expert; each token and expert draws as it would on any mesh.
    """
    tokens = _Tokens(x, chosen, weights, None if key is None else drawn(_numbered, x.shape[:-1]))
    layout = _Layout.of(x.shape[:-1], len(jax.tree.leaves(experts)[0]))
    if not layout.axes:
        return _on_device(experts, tokens, key, run=run)
    rows, known = PartitionSpec(*layout.tokens), tree_axes({"experts": experts})
    named = jax.tree_util.tree_leaves_with_path({"experts": experts})
    leaves = [_Leaf(leaf.shape, known[path_name(path)]) for path, leaf in named]
    specs = jax.tree.unflatten(jax.tree.structure(experts), map(layout.spec, leaves))
    mapped = device_map(
        partial(_whole, run=run, layout=layout, leaves=leaves),
        given=(specs, rows, PartitionSpec()), made=rows, axes=layout.axes,
    )  # fmt: skip
    return mapped(experts, tokens, key).astype(x.dtype)


class _Tokens(NamedTuple):
    x: Array
    chosen: Array
    weights: Array
    numbers: Array | None
    """Which of all tokens each is, where something is random."""


class _Leaf(NamedTuple):
    """An array of the experts: its shape, and the logical axes that it has."""

    shape: tuple[int, ...]
    axes: Axes


class _Layout(NamedTuple):
    """Axes of the mesh: those that split rows and positions, those that split experts, and the width of kernels."""

    tokens: tuple[tuple[str, ...], ...]
    owners: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], experts: int) -> "_Layout":
        """Lay out tokens [*B, T] and so many experts."""
        tokens = places(shape[:2], mesh_axes("batch"))[: len(shape)]
        owners = mesh_axes("experts")
        # Where kernels are split by their other axis, too, the compiler would gather that for a gather of ours.
        columns = () if mesh_axes("inner") else mesh_axes("embed")
        return cls(tokens, owners if _even(experts, owners) else (), columns)

    @property
    def axes(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(dict.fromkeys((*chain(*self.tokens), *self.owners, *self.columns)))

    @property
    def shared(self) -> tuple[str, ...]:
        """Those that split experts and tokens."""
        return tuple(axis for axis in self.owners if axis in {*chain(*self.tokens)})

    def spec(self, leaf: _Leaf) -> PartitionSpec:
        """Return where a leaf of the experts is."""
        at = {"experts": self.owners, "embed": self.columns}
        found = ((at.get(axis, ()), size) for axis, size in zip(leaf.axes, leaf.shape, strict=True))
        return PartitionSpec(*(place if place and _even(size, place) else None for place, size in found))

    def gather(self, part: Array, leaf: _Leaf) -> Array:
        """Make a device's part of a leaf as wide as that is; what splits it otherwise still does."""
        for axis, (name, size) in enumerate(zip(leaf.axes, leaf.shape, strict=True)):
            if name == "embed" and part.shape[axis] < size:
                part = _gathered(self.columns, part, axis=axis, tiled=True)
        return constrain(part, *(None if name in ("experts", "embed") else name for name in leaf.axes))


def _numbered(shape: tuple[int, ...]) -> Array:
    return jnp.arange(math.prod(shape)).reshape(shape)


def _even(size: int, axes: tuple[str, ...]) -> bool:
    sizes = auto_axes()
    return size % math.prod(sizes[axis] for axis in axes) == 0


def _whole(
    experts: Any, tokens: _Tokens, key: Any, *, run: Callable, layout: _Layout, leaves: Sequence[_Leaf]
) -> Array:
    """Compute a device's experts for the tokens of all that split them; give the sums of its own tokens."""
    over = layout.shared
    parts, tree = jax.tree.flatten(experts)
    experts = jax.tree.unflatten(tree, map(layout.gather, parts, leaves))
    own, total = len(parts[0]), leaves[0].shape[0]
    first = jax.lax.axis_index(layout.owners) * own if layout.owners else 0
    if over:
        tokens = jax.tree.map(partial(_gathered, over), tokens)
    y = _on_device(experts, tokens, key, run=run, first=first, total=total)
    if over:
        y = jax.lax.psum_scatter(summable(y), over)
    alike = tuple(axis for axis in layout.owners if axis not in over)
    return jax.lax.psum(summable(y), alike) if alike else y


def _gathered(axes: tuple[str, ...], leaf: Array, **how: Any) -> Array:
    return jax.lax.all_gather(summable(leaf), axes, **how).astype(leaf.dtype)


def _on_device(
    experts: Any, tokens: _Tokens, key: Any, *, run: Callable, first: Any = 0, total: int | None = None
) -> Array:
    """Flatten rows and positions."""
    x, chosen, weights, numbers = tokens
    keys = None if key is None else jax.vmap(partial(jax.random.fold_in, key))(numbers.reshape(-1))
    flat = (each.reshape(-1, each.shape[-1]) for each in (x, chosen, weights))
    y = apply_chosen(run, experts, *flat, first=first, keys=keys, total=total)
    return y.reshape(x.shape).astype(x.dtype)
