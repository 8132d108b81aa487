"""Evaluate a function whose values are marked by name: the interpreter under `capture` and `inside.intervene`.

A function marks a value by `jax.ad_checkpoint.checkpoint_name(x, name)`, which costs nothing when compiled. The trace,
a jaxpr, is evaluated (https://docs.jax.dev/en/latest/notebooks/Writing_custom_interpreters_in_Jax.html).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
"""Primitives that only call a jaxpr: one with a chosen mark inside is evaluated in place."""

IN_TURNS = "layers_in_turns"
"""Begin of the name of a call that has several layers in one round of its loop: see `in_turns`."""

Edits = Mapping[str, Sequence[Any]]
"""By name an edit for each place that marks a value so, in program order; None leaves the value as it is."""


def in_turns(function: Callable, depth: int, period: int) -> Callable:
    """Name a function that runs layers, `period` of them in each round of one scan, and those that are left after it.

    What the layers mark is then one value of all layers in their order, as it is of a scan with a layer a round.

    Args:
      depth: how many layers there are.
    """

    def call(*args):
        return function(*args)

    call.__name__ = f"{IN_TURNS}_{period}_of_{depth}"
    return jax.jit(call)


class Turns(NamedTuple):
    """How layers are laid out that take turns."""

    period: int
    depth: int

    @classmethod
    def of(cls, eqn: Any) -> "Turns | None":
        """Read the name of a call; None of any other equation."""
        name = str(eqn.params.get("name", "")) if eqn.primitive.name in CALLS else ""
        if not name.startswith(IN_TURNS):
            return None
        period, _, depth = name.removeprefix(f"{IN_TURNS}_").partition("_of_")
        return cls(int(period), int(depth))

    @property
    def whole(self) -> int:
        """Layers that are in the scan."""
        return self.depth - self.depth % self.period

    @property
    def written(self) -> int:
        """Layers that are written out: those of one round, and those that are left."""
        return (self.period if self.whole else 0) + self.depth - self.whole

    def each(self, count: int) -> int:
        """Return how many values a layer marks by a name, of which so many are written out."""
        return count // self.written

    def join(self, values: list[jax.Array]) -> list[jax.Array]:
        """Return the values of all layers, of those that are written out."""
        each = self.each(len(values))
        layers = [values[i * each : (i + 1) * each] for i in range(self.written)]
        rounds, rest = (layers[: self.period], layers[self.period :]) if self.whole else ([], layers)
        return [
            jnp.concatenate(
                ([jnp.stack([turn[at] for turn in rounds], 1).reshape(-1, *rounds[0][at].shape[1:])] if rounds else [])
                + [layer[at][None] for layer in rest]
            )
            for at in range(each)
        ]

    def part(self, edits: Sequence[Any]) -> list[Any]:
        """Return the edits of values that are written out, of those of all layers."""
        layers = [slice(turn, self.whole, self.period) for turn in range(self.period if self.whole else 0)]
        layers += range(self.whole, self.depth)
        spread = [_sliced(edit, self.depth) for edit in edits]
        return [jax.tree.map(lambda leaf, at=at: leaf[at], edit) for at in layers for edit in spread]

    def places(self, found: list["Place"], outside: int) -> list["Place"]:
        """Return the places of all layers, of those that are written out inside so many loops."""
        first = found[: len(found) // self.written]
        behind = outside + (1 if self.whole else 0)
        return [each._replace(loops=(*each.loops[:outside], self.depth, *each.loops[behind:])) for each in first]


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
        found = [place for part in core.jaxprs_in_params(eqn.params) for place in _places(part, inner)]
        turns = Turns.of(eqn)
        yield from found if turns is None else turns.places(found, len(loops))


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
        part, turns = next(eqn.params[key] for key in ("jaxpr", "call_jaxpr") if key in eqn.params), Turns.of(eqn)
        if turns is None:
            return _evaluate(*_open(part), inputs, keep, edits)
        # Named as it was, for those who look inside of this.
        evaluate = in_turns(
            lambda inputs, edits: _evaluate(*_open(part), inputs, keep, edits), turns.depth, turns.period
        )
        outputs, found = evaluate(inputs, {name: turns.part(each) for name, each in edits.items()})
        return outputs, {name: turns.join(values) for name, values in found.items()}
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
    if "ft_in" in params:  # jax 0.12
        consts, carry = (len(part) for part in params["ft_in"].unpack()[:2])
    else:
        consts, carry = params["num_consts"], params["num_carry"]
    fixed, start, xs = inputs[:consts], inputs[consts : consts + carry], inputs[consts + carry :]

    def body(state, slices):
        slices, own = slices
        outputs, inside = _evaluate(*_open(params["jaxpr"]), [*fixed, *state, *slices], keep, own)
        return outputs[:carry], (outputs[carry:], inside)

    options = {option: params[option] for option in ("length", "reverse", "unroll")}
    end, (ys, inside) = jax.lax.scan(body, start, (xs, _sliced(edits, params["length"])), **options)
    return [*end, *ys], inside


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
    found = [name for part in core.jaxprs_in_params(eqn.params) for inner in part.eqns for name in _names(inner)]
    turns = Turns.of(eqn)
    yield from found if turns is None else found[: len(found) // turns.written]


def _open(jaxpr: Any) -> tuple[Any, Sequence]:
    """Split a jaxpr from its constants, if it has any."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def _read(env: dict, atom: Any) -> Any:
    return atom.val if isinstance(atom, core.Literal) else env[atom]
