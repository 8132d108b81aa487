"""Time one compiled program: how long it takes to compile, to start, and to run again and again."""

import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from flax_transformer.bench.memory import memory_by_module, out_of_memory_explained
from flax_transformer.train.compilation import MOST_CAUSES, Compilations, Watched
from flax_transformer.train.profile import Profile, Tracing

WARM_UP = 3
"""Steps before any is counted."""


@dataclass(frozen=True)
class Spread:
    """The median of several measurements, and between which values nine of ten of them lie."""

    median: float
    low: float
    high: float


def spread(values: list[float]) -> Spread:
    """Summarise measurements by median, 5th and 95th percentile.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.1, high=2.9)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    return Spread(statistics.median(values), cuts[0], cuts[-1])


@dataclass(frozen=True)
class Program:
    """A jitted function and how to call it many times."""

    function: Callable
    """What `jax.jit` gave."""
    arguments: tuple
    """Arrays; where nothing is to run, `jax.ShapeDtypeStruct`s will do."""
    advance: Callable[[tuple, Any], tuple] = lambda arguments, result: arguments
    """`advance(arguments, result)`: the next call's arguments; a program that donates its inputs needs it."""
    watch: Callable[[Any], Any] = lambda result: result
    """The part of a result that may be waited for, even when the next call takes over the rest."""
    ahead: int = 0
    """Calls the host may run ahead of the device: 0 times one call from start to end, 1 what a training loop sees."""


def make_program(function: Callable, *arguments: Any, advance: Callable[[tuple, Any], tuple] | None = None) -> Program:
    """Make a program of any function and its arguments, which is jitted unless it is.

    Args:
      advance: as `Program.advance`. Without, an argument that the function donates is next time what it has returned in
        its place: the first of its results, in their order, that has the same shapes.

    Raises:
      ValueError: it donates an argument and returns nothing like it.
    """
    jitted = function if hasattr(function, "trace") else jax.jit(function)
    if advance is None:
        places = _returned(jitted.trace(*arguments), len(arguments))

        def advance(given: tuple, result: Any) -> tuple:
            results = result if isinstance(result, tuple) else (result,)
            return tuple(results[places[i]] if i in places else value for i, value in enumerate(given))

    return Program(jitted, arguments, advance=advance)


def _returned(traced: Any, count: int) -> dict[int, int]:
    """Return, of every argument that is donated, which result takes its place."""
    given, made = traced.args_info[0], traced.out_info
    results = list(made) if isinstance(made, tuple) else [made]
    places: dict[int, int] = {}
    for i in range(count):
        leaves = jax.tree.leaves(given[i]) if i < len(given) else []
        if not any(leaf.donated for leaf in leaves):
            continue
        alike = (j for j, one in enumerate(results) if j not in places.values() and _like(one) == _like(given[i]))
        if (place := next(alike, None)) is None:
            raise ValueError(
                f"argument {i} is donated, and the function returns nothing of its shapes to give it next time; "
                "say by `advance` what the next call is given"
            )
        places[i] = place
    return places


def _like(tree: Any) -> tuple:
    return jax.tree.structure(tree), tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree))


def array_shape(arguments: tuple) -> dict[str, int]:
    """Count arrays and the numbers in them."""
    leaves = [leaf for leaf in jax.tree.leaves(arguments) if hasattr(leaf, "shape")]
    return {"arrays": len(leaves), "numbers": sum(leaf.size for leaf in leaves)}


def real(arguments: tuple) -> tuple:
    """Put arrays of random numbers, of integers zeros, where `jax.ShapeDtypeStruct`s stand for them."""

    def fill(number: int, leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        key = jax.random.key(number)
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            made = jax.random.split(key, leaf.shape)
        elif jnp.issubdtype(leaf.dtype, jnp.floating):
            made = 0.02 * jax.random.normal(key, leaf.shape, leaf.dtype)
        else:
            made = jnp.zeros(leaf.shape, leaf.dtype)
        return made if leaf.sharding is None else jax.device_put(made, leaf.sharding)

    leaves, tree = jax.tree.flatten(arguments)
    return jax.tree.unflatten(tree, [fill(number, leaf) for number, leaf in enumerate(leaves)])


@dataclass(frozen=True)
class Measurement:
    """What one program costs, in seconds and bytes."""

    trace: float
    """From Python to a jaxpr."""
    lower: float
    """From a jaxpr to StableHLO."""
    compile: float
    """From StableHLO to a program, by XLA."""
    compile_cached: float | None
    """The same with a filled persistent cache and empty memory; None where the cache did not serve."""
    first: float
    """The first run of the compiled program."""
    step: Spread
    """A run among many."""
    steps: int
    """How many `step` summarises."""
    dispatch: Spread
    """Until a call returns while the device is idle. A CPU may do work meanwhile."""
    overhead: Spread
    """A whole call of a program with the same arguments that does nothing: what each call costs beside its work."""
    leaves: int
    """Arrays among the arguments."""
    recompiles: int
    """Programs compiled after the first run; anything but 0 is a fault."""
    causes: tuple[str, ...]
    """Why, of the first of them."""
    argument_bytes: int
    output_bytes: int
    """Without those that reuse an argument's memory."""
    temporary_bytes: int
    memory_modules: dict[str, int]
    """Bytes at the program's peak by module, as `memory_by_module` gives them."""
    device_peak_bytes: int | None
    """The most the first device ever held in this process, where it tells."""

    @property
    def peak_bytes(self) -> int:
        """The most the program holds on one device: arguments, outputs and temporaries."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes


def check_steps(steps: int) -> int:
    """Refuse to measure nothing."""
    if steps < 1:
        raise ValueError(f"steps must be a positive number, got {steps}")
    return steps


def time_program(program: Program, steps: int, profile: Profile | None = None) -> Measurement:
    """Compile a program twice, the second time from a persistent cache, and run it `steps` times and a few more.

    All of JAX's compiled programs in memory are forgotten.

    Args:
      profile: calls that are traced once all is measured.
    """
    check_steps(steps)
    with _fresh_cache():
        with out_of_memory_explained():
            trace, lower, compile_, compiled = _compile(program)
        with Compilations() as cache:
            jax.clear_caches()
            *_, cached, _ = _compile(program)
        memory = compiled.memory_analysis()
        with out_of_memory_explained(compiled):
            first, result = _timed(lambda: jax.block_until_ready(compiled(*program.arguments)))
        arguments = program.advance(program.arguments, result)
        watched, causes = Watched(program.function), []
        watched.knows(*program.arguments)
        with watched:
            again = replace(program, function=lambda *given: _noted(watched, given, causes))
            times, arguments = _run(again, arguments, steps)
            dispatch, arguments = _dispatch(again, arguments)
            arguments = _trace(again, arguments, profile)
        overhead = _overhead(program, arguments)
    return Measurement(
        trace=trace,
        lower=lower,
        compile=compile_,
        compile_cached=cached if cache.found else None,
        first=first,
        step=spread(times),
        steps=steps,
        dispatch=spread(dispatch),
        overhead=spread(overhead),
        leaves=len(jax.tree.leaves(program.arguments)),
        recompiles=watched.compilations.count,
        causes=tuple(causes) or tuple(f"between calls: {name}" for name in dict.fromkeys(watched.compilations.names)),
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        temporary_bytes=memory.temp_size_in_bytes,
        memory_modules=memory_by_module(compiled),
        device_peak_bytes=(jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use"),
    )


def time_calls(function: Callable, *arguments: Any, seconds: float = 0.5, least: int = 5) -> Spread:
    """Time whole calls of a function, after two that warm it up, for about this long and at least so often."""

    def call() -> None:
        jax.block_until_ready(function(*arguments))

    call()
    call()
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        times.append(_timed(call)[0])
    return spread(times)


def _timed(function: Callable, *arguments: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    made = function(*arguments)
    return time.perf_counter() - began, made


def _compile(program: Program) -> tuple[float, float, float, Any]:
    trace, traced = _timed(program.function.trace, *program.arguments)
    lower, lowered = _timed(traced.lower)
    return trace, lower, *_timed(lowered.compile)


def _noted(watched: Watched, arguments: tuple, causes: list[str]) -> Any:
    result = watched(*arguments)
    if watched.cause and len(causes) < MOST_CAUSES:
        causes.append(watched.cause)
    return result


def _run(program: Program, arguments: tuple, steps: int) -> tuple[list[float], tuple]:
    """Run steps one after the other; a step's time is from the end of the one before it to its own."""
    ends, waiting = [], deque()
    for _ in range(WARM_UP + 1 + steps + program.ahead):
        result = program.function(*arguments)
        arguments = program.advance(arguments, result)
        waiting.append(program.watch(result))
        if len(waiting) > program.ahead:
            jax.block_until_ready(waiting.popleft())
            ends.append(time.perf_counter())
    jax.block_until_ready(list(waiting))
    ends = ends[WARM_UP:]
    return [after - before for before, after in pairwise(ends)], arguments


def _dispatch(program: Program, arguments: tuple, calls: int = 5) -> tuple[list[float], tuple]:
    times = []
    for _ in range(calls):
        took, result = _timed(program.function, *arguments)
        times.append(took)
        arguments = program.advance(arguments, jax.block_until_ready(result))
    return times, arguments


def _trace(program: Program, arguments: tuple, profile: Profile | None) -> tuple:
    """Call a program as often as its profile asks for; none without."""
    with Tracing(profile) as tracing:
        result = arguments
        for step in range(1, 1 + (profile.last if profile else 0)):
            tracing.before(step, result)
            result = program.function(*arguments)
            arguments = program.advance(arguments, result)
        jax.block_until_ready(result)
    return arguments


def _overhead(program: Program, arguments: tuple, calls: int = 30) -> list[float]:
    """Time a program of one addition that is given all the arguments, unused."""
    nothing = jax.jit(lambda *rest: jnp.zeros((), jnp.int32) + 1, keep_unused=True)
    times = [_timed(lambda: nothing(*arguments).block_until_ready())[0] for _ in range(WARM_UP + calls)]
    return times[WARM_UP:]


@contextmanager
def _fresh_cache() -> Iterator[None]:
    """Start with no compiled programs in memory and an empty persistent cache, in a folder of its own."""
    settings = {
        "jax_enable_compilation_cache": True,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    names = (*settings, "jax_compilation_cache_dir")
    before = {name: getattr(jax.config, name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        for name, value in (settings | {"jax_compilation_cache_dir": folder}).items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        jax.clear_caches()
        try:
            yield
        finally:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
