"""Depth as an axis: L blocks are one block whose leaves have a leading L."""

import inspect
import math
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, PRNGKeyArray

from flax_transformer.nn.check import check_depth, check_stateless
from flax_transformer.nn.pipeline import pipeline_stages, run_pipeline
from flax_transformer.nn.remat import REMAT, check_remat
from flax_transformer.ops.eager_call import reused
from flax_transformer.parallel.axis import spelled
from flax_transformer.parallel.explicit import implicit


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PerLayer:
    """Marks an argument of `apply_stack` that has a leading layer axis of its own, one slice for each block."""

    value: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cycle:
    """Marks an argument of `apply_stack` that goes round: of p values, layer i gets `values[i % p]`.

    Local and global attention in turn (Gemma Team 2024, https://arxiv.org/abs/2408.00118) is
    `mask=Cycle((Mask(window=(7, 0)), Mask()))`. Values may be static, as windows are: the stack is still one loop over
    its layers, in which each takes the branch of its value. The stages of a pipeline have all turns equally often.
    """

    values: tuple[Any, ...]
    order: tuple[int, ...] | None = field(default=None, metadata={"static": True})
    """Of each turn the number of its value; by default each value has a turn."""

    @classmethod
    def of(cls, turns: Sequence[Hashable], make: Callable[[Any], Any]) -> "Cycle":
        """Make a value for each turn of what tells it from others: one for all turns that are equal, one branch."""
        kinds = [*dict.fromkeys(turns)]
        return cls(tuple(map(make, kinds)), tuple(map(kinds.index, turns)))

    @property
    def turns(self) -> tuple[int, ...]:
        """The number of each turn's value."""
        return tuple(range(len(self.values))) if self.order is None else self.order

    def at(self, turn: int) -> Any:
        """Return the value of a layer by its number."""
        return self.values[self.turns[turn % len(self.turns)]]


def init_stack(make: Callable[[nnx.Rngs], nnx.Module], depth: int, *, key: PRNGKeyArray) -> Any:
    """Make `depth` blocks as one, each from its own key.

    Args:
      make: builds one block from its `nnx.Rngs`.

    Raises:
      ValueError: a depth below 1, or blocks that keep what changes from call to call, as `nnx.Dropout` does.
    """
    if depth < 1:
        raise ValueError(f"a stack needs at least one block, got depth {depth}")

    def one(k: PRNGKeyArray) -> nnx.Module:
        block = make(nnx.Rngs(k))
        check_stateless(block)
        return block

    return jax.vmap(one)(jax.random.split(key, depth))


def stack_depth(blocks: Any) -> int:
    """Count the blocks of a stack.

    Raises:
      ValueError: what is no stack: its leaves do not share a leading axis.
    """
    if isinstance(blocks, nnx.List):
        return len(blocks)
    sizes = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(blocks)}
    if len(sizes) != 1 or () in sizes:
        raise ValueError(
            "the leaves of a stack have one leading axis in common, its layers; got "
            f"{', '.join(str(size[0]) if size else 'none' for size in sorted(sizes))}: `init_stack` makes a stack"
        )
    return sizes.pop()[0]


def layer(blocks: Any, index: int) -> Any:
    """Take one block out of a stack; a negative index counts from its end.

    Raises:
      IndexError: when there is no such layer.
    """
    depth, index = stack_depth(blocks), operator.index(index)
    if not -depth <= index < depth:
        raise IndexError(f"a layer must be in -{depth} … {depth - 1}, got {index}")
    if isinstance(blocks, nnx.List):
        return blocks[index]
    return jax.tree.map(lambda leaf: leaf[index], blocks)


def unstack(blocks: Any) -> nnx.List:
    """Take a stack apart, for loops that use it many times on a CPU.

    There every use of a stack copies each block's weights out of it, which in decoding costs as much as the
    products with them. Training and accelerators have no use for it.
    """
    return nnx.List([layer(blocks, i) for i in range(stack_depth(blocks))])


def map_stack(function: Callable[[Any], Any], blocks: Any) -> Any:
    """Apply a function to every block; results are stacked, or a tuple where the blocks are taken apart."""
    if isinstance(blocks, nnx.List):
        return tuple(function(block) for block in blocks)
    return jax.vmap(function)(blocks)


@implicit("x")
@reused
def apply_stack(
    blocks: Any,
    x: Any,
    *args: Any,
    key: PRNGKeyArray | None = None,
    unroll: int | bool = 1,
    remat: str = "none",
    **kwargs: Any,
) -> Any:
    """Run x through the blocks in order, as one `lax.scan` over the layer axis.

    Blocks that `unstack` took apart run one after another; what has a layer axis is then a tuple. Under a mesh whose
    axis `pipeline` is larger than 1 a stack is a pipeline, with the same result: see `run_pipeline`.

    Args:
      x: hidden states, or any pytree of arrays that each block takes and gives.
      args, kwargs: passed to every block; what is wrapped in `PerLayer` is sliced, one entry for each, and of what is
        in a `Cycle` they take turns.
      key: split, one for each block.
      unroll: blocks per loop iteration; True for no loop. The result is the same, compile time and speed differ.
      remat: a name in `REMAT`: what the backward pass keeps rather than computes again.

    Raises:
      ValueError: for a remat policy that is unknown or that the device has no memory for, blocks that are no stack or
        that keep what changes from call to call, a `PerLayer` that has not one entry for each, or rows, layers or turns
        of a `Cycle` that a pipeline cannot share out.
    """
    check_remat(remat)
    given = _Given.of(blocks, args, kwargs)
    layers = [blocks, _keys(blocks, key), *given.sliced]

    def run(x: Any, layers: list, shared: list) -> Any:
        step = _step(given, shared)
        return given.over(blocks, unroll, remat)(lambda turn, x, layers: (step(turn, x, layers), None), x, layers)[0]

    if pipeline_stages() > 1 and not isinstance(blocks, nnx.List):
        _check_stage(stack_depth(blocks), len(given.turns))
        return run_pipeline(run, x, layers, given.shared, given.names(blocks))
    return run(x, layers, given.shared)


@implicit("x")
@reused
def every_layer(
    blocks: Any,
    x: Array,
    *args: Any,
    key: PRNGKeyArray | None = None,
    unroll: int | bool = 1,
    remat: str = "none",
    **kwargs: Any,
) -> Array:
    """Run x through the blocks as `apply_stack` does, and give what each of them gives, on a leading layer axis.

    It is no pipeline on any mesh.

    Args:
      args, kwargs, key, unroll, remat: as for `apply_stack`.

    Raises:
      ValueError: as `apply_stack`.
    """
    check_remat(remat)
    given = _Given.of(blocks, args, kwargs)
    step = _step(given, given.shared)

    def kept(turn: int, x: Array, layers: list) -> tuple[Array, Array]:
        y = step(turn, x, layers)
        return y, y

    found = given.over(blocks, unroll, remat)(kept, x, [blocks, _keys(blocks, key), *given.sliced])[1]
    return jnp.stack(found) if isinstance(found, tuple) else found


@implicit("x")
@reused
def observe_stack(
    blocks: Any,
    x: Array,
    *args: Any,
    key: PRNGKeyArray | None = None,
    unroll: int | bool = 1,
    remat: str = "none",
    **kwargs: Any,
) -> tuple[Array, Any]:
    """Run x through the `observe` of each block; return the auxiliary outputs of each beside, on a leading layer axis.

    A block's `observe` is called as the block is and gives `(y, aux)`: `aux` is any pytree of arrays, the same from
    every block, such as the losses of a router. It is differentiated like the rest, and of several blocks that
    `unstack` took apart it is a tuple.

    Args:
      args, kwargs, key, unroll, remat: as for `apply_stack`.

    Raises:
      ValueError: as `apply_stack`; and on a mesh whose axis `pipeline` is larger than 1, as stages pass on hidden
        states alone.
    """
    check_remat(remat)
    if pipeline_stages() > 1 and not isinstance(blocks, nnx.List):
        raise ValueError(
            f"the stages of a pipeline pass on hidden states, and nothing that blocks tell beside: {spelled('layers')} "
            f"must be 1, got {pipeline_stages()}"
        )
    given = _Given.of(blocks, args, kwargs)
    step = _step(given, given.shared, _observe)
    return given.over(blocks, unroll, remat)(step, x, [blocks, _keys(blocks, key), *given.sliced])


def _call(block: Any, *args: Any, **kwargs: Any) -> Any:
    return block(*args, **kwargs)


def _observe(block: Any, *args: Any, **kwargs: Any) -> tuple[Array, Any]:
    return block.observe(*args, **kwargs)


def _keys(blocks: Any, key: PRNGKeyArray | None) -> Array | None:
    return None if key is None else jax.random.split(key, stack_depth(blocks))


def _step(given: "_Given", shared: list, call: Callable = _call) -> Callable[[int, Any, list], Any]:
    """Return what is done in each layer, whose turn in a cycle comes first."""

    def step(turn: int, x: Any, layers: list) -> Any:
        block, k, *slices = layers
        args, kwargs = given.of_block(slices, shared, turn)
        return call(block, x, *args, key=k, **kwargs)

    return step


@implicit("x")
@reused
def extend_stack(blocks: Any, x: Any, cache: Any, *args: Any, unroll: int | bool = 1, **kwargs: Any) -> tuple[Any, Any]:
    """Run x through the `extend` of each block: the next positions of sequences that the blocks' caches remember.

    Args:
      cache: a cache with a leading layer axis, or a tuple of them where the blocks are taken apart.
      args, kwargs, unroll: as for `apply_stack`.

    Raises:
      ValueError: for blocks that are no stack, or a cache or a `PerLayer` that has not one entry for each.
    """
    given = _Given.of(blocks, args, kwargs)
    check_depth("a stack's cache", cache, stack_depth(blocks), isinstance(blocks, nnx.List))

    def step(turn: int, x: Any, layers: list) -> tuple[Any, Any]:
        block, state, *slices = layers
        args, kwargs = given.of_block(slices, given.shared, turn)
        return block.extend(x, state, *args, **kwargs)

    return given.over(blocks, unroll)(step, x, [blocks, cache, *given.sliced])


@dataclass(frozen=True)
class _Given:
    """What blocks are given beside x: some of it to all of them alike, some a slice to each, some in turns."""

    named: list
    treedef: Any

    @classmethod
    def of(cls, blocks: Any, args: tuple, kwargs: dict) -> "_Given":
        """Take arguments apart, and raise ValueError for what is no stack, or has not an entry for each block."""
        check_stateless(blocks)
        depth = stack_depth(blocks)
        given = cls(*jax.tree_util.tree_flatten_with_path((args, kwargs), is_leaf=_is_per_layer))
        for value in given.sliced:
            check_depth("what is wrapped in PerLayer", value, depth, isinstance(blocks, nnx.List))
        return given

    @property
    def turns(self) -> tuple[int, ...]:
        """Of each turn, until all cycles begin again, the first that gives blocks the same values."""
        nodes = jax.tree.leaves(self.treedef.unflatten([leaf for _, leaf in self.named]), is_leaf=_is_marked)
        cycles = [node.turns for node in nodes if isinstance(node, Cycle)]
        given = [[each[turn % len(each)] for each in cycles] for turn in range(math.lcm(*map(len, cycles)))]
        return tuple(map(given.index, given))

    @property
    def shared(self) -> list:
        return [leaf for _, leaf in self.named if not _is_per_layer(leaf)]

    @property
    def sliced(self) -> list:
        return [leaf.value for _, leaf in self.named if _is_per_layer(leaf)]

    def of_block(self, slices: list, shared: list, turn: int) -> tuple[tuple, dict]:
        """Return the arguments of a block from its slices, from what all are given, and whose turn it is."""
        slices, rest = iter(slices), iter(shared)
        whole = self.treedef.unflatten([next(slices if _is_per_layer(leaf) else rest) for _, leaf in self.named])

        def own(node):
            return node.at(turn) if isinstance(node, Cycle) else node

        return jax.tree.map(own, whole, is_leaf=_is_marked)

    def over(self, blocks: Any, unroll: int | bool, remat: str = "none") -> Callable:
        """Return the loop over layers, of `step(turn, x, layers) -> (x, state)`."""
        loop = _one_by_one if isinstance(blocks, nnx.List) else partial(_scan, self.turns)
        return partial(loop, unroll, remat)

    def names(self, blocks: Any) -> list[str | None]:
        """Name what all blocks are given: the fields of masks, and else the arguments."""
        return [_argument(path, blocks) for path, leaf in self.named if not _is_per_layer(leaf)]


def _kept(step: Callable, unroll: int | bool, remat: str) -> Callable:
    """Return a step, whose turn is static, that keeps for the backward pass what `remat` says."""
    if remat == "none":
        return step
    return jax.checkpoint(step, policy=REMAT[remat], prevent_cse=unroll is True, static_argnums=0)


def _scan(turns: tuple, unroll: int | bool, remat: str, step: Callable, x: Any, layers: list) -> tuple[Any, Any]:
    """Scan over layers, of which each takes the branch of its turn.

    Args:
      turns: of each turn of a cycle the first that is like it.
    """
    kinds = sorted({*turns})
    if len(kinds) == 1:
        return jax.lax.scan(partial(_kept(step, unroll, remat), 0), x, layers, unroll=unroll)
    chosen = jnp.asarray([kinds.index(turns[i % len(turns)]) for i in range(stack_depth(layers[0]))])
    branches = [partial(_kept(step, unroll, remat), turn) for turn in kinds]

    def one(x: Any, layers: list) -> tuple[Any, Any]:
        kind, *layers = layers
        return jax.lax.switch(kind, branches, x, layers)

    # What a branch is given, weights too, it would give back for the backward pass, a copy from each layer, were it not
    # for a checkpoint around all branches; what one computes again for its own backward pass it does in one piece.
    policy = REMAT[remat] or jax.checkpoint_policies.everything_saveable
    around = jax.checkpoint(one, policy=policy, prevent_cse=unroll is True)
    return jax.lax.scan(around, x, [chosen, *layers], unroll=unroll)


def _one_by_one(unroll: int | bool, remat: str, step: Callable, x: Any, layers: list) -> tuple[Any, tuple]:
    """Scan over tuples and lists, an entry for each layer, rather than arrays."""
    after, step = [], _kept(step, unroll, remat)
    for i in range(len(layers[0])):
        x, state = step(i, x, [None if part is None else part[i] for part in layers])
        after.append(state)
    return x, tuple(after)


def _check_stage(depth: int, period: int) -> None:
    """Raise ValueError where the stages of a pipeline would begin at other turns than the stack has there."""
    if depth // pipeline_stages() % period:
        raise ValueError(
            "the layers of a pipeline's stage must be a multiple of the turns of a Cycle, got "
            f"L={depth // pipeline_stages()}, {period} turns"
        )


def _is_per_layer(leaf: Any) -> bool:
    return isinstance(leaf, PerLayer)


def _is_marked(leaf: Any) -> bool:
    return isinstance(leaf, PerLayer | Cycle)


def _argument(path: tuple, blocks: Any) -> str | None:
    """Name what a block is given: the field of a mask, else the argument; `path` begins with 0 or 1 (args, kwargs)."""
    fields = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey) and key.name != "values"]  # Cycle's
    if fields or isinstance(path[1], jax.tree_util.DictKey):
        return fields[-1] if fields else path[1].key
    return list(inspect.signature(type(blocks).__call__).parameters)[2 + path[1].idx]
