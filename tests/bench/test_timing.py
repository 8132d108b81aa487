"""What is counted and kept apart; no test here asserts a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.bench import Compilations, Program, measure, spread, time_calls


def test_a_function_called_with_two_shapes_compiles_twice():
    function = jax.jit(lambda x: jnp.tanh(x) * 1.25)
    inputs = [np.ones(3, np.float32), np.ones(4, np.float32)]
    with Compilations() as compiled:
        for x in (*inputs, *inputs):
            function(x)
    assert compiled.count == 2


def test_compilations_outside_of_the_block_do_not_count():
    with Compilations() as compiled:
        pass
    jax.jit(lambda x: x * 3.5)(np.ones(3, np.float32))
    assert compiled.count == 0


def test_a_program_that_changes_its_shapes_is_caught():
    grow = jax.jit(lambda x: x + 1)
    growing = Program(grow, (np.zeros(1, np.float32),), advance=lambda a, r: (np.zeros(len(a[0]) + 1, np.float32),))
    steady = Program(grow, (np.zeros(1, np.float32),))
    assert measure(growing, 2).recompiles >= 5
    assert measure(steady, 2).recompiles == 0


def test_a_donating_program_is_fed_its_results_and_every_step_counts():
    step = jax.jit(lambda state, x: ({"n": state["n"] + x}, state["n"].sum()), donate_argnums=0)
    seen = []
    program = Program(
        step,
        ({"n": jnp.zeros(1000)}, jnp.float32(1)),
        advance=lambda arguments, result: (result[0], arguments[1]),
        watch=lambda result: seen.append(result[1]) or result[1],
        ahead=1,
    )
    measured = measure(program, 4)
    assert measured.steps == 4
    assert measured.leaves == 2
    # The first run, three to warm up, one whose end starts the clock, four, and one the host is ahead.
    assert [float(total) for total in seen] == [1000.0 * n for n in range(1, 1 + 9)]
    assert measured.output_bytes < 1000 * 4  # the new state lies where the old one lay
    assert measured.argument_bytes >= 4004


def test_memory_is_the_programs():
    x = jnp.ones((64, 64))
    product = measure(Program(jax.jit(lambda x: jnp.sin(x @ x) @ x), (x,)), 1)
    assert product.argument_bytes == product.output_bytes == 64 * 64 * 4
    assert product.temporary_bytes >= 64 * 64 * 4
    assert product.peak_bytes == product.argument_bytes + product.output_bytes + product.temporary_bytes


def test_the_second_compilation_comes_from_the_persistent_cache():
    measured = measure(Program(jax.jit(lambda x: jnp.cos(x) @ x), (jnp.ones((8, 8)),)), 1)
    assert measured.compile_cached is not None
    assert jax.config.jax_compilation_cache_dir is None  # and is forgotten


def test_cache_settings_come_back_after_a_failure():
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    with pytest.raises(ZeroDivisionError):
        measure(Program(jax.jit(lambda x: x / (1 // 0)), (1.0,)), 1)
    assert jax.config.jax_persistent_cache_min_compile_time_secs == before
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize("steps", [0, -1])
def test_steps_are_positive(steps):
    with pytest.raises(ValueError, match=f"steps must be a positive number, got {steps}"):
        measure(Program(jax.jit(jnp.sin), (1.0,)), steps)


def test_spread_is_numpys():
    values = np.random.default_rng(0).random(37)
    found = spread(values.tolist())
    np.testing.assert_allclose([found.low, found.median, found.high], np.percentile(values, [5, 50, 95]))
    assert spread([2.0]).low == spread([2.0]).high == 2.0


def test_calls_are_made_at_least_so_often():
    calls = []
    time_calls(lambda: calls.append(1), seconds=0.0, least=7)
    assert len(calls) == 2 + 7
