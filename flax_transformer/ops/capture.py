"""Look inside a pure function: `capture` returns the values it names on its way, without changing it.

A function marks a value by `jax.ad_checkpoint.checkpoint_name(x, name)`, which costs nothing when compiled. Reading
the marks is a transform like `jax.grad`: the function is traced to a jaxpr, and the jaxpr evaluated by an interpreter
that keeps them (https://docs.jax.dev/en/latest/notebooks/Writing_custom_interpreters_in_Jax.html).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
"""Primitives that only call a jaxpr: one with a mark inside is evaluated in place."""


def capture(f: Callable, name: str) -> Callable:
    """Make g with `g(*args) = (f(*args), values)`: the values that f marks by `name`, in program order.

    A value marked inside `jax.lax.scan` gets the loop axis in front, so the L layers of a stack are one array [L, …].
    g is as pure as f: `jit`, `vmap` and `grad` apply to it. Under `grad`, parts of f with a mark inside are
    differentiated as they are written, not by their custom rules or under `jax.checkpoint`.

    Args:
      f: a function of pytrees of arrays, modules among them.
      name: what f calls the values it marks; other marks are ignored.

    Raises:
      ValueError: by g, when f marks nothing by that name, or a mark is where it may run any number of times: inside
        `while`, `cond` and the like.

    >>> import jax.numpy as jnp
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> double = lambda x, _: (checkpoint_name(2 * x, "doubled"), None)
    >>> f = lambda x: jax.lax.scan(double, x, length=3)[0]
    >>> capture(f, "doubled")(jnp.float32(1))
    (Array(8., dtype=float32), [Array([2., 4., 8.], dtype=float32)])
    """

    def g(*args):
        result, values = capture_all(f, name.__eq__)(*args)
        if name not in values:
            marked = marks(f, *args)
            raise ValueError(f"capture needs a name of what f marks: {', '.join(marked) or 'nothing'}; got {name!r}")
        return result, values[name]

    return g


def capture_all(f: Callable, chosen: Callable[[str], bool]) -> Callable:
    """Make g with `g(*args) = (f(*args), {name: values})` as `capture` does, for all names that are chosen.

    Raises:
      ValueError: by g, when a mark is where it may run any number of times.

    >>> import jax.numpy as jnp
    >>> from jax.ad_checkpoint import checkpoint_name
    >>> f = lambda x: checkpoint_name(checkpoint_name(x + 1, "more") / 2, "half")
    >>> capture_all(f, lambda name: True)(jnp.float32(1))[1]
    {'more': [Array(2., dtype=float32)], 'half': [Array(1., dtype=float32)]}
    """

    def g(*args):
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
        found, values = _evaluate(*_open(closed), jax.tree.leaves(args), chosen)
        found = [each if isinstance(each, jax.Array) else jnp.asarray(each) for each in found]  # constants
        return jax.tree.unflatten(jax.tree.structure(shape), found), values

    return g


def marks(f: Callable, *args: Any) -> tuple[str, ...]:
    """Return the names that f marks values by when it is called so, each once, in program order.

    >>> from jax.ad_checkpoint import checkpoint_name
    >>> marks(lambda x: checkpoint_name(2 * x, "doubled"), 1.0)
    ('doubled',)
    """
    return tuple(dict.fromkeys(_marked(jax.make_jaxpr(f)(*args).jaxpr)))


def _evaluate(jaxpr: Any, consts: Sequence, args: Sequence, chosen: Callable) -> tuple[list, dict[str, list]]:
    """Run a jaxpr; return its results and the values marked."""
    env = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
    values: dict[str, list] = {}
    for eqn in jaxpr.eqns:
        inputs = [_read(env, atom) for atom in eqn.invars]
        outputs, inside = _apply(jaxpr, eqn, inputs, chosen)
        for name, found in inside.items():
            values[name] = values.get(name, []) + found
        env.update(zip(eqn.outvars, outputs, strict=True))
    return [_read(env, atom) for atom in jaxpr.outvars], values


def _apply(jaxpr: Any, eqn: Any, inputs: list, chosen: Callable) -> tuple[list, dict[str, list]]:
    kind = eqn.primitive.name
    if kind == "name" and chosen(eqn.params["name"]):
        return inputs, {eqn.params["name"]: inputs}
    inner = [name for part in core.jaxprs_in_params(eqn.params) for name in _marked(part) if chosen(name)]
    if not inner:
        return _bind(jaxpr, eqn, inputs), {}
    if kind == "scan":
        return _scan(eqn.params, inputs, chosen)
    if kind in CALLS:
        part = next(eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params)
        return _evaluate(*_open(part), inputs, chosen)
    raise ValueError(
        f"a captured value must not be inside {kind!r}, which may run any number of times, got {inner[0]!r}"
    )


def _scan(params: dict, inputs: list, chosen: Callable) -> tuple[list, dict[str, list]]:
    """Run a scan whose body also returns what it marks."""
    if "ft_in" in params:  # jax 0.12
        consts, carry = (len(part) for part in params["ft_in"].unpack()[:2])
    else:
        consts, carry = params["num_consts"], params["num_carry"]
    fixed, start, xs = inputs[:consts], inputs[consts : consts + carry], inputs[consts + carry :]

    def body(state, slices):
        outputs, inside = _evaluate(*_open(params["jaxpr"]), [*fixed, *state, *slices], chosen)
        return outputs[:carry], (outputs[carry:], inside)

    options = {option: params[option] for option in ("length", "reverse", "unroll")}
    end, (ys, inside) = jax.lax.scan(body, start, xs, **options)
    return [*end, *ys], inside


def _bind(jaxpr: Any, eqn: Any, inputs: list) -> list:
    """Run one equation as it is, as a jaxpr of its own."""
    given = {atom: value for atom, value in zip(eqn.invars, inputs, strict=True) if not isinstance(atom, core.Literal)}
    alone = jaxpr.replace(constvars=[], invars=[*given], outvars=[*eqn.outvars], eqns=[eqn], debug_info=None)
    return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*given.values())


def _marked(jaxpr: Any) -> Iterator[str]:
    """Return the names of what a jaxpr marks, in program order."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "name":
            yield eqn.params["name"]
        for part in core.jaxprs_in_params(eqn.params):
            yield from _marked(part)


def _open(jaxpr: Any) -> tuple[Any, Sequence]:
    """Split a jaxpr from its constants, if it has any."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def _read(env: dict, atom: Any) -> Any:
    return atom.val if isinstance(atom, core.Literal) else env[atom]
