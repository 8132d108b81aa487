"""Whose memory it is at the peak: programs whose peak is known, and the compiler's own total."""

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.bench import Program, measure, time_program
from flax_transformer.bench.memory import ARGUMENTS, RESULTS, OutOfMemoryError, memory_by_module

SIDE = 256
WHOLE = 4 * SIDE * SIDE


def planned(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    return memory_by_module(compiled), compiled.memory_analysis()


def test_what_a_loop_keeps_for_the_backward_pass_is_its_modules():
    """Of six turns each keeps its result, in one buffer that is made before the loop."""

    def run(x, weights):
        def turn(x, w):
            with jax.named_scope("Layer"):
                return jnp.tanh(x @ w), None

        return jnp.sum(jax.lax.scan(turn, x, weights)[0])

    found, memory = planned(jax.grad(run), jnp.ones((SIDE, SIDE)), jnp.ones((6, SIDE, SIDE)))
    assert found[ARGUMENTS] == memory.argument_size_in_bytes == 7 * WHOLE
    assert found["Layer"] >= 6 * WHOLE
    held = sum(size for name, size in found.items() if name not in (ARGUMENTS, RESULTS))
    assert 0.99 * memory.temp_size_in_bytes <= held <= memory.temp_size_in_bytes


def test_only_what_is_alive_at_the_peak_counts():
    """The large product is gone when the small one is made."""

    def run(x):
        with jax.named_scope("Large"):
            large = jnp.sin(jnp.outer(x, x)) @ jnp.outer(x, x + 1)
        with jax.named_scope("Small"):
            return jnp.sum(jnp.sort(large.sum(0)))

    found, _ = planned(run, jnp.ones(SIDE))
    assert found["Large"] >= 2 * WHOLE
    assert found.get("Small", 0) < WHOLE / 10


def greedy(x):
    with jax.named_scope("Greedy"):
        return jnp.sort(jnp.sin(x * jax.lax.iota(jnp.float32, 2**40)))[:3]


@pytest.mark.rotates
def test_who_runs_out_of_memory_is_told_whose_it_is():
    with pytest.raises(
        OutOfMemoryError, match=r"needs more memory than there is: [^\n]*\nat its peak, a device:\nGreedy +4.40 TB"
    ):
        time_program(Program(jax.jit(greedy), (jnp.ones(()),)), 1)


def test_other_failures_stay_what_they_are(monkeypatch):
    monkeypatch.setattr("flax_transformer.bench.device.measured_peak", lambda dtype: 1e12)

    def fail(x):
        return jax.pure_callback(lambda x: 1 / 0, jax.ShapeDtypeStruct((), "float32"), x)

    with pytest.raises(jax.errors.JaxRuntimeError, match="division by zero"):
        measure(fail, jnp.ones(()), steps=1)
