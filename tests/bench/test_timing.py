"""What is counted and kept apart; no test here asserts a time."""

import importlib.util
import json
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.bench import (
    Compilations,
    Program,
    Record,
    make_program,
    measure,
    spread,
    time_calls,
    time_program,
)
from flax_transformer.bench.timing import real

KEY = jax.random.key(0).dtype


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
    found = time_program(growing, 2)
    assert found.recompiles >= 5
    assert found.causes[:2] == ("x: float32[1] → float32[2]", "x: float32[2] → float32[3]")
    found = time_program(steady, 2)
    assert (found.recompiles, found.causes) == (0, ())


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
    measured = time_program(program, 4)
    assert measured.steps == 4
    assert measured.leaves == 2
    # The first run, three to warm up, one whose end starts the clock, four, and one the host is ahead.
    assert [float(total) for total in seen] == [1000.0 * n for n in range(1, 1 + 9)]
    assert measured.output_bytes < 1000 * 4  # the new state lies where the old one lay
    assert measured.argument_bytes >= 4004


def test_memory_is_the_programs():
    x = jnp.ones((64, 64))
    product = time_program(Program(jax.jit(lambda x: jnp.sin(x @ x) @ x), (x,)), 1)
    assert product.argument_bytes == product.output_bytes == 64 * 64 * 4
    assert product.temporary_bytes >= 64 * 64 * 4
    assert product.peak_bytes == product.argument_bytes + product.output_bytes + product.temporary_bytes


def test_the_second_compilation_comes_from_the_persistent_cache():
    before = jax.config.jax_compilation_cache_dir
    measured = time_program(Program(jax.jit(lambda x: jnp.cos(x) @ x), (jnp.ones((8, 8)),)), 1)
    assert measured.compile_cached is not None
    assert jax.config.jax_compilation_cache_dir == before  # and is forgotten


def test_cache_settings_come_back_after_a_failure():
    names = "jax_persistent_cache_min_compile_time_secs", "jax_compilation_cache_dir"
    before = [getattr(jax.config, name) for name in names]
    with pytest.raises(ZeroDivisionError):
        time_program(Program(jax.jit(lambda x: x / (1 // 0)), (1.0,)), 1)
    assert [getattr(jax.config, name) for name in names] == before


@pytest.mark.parametrize("steps", [0, -1])
def test_steps_are_positive(steps):
    with pytest.raises(ValueError, match=f"steps must be a positive number, got {steps}"):
        time_program(Program(jax.jit(jnp.sin), (1.0,)), steps)


def test_spread_is_numpys():
    values = np.random.default_rng(0).random(37)
    found = spread(values.tolist())
    np.testing.assert_allclose([found.low, found.median, found.high], np.percentile(values, [5, 50, 95]))
    assert spread([2.0]).low == spread([2.0]).high == 2.0


def test_calls_are_made_at_least_so_often():
    calls = []
    time_calls(lambda: calls.append(1), seconds=0.0, least=7)
    assert len(calls) == 2 + 7


@partial(jax.jit, donate_argnums=(0, 2))
def update(weights, x, moments):
    loss, slope = jax.value_and_grad(lambda w: jnp.sum((x @ w["w"]) ** 2))(weights)
    return loss, {"w": weights["w"] - slope["w"]}, 0.9 * moments


def state():
    return {"w": jnp.ones((3, 4))}, jnp.ones((2, 3)), jnp.ones(5)


def test_what_a_function_donates_it_is_given_back():
    """By shape, wherever among its results; what it keeps stays as it is."""
    program = make_program(update, *state())
    after = program.advance(program.arguments, ("loss", "weights", "moments"))
    assert (after[0], after[2]) == ("weights", "moments")
    assert after[1] is program.arguments[1]
    assert time_program(program, 3).recompiles == 0


def test_a_donated_argument_that_nothing_replaces_is_refused():
    step = jax.jit(lambda x: {"next": x + 1}, donate_argnums=0)
    with pytest.raises(ValueError, match="argument 0 is donated, and the function returns nothing of its shapes"):
        make_program(step, jnp.ones(3))
    own = make_program(step, jnp.ones(3), advance=lambda arguments, result: (result["next"],))
    assert time_program(own, 2).recompiles == 0


@pytest.fixture
def _known_peak(monkeypatch):
    monkeypatch.setattr("flax_transformer.bench.device.measured_peak", lambda dtype: 1e12)


@pytest.mark.usefixtures("_known_peak")
def test_any_function_has_a_table_json_and_a_comparison(tmp_path):
    record = measure(update, *state(), steps=3, items=2, unit="rows")
    program = record["programs"]["update"]
    assert program["flops"] == 2 * (2 * 2 * 3 * 4)  # no gradient goes to x
    assert program["mfu"] == program["flops"] / program["step"]["median"] / 1e12
    assert program["items_per_second"] == 2 / program["step"]["median"]
    assert record["target"]["shape"] == {"arrays": 3, "numbers": 12 + 6 + 5}
    assert re.search(r"rows a second +[\d,]+\n", str(record))
    record.save(tmp_path / "a.json")
    assert Record(json.loads((tmp_path / "a.json").read_text())) == record
    assert "no regression" in record.compare(tmp_path / "a.json")
    with pytest.raises(ValueError, match="only results of the same target"):
        record.compare(measure(update, *state(), steps=1, name="another"))


@pytest.mark.rotates
@pytest.mark.usefixtures("_known_peak")
def test_the_page_on_performance_measures_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "performance.md").read_text()
    own, ahead, mine = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len([line for line in (own + ahead).splitlines() if line]) <= 9  # ten with that which installs
    names = {}
    exec(compile(own, "docs/performance.md", "exec"), names)
    said = capsys.readouterr().out
    for part in ("tokens a second", "MFU", "memory a device", "Trunk/Block/attention_residual/attention"):
        assert part in said
    if importlib.util.find_spec("libtpu"):
        exec(compile(ahead, "docs/performance.md", "exec"), names)
    names = {}
    exec(compile(mine, "docs/performance.md", "exec"), names)
    assert len(mine.splitlines()) <= 15
    assert names["record"]["programs"]["step"]["flops"] == 2 * (2 * 32 * 256 * 256)
    assert "no regression" in capsys.readouterr().out


@pytest.mark.usefixtures("_known_peak")
def test_shapes_alone_can_be_measured():
    """Numbers are random, integers zero, keys keys: nothing of them is given."""
    weights, x, key = (jax.ShapeDtypeStruct(s, d) for s, d in (((8, 4), "float32"), ((2,), "int32"), ((), KEY)))
    look = lambda weights, x, key: jax.random.bernoulli(key, 0.5) * weights[x] @ weights.T  # noqa: E731
    record = measure(look, weights, x, key, steps=1, name="look")
    assert record["programs"]["look"]["flops"] == 2 * 2 * 4 * 8
    first, ids, keys = real((weights, x, key))
    assert (first.std() > 0.01, ids.tolist(), keys.dtype) == (True, [0, 0], KEY)


@pytest.mark.usefixtures("_known_peak")
def test_a_function_is_measured_by_a_name_of_its_own():
    assert list(measure(jnp.sin, jnp.ones(3), steps=1, name="sine")["programs"]) == ["sine"]
    assert list(measure(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), jnp.ones(2), steps=1)["programs"]) == ["Linear"]
    with pytest.raises(ValueError, match="steps must be a positive number, got 0"):
        measure(jnp.sin, jnp.ones(3), steps=0)
