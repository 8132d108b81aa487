"""FLOPs of a program, counted by walking its jaxpr: nothing is allocated, nothing runs.

A multiplication and an addition are two. Counted are matrix products and convolutions; norms, softmax, activations and
the optimizer are left out. A loop counts as often as it turns, of several branches the costliest, and what
`jax.checkpoint` computes again is kept apart: model FLOPs leave it out (Chowdhery et al. 2022,
https://arxiv.org/abs/2204.02311, appendix B).

What the walk counts is what the program multiplies. So attention counts in full under a causal mask too; decoding
counts all that a cache has room for, at every token; the rows that fill a chunk or a block up count as well.

XLA's own cost analysis is no help: it counts a loop's body once.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval
from jax.sharding import AbstractDevice, AbstractMesh

from flax_transformer.bench.trip_count import after_loop, fold, turns
from flax_transformer.named_scope import module_path
from flax_transformer.ops.convolution import SHIFTED
from flax_transformer.ops.dropless import EXPECTED
from flax_transformer.ops.marked import scan_inputs
from flax_transformer.ops.remat import AGAIN

LAYERS = 1_024
"""Of longer vectors of whole numbers nothing is known: they are no loop's over layers."""


class FlopCategory(NamedTuple):
    """What FLOPs are counted apart by."""

    dtype: str
    """What is multiplied."""
    again: bool = False
    """Whether it is computed again."""
    module: str = ""
    """Whose they are: see `scope.module_path`."""


Count = Counter[FlopCategory]


@dataclass(frozen=True)
class Flops:
    """What one call of a program multiplies and adds, on all devices together."""

    model: int
    """FLOPs that the result needs, each counted once."""
    again: int = 0
    """FLOPs of what is computed again, rather than kept, for the backward pass."""
    dtype: str = "float32"
    """What most of it is multiplied in."""
    notes: tuple[str, ...] = ()
    """What the walk could not know, in words."""
    modules: Mapping[str, int] = field(default_factory=dict, hash=False)
    """FLOPs that the result needs by module, as `scope.module_path` names it, each counted where it is; "" is none."""

    @property
    def hardware(self) -> int:
        """FLOPs that are executed."""
        return self.model + self.again


def count_flops(function: Callable, *arguments: Any) -> Flops:
    """Count the FLOPs of one call.

    Without a mesh in context the function is traced as for one CPU, where no kernel is fused, so that the count is that
    of the mathematics, the same for every device. Within `jax.set_mesh` it is traced as it is.

    Args:
      function: any function of pytrees; one that `jax.jit` gave may have static arguments.
      arguments: arrays, or `jax.ShapeDtypeStruct`s in their place.

    >>> import jax.numpy as jnp
    >>> count_flops(jnp.matmul, jnp.ones((2, 3)), jax.ShapeDtypeStruct((3, 5), jnp.float32)).model
    60
    """
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    with nullcontext() if jax.sharding.get_abstract_mesh().axis_names else alone():
        return count_jaxpr(jitted.trace(*arguments).jaxpr)


def alone() -> AbstractContextManager:
    """Return a context in which functions are traced as for one CPU, whatever mesh is set around it."""
    mesh = AbstractMesh((), (), abstract_device=AbstractDevice("cpu", None, "cpu"))
    return jax.sharding.use_abstract_mesh(mesh)


def count_jaxpr(jaxpr: core.ClosedJaxpr) -> Flops:
    """Count the FLOPs of a program that has been traced, with the kernels and over the devices it was traced for.

    What no result needs is left out, as the compiler does.
    """
    inner = jaxpr.jaxpr
    needed, _ = partial_eval.dce_jaxpr(inner, [True] * len(inner.outvars), instantiate=True)
    walk = _Walk()
    total, _ = walk.closed(core.ClosedJaxpr(needed, jaxpr.consts), _nothing(inner))
    again = sum(count for kind, count in total.items() if kind.again)
    dtypes, modules = Counter(), Counter()
    for kind, count in total.items():
        if not kind.again and count:
            dtypes[kind.dtype] += count
            modules[kind.module] += count
    most = dtypes.most_common(1)
    return Flops(dtypes.total(), again, most[0][0] if most else "float32", tuple(walk.notes), dict(modules))


class _Walk:
    """Goes through a jaxpr and what it calls; whole numbers that follow from constants are known on the way."""

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}

    def closed(self, jaxpr: Any, known: Sequence) -> tuple[Count, list]:
        """Count a jaxpr with these inputs, None for what is not known; give also what is known of its results."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        values = dict(zip(inner.invars, known, strict=True))
        values |= {var: _number(const) for var, const in zip(inner.constvars, getattr(jaxpr, "consts", ()))}  # noqa: B905

        def read(atom: Any) -> Any:
            return _number(atom.val) if isinstance(atom, core.Literal) else values.get(atom)

        total: Count = Counter()
        for eqn in inner.eqns:
            counted, results = self.equation(eqn, [read(atom) for atom in eqn.invars])
            if counted:
                # The backward pass of a checkpoint marks itself what it computes again.
                marks = not eqn.params.get("differentiated")
                total.update(_placed(counted, str(eqn.source_info.name_stack), marks))
            values.update(zip(eqn.outvars, results, strict=True))
        return total, [read(atom) for atom in inner.outvars]

    def equation(self, eqn: Any, known: list) -> tuple[Count, list]:
        """Count one equation; give also what is known of its results."""
        name, params, unknown = eqn.primitive.name, eqn.params, [None] * len(eqn.outvars)
        if name in RULES:
            return Counter({FlopCategory(str(eqn.invars[0].aval.dtype)): RULES[name](eqn)}), unknown
        if name == "mul" and SHIFTED in str(eqn.source_info.name_stack):  # a convolution, written out
            return Counter(
                {FlopCategory(str(eqn.invars[0].aval.dtype)): 2 * math.prod(eqn.outvars[0].aval.shape)}
            ), unknown
        if name == "scan":
            return self.scan(params, known)
        if name == "while":
            return self.loop(eqn, known)
        if name == "cond":
            branches = params["branches"] if known[0] is None else params["branches"][known[0] :][:1]
            return max((self.closed(each, known[1:])[0] for each in branches), key=Counter.total), unknown
        if name == "pallas_call":
            return self.kernel(params), unknown
        if name == "shard_map":
            axes = params["newly_manual_axes"] if "newly_manual_axes" in params else params["manual_axes"]
            devices = math.prod(params["mesh"].shape[axis] for axis in axes)
            return _times(self.closed(params["jaxpr"], known)[0], devices), unknown
        inside = list(core.jaxprs_in_params(params))
        if len(inside) == 1 and len(_open(inside[0]).invars) == len(known):  # a call
            return self.closed(inside[0], known)
        if not inside:
            if "call" in name and not name.startswith("debug"):
                self.notes[f"a {name} is not counted: what is in it cannot be seen"] = None
            return Counter(), fold(name, known) or unknown
        return _sum(self.closed(each, _nothing(each))[0] for each in inside), unknown

    def scan(self, params: dict, known: list) -> tuple[Count, list]:
        """Count a loop over leading axes, each turn with what is known of its slices; give what is known of results."""
        body, length, (stay, carried) = params["jaxpr"], params["length"], scan_inputs(params)
        fixed, slices = [*known[:stay], *[None] * carried], known[stay + carried :]
        columns = [[None] * length if values is None else values for values in slices]
        each_turn = list(zip(*columns, strict=True)) or [()] * length
        counted = {turn: self.closed(body, [*fixed, *turn]) for turn in {*each_turn}}
        total = _sum(_times(counted[turn][0], often) for turn, often in Counter(each_turn).items())
        results = [counted[turn][1][carried:] for turn in each_turn]
        made = [None if None in values else values for values in zip(*results, strict=True)]
        return total, [*[None] * carried, *made] if each_turn else [None] * len(_open(body).outvars)

    def loop(self, eqn: Any, known: list) -> tuple[Count, list]:
        """Count a `while` loop as often as it can turn at the most."""
        known = [value if isinstance(value, int) else None for value in known]
        body = eqn.params["body_jaxpr"]
        once = self.closed(body, _nothing(body))[0]
        number, sure = turns(eqn, known)
        expected = re.search(rf"{EXPECTED}(\d+)", str(eqn.source_info.name_stack))
        if number is None and expected:
            self.notes["experts are counted as if tokens chose them evenly"] = None
            number, sure = int(expected[1]), True
        if once.total() and number is None:
            self.notes["a loop that turns nobody knows how often is counted once"] = None
        elif once.total() and not sure:
            self.notes["a loop that may end early is counted to its end"] = None
        return _times(once, 1 if number is None else number), after_loop(eqn, known, number)

    def kernel(self, params: dict) -> Count:
        """Count a Pallas kernel: its body, at every place of its grid."""
        grid = params["grid_mapping"].grid
        if not all(isinstance(size, int) for size in grid):
            self.notes["a kernel whose grid is not known is counted at one place of it"] = None
        once = self.closed(params["jaxpr"], _nothing(params["jaxpr"]))[0]
        return _times(once, math.prod(size for size in grid if isinstance(size, int)))


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _nothing(jaxpr: Any) -> list[None]:
    """Mark every input of a jaxpr as unknown."""
    return [None] * len(_open(jaxpr).invars)


def _number(value: Any) -> int | tuple[int, ...] | None:
    """Read a whole number, or a number for each turn of a loop over layers; None where it is anything else."""
    if not np.issubdtype(getattr(value, "dtype", type(value)), np.integer):
        return None
    shape = np.shape(value)
    if not shape:
        return int(value)
    return tuple(map(int, value)) if len(shape) == 1 and shape[0] <= LAYERS else None


def _times(count: Count, number: int) -> Count:
    return Counter({key: number * value for key, value in count.items()})


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, Counter())


def _placed(count: Count, scopes: str, marks: bool) -> Count:
    """Return within which modules everything is, and whether it is computed again, where that is marked."""
    # The transpose of what is computed again is its derivative, which nothing has computed before.
    again = marks and AGAIN in scopes and f"transpose({AGAIN})" not in scopes
    module, placed = module_path(scopes), Counter()
    for kind, value in count.items():
        path = "/".join(filter(None, (module, kind.module)))
        placed[FlopCategory(kind.dtype, kind.again or again, path)] += value
    return placed


def _dot(eqn: Any) -> int:
    """Count a product: every number on the left meets each that the right has along its own axes."""
    numbers = eqn.params.get("dimension_numbers") or eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    (_, contracted), (_, batch) = numbers
    groups = getattr(eqn.params.get("ragged_dot_dimension_numbers"), "rhs_group_dimensions", ())
    left, right = (atom.aval.shape for atom in eqn.invars[:2])
    shared = {*contracted, *batch, *groups}
    return 2 * math.prod(left) * math.prod(size for axis, size in enumerate(right) if axis not in shared)


def _conv(eqn: Any) -> int:
    """Count a convolution: the pairs of a place in the output and one in the kernel that meet where there is input."""
    params, numbers = eqn.params, eqn.params["dimension_numbers"]
    given, kernel = (atom.aval.shape for atom in eqn.invars)
    made = eqn.outvars[0].aval.shape
    count = 2 * made[numbers.out_spec[0]] * made[numbers.out_spec[1]] * kernel[numbers.rhs_spec[1]]
    specs = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    for axis in range(len(numbers.lhs_spec) - 2):
        shapes = zip((given, kernel, made), specs, strict=True)
        size, width, places = (shape[spec[axis + 2]] for shape, spec in shapes)
        place = np.arange(places)[:, None] * params["window_strides"][axis] - params["padding"][axis][0]
        place = place + np.arange(width) * params["rhs_dilation"][axis]
        between = params["lhs_dilation"][axis]
        count *= int(np.sum((place >= 0) & (place <= (size - 1) * between) & (place % between == 0)))
    return count


def _fused(products: int) -> Callable[[Any], int]:
    """Count attention that cuDNN computes: so many products of T × S × H a row and head."""

    def count(eqn: Any) -> int:
        query, key = (atom.aval.shape for atom in eqn.invars[:2])
        positions = 2 if eqn.params["layout"] else 1  # [B, N, T, H] or [B, T, N, H]
        return 2 * products * math.prod(query) * key[positions]

    return count


RULES: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot,
    "ragged_dot_general": _dot,
    "conv_general_dilated": _conv,
    "dot_product_attention_fwd_wrapper": _fused(2),
    "dot_product_attention_bwd_wrapper": _fused(4),
}
"""How many FLOPs a primitive needs, from its equation; attention's backward pass without what it computes again."""
