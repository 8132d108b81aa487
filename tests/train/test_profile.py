"""Steps that are traced are those asked for, and what they spent their time on is told by module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.train.profile import Profile, Tracing, _own_times, operations


@pytest.mark.parametrize("said", ["", "3", "3-5", "a:b", "3:", "0:2", "5:3"])
def test_a_profile_is_of_steps_from_to(said, tmp_path):
    with pytest.raises(ValueError, match="a profile is of steps FROM:TO"):
        Profile.of(said, tmp_path)


def test_steps_that_are_not_taken_are_refused(tmp_path):
    with pytest.raises(ValueError, match="a profile is of steps that are taken, of which there are 5, got 5:6"):
        Profile.of("5:6", tmp_path, 5)
    assert Profile.of("5:5", tmp_path, 5) == Profile(first=5, last=5, folder=tmp_path)


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """The folder of a trace of steps 3 and 4 of 6, and the step after which it was done."""
    folder = tmp_path_factory.mktemp("profile")
    new = float(np.random.default_rng().random())  # a program from the persistent cache brings no names into a trace

    @jax.jit
    def step(x):
        with jax.named_scope("Small"):
            x = jnp.tanh(x * new)
        with jax.named_scope("Large"):
            return jnp.sin(x @ jnp.roll(x, 1) @ x)

    x, done = step(jnp.ones((300, 300))), None
    with Tracing(Profile(first=3, last=4, folder=folder)) as tracing:
        for number in range(1, 7):
            tracing.before(number, x)
            done = number if tracing.done and done is None else done
            x = step(x)
    return folder, done


@pytest.mark.rotates
def test_the_trace_ends_before_the_step_after(traced):
    assert traced[1] == 5


@pytest.mark.rotates
def test_operations_are_their_modules(traced):
    found = operations(traced[0])
    assert {each.module for each in found} >= {"Small", "Large"}
    products = next(each for each in found if each.name == "dot_general")
    assert products.module == "Large"
    assert found == sorted(found, key=lambda each: -each.seconds)
    # Steps 3 and 4; an operation that several threads share is traced once for each.
    assert next(each for each in found if each.module == "Small").count >= 2


def test_nothing_is_told_of_a_folder_without_a_trace(tmp_path):
    assert operations(tmp_path) == []


def test_what_an_event_waits_for_is_not_its_own_time():
    """Within ten, from one on, four, of which two are another's; then one on its own."""
    events = [(0, -10, 1, "outer"), (1, -4, 1, "inner"), (2, -2, 1, "innermost"), (10, -1, 1, "after")]
    assert sorted(_own_times(events)) == [
        (1, "after", 1),
        (1, "inner", 2),
        (1, "innermost", 2),
        (1, "outer", 6),
    ]


@pytest.mark.rotates
def test_a_trace_that_nobody_ends_is_ended(tmp_path):
    with Tracing(Profile(first=1, last=9, folder=tmp_path)) as tracing:
        tracing.before(1, np.ones(1))
    assert tracing.done
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))
