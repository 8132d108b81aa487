"""Evaluate a function whose values are marked by name: the interpreter under `capture` and `inside.intervene`.

A function marks a value by `jax.ad_checkpoint.checkpoint_name(x, name)`, which costs nothing when compiled. The trace,
a jaxpr, is evaluated (https://docs.jax.dev/en/latest/notebooks/Writing_custom_interpreters_in_Jax.html).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
"""Primitives that only call a jaxpr: one with a chosen mark inside is evaluated in place."""

Edits = Mapping[str, Sequence[Any]]
"""By name an edit for each place that marks a value so, in program order; None leaves the value as it is."""


class Place(NamedTuple):
    """Where a function marks a value."""

    name: str
    loops: tuple[int, ...]
    """Lengths of the scans around it, the outermost first: the leading axes of what is captured there."""
    shape: tuple[int, ...]
    """Of the value, without those."""
    dtype: Any


class Marked(NamedTuple):
    """A function's jaxpr, and how to give back what it returns."""

    jaxpr: Any
    treedef: Any

    @classmethod
    def of(cls, f: Callable, args: tuple) -> "Marked":
        """Trace f."""
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
        return cls(closed, jax.tree.structure(shape))

    def places(self) -> list[Place]:
        """Return where values are marked, in program order."""
        return [*_places(self.jaxpr.jaxpr, ())]

    def run(self, args: tuple, keep: Callable[[str], bool], edits: Edits) -> tuple[Any, dict[str, list]]:
        """Return what f returns, with values replaced by what edits make of them, and the values to keep by name.

        Raises:
          ValueError: when a mark is where it may run any number of times, or an edit changes a shape.
        """
        found, values = _evaluate(*_open(self.jaxpr), jax.tree.leaves(args), keep, edits)
        found = [each if isinstance(each, jax.Array) else jnp.asarray(each) for each in found]  # constants
        return jax.tree.unflatten(self.treedef, found), values


def _places(jaxpr: Any, loops: tuple[int, ...]) -> Iterator[Place]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "name":
            aval = eqn.invars[0].aval
            yield Place(eqn.params["name"], loops, aval.shape, aval.dtype)
        inner = (*loops, eqn.params["length"]) if eqn.primitive.name == "scan" else loops
        for part in _parts(eqn):
            yield from _places(part, inner)


def _evaluate(
    jaxpr: Any, consts: Sequence, args: Sequence, keep: Callable, edits: Edits
) -> tuple[list, dict[str, list]]:
    """Run a jaxpr; return its results and the values to keep."""
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    values: dict[str, list] = {}
    passed: Counter = Counter()
    for eqn in jaxpr.eqns:
        inputs = [_read(env, atom) for atom in eqn.invars]
        inside = Counter(_names(eqn))
        own = {name: edits[name][passed[name] : passed[name] + n] for name, n in inside.items() if name in edits}
        passed.update(inside)
        outputs, found = _apply(jaxpr, eqn, inputs, keep, own)
        for name, more in found.items():
            values[name] = values.get(name, []) + more
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [_read(env, atom) for atom in jaxpr.outvars], values


def _apply(jaxpr: Any, eqn: Any, inputs: list, keep: Callable, edits: Edits) -> tuple[list, dict[str, list]]:
    kind, edits = eqn.primitive.name, {name: each for name, each in edits.items() if any(e is not None for e in each)}
    chosen = [name for name in _names(eqn) if keep(name) or name in edits]
    if not chosen:
        return _bind(jaxpr, eqn, inputs), {}
    if kind == "name":
        (name,) = chosen
        inputs = [_edited(name, inputs[0], edits[name][0])] if name in edits else inputs
        return inputs, {name: inputs} if keep(name) else {}
    if kind == "scan":
        return _scan(eqn.params, inputs, keep, edits)
    if kind in CALLS:
        part = next(eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params)
        return _evaluate(*_open(part), inputs, keep, edits)
    if kind == "cond" and len(_parts(eqn)) == 1:
        index, *operands = inputs
        branches = [partial(_evaluate, *_open(part), keep=keep, edits=edits) for part in eqn.params["branches"]]
        return jax.lax.switch(index, branches, operands)
    raise ValueError(
        f"a value that is captured or edited must not be inside {kind!r}, which may run any number of times, got "
        f"{chosen[0]!r}"
    )


def _edited(name: str, value: Any, edit: Callable) -> Any:
    """Return what an edit makes of a value, marked as the value was."""
    made = jnp.asarray(edit(value))
    if made.shape != value.shape:
        raise ValueError(f"an edit must keep the shape of {name}, {value.shape}, got {made.shape}")
    return checkpoint_name(made.astype(value.dtype), name)


def _scan(params: dict, inputs: list, keep: Callable, edits: Edits) -> tuple[list, dict[str, list]]:
    """Run a scan whose body also returns what it keeps, and edits with the leaves' slices."""
    consts, carry = scan_inputs(params)
    fixed, start, xs = inputs[:consts], inputs[consts : consts + carry], inputs[consts + carry :]

    def body(state, slices):
        slices, own = slices
        outputs, inside = _evaluate(*_open(params["jaxpr"]), [*fixed, *state, *slices], keep, own)
        return outputs[:carry], (outputs[carry:], inside)

    options = {option: params[option] for option in ("length", "reverse", "unroll")}
    end, (ys, inside) = jax.lax.scan(body, start, (xs, _sliced(edits, params["length"])), **options)
    return [*end, *ys], inside


def scan_inputs(params: Mapping[str, Any]) -> tuple[int, int]:
    """Count the inputs of a scan that stay and those that are carried; the others are sliced."""
    if "ft_in" in params:  # jax 0.12
        return tuple(len(part) for part in params["ft_in"].unpack()[:2])
    return params["num_consts"], params["num_carry"]


def _sliced(edits: Any, length: int) -> Any:
    """Check that leaves of edits, a pytree, have an entry for each turn of a scan, or one for all."""

    def spread(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if not leaf.ndim or leaf.shape[0] not in (1, length):
            raise ValueError(
                f"an edit inside a scan needs an entry for each of its {length} layers on the first axis, or one for "
                f"all, got shape {leaf.shape}"
            )
        return jnp.broadcast_to(leaf, (length, *leaf.shape[1:]))

    return jax.tree.map(spread, edits)


def _bind(jaxpr: Any, eqn: Any, inputs: list) -> list:
    """Run one equation as it is, as a jaxpr of its own."""
    given = {atom: value for atom, value in zip(eqn.invars, inputs, strict=True) if not isinstance(atom, core.Literal)}
    alone = jaxpr.replace(constvars=[], invars=[*given], outvars=[*eqn.outvars], eqns=[eqn], debug_info=None)
    return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*given.values())


def _names(eqn: Any) -> Iterator[str]:
    """Return the names of what an equation marks, in program order."""
    if eqn.primitive.name == "name":
        yield eqn.params["name"]
    for part in _parts(eqn):
        for inner in part.eqns:
            yield from _names(inner)


def _parts(eqn: Any) -> list[Any]:
    """List the jaxprs of an equation; of branches that mark the same values, the first stands for whichever runs."""
    parts = [_open(part)[0] for part in core.jaxprs_in_params(eqn.params)]
    alike = eqn.primitive.name == "cond" and len({tuple(_places(part, ())) for part in parts}) == 1
    return parts[:1] if alike else parts


def _open(jaxpr: Any) -> tuple[Any, Sequence]:
    """Split a jaxpr from its constants, if it has any."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def _read(env: dict, atom: Any) -> Any:
    return atom.val if isinstance(atom, core.Literal) else env[atom]
