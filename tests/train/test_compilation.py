"""What has changed when a function is compiled again is told, leaf by leaf or field by field."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.nn import FeedForward, FeedForwardConfig
from flax_transformer.ops import Mask
from flax_transformer.train.compilation import Causes, Compilations, Watched

CFG = FeedForwardConfig(embed=4, inner=4)
LAYER = nnx.eval_shape(lambda: FeedForward(CFG, rngs=nnx.Rngs(0)))
OTHER = nnx.eval_shape(lambda: FeedForward(replace(CFG, activation="gelu"), rngs=nnx.Rngs(0)))
ROWS = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (ROWS, np.ones(4, np.float32), "x: float32[3] → float32[4]"),
        (ROWS, np.ones(3, np.int32), "x: float32[3] → int32[3]"),
        (jnp.asarray(1.0), jnp.float32(1), "x: float32[] (weak type) → float32[]"),
        ([ROWS, ROWS[None], ROWS], 3 * [ROWS[None, :2]], "x.1: float32[1, 3] → float32[1, 2], and 2 more"),
        ([ROWS, ROWS], [ROWS[:2], ROWS.astype(np.int32)], "x.0: float32[3] → float32[2], x.1: float32[3] → int32[3]"),
        ({"a": ROWS}, {"a": ROWS, "b": ROWS}, "x.b: new, float32[3]"),
        ({"a": ROWS, "b": ROWS}, {"a": ROWS}, "x.b: gone, was float32[3]"),
        (Mask(window=2), Mask(window=3), "x: (2, 2) → (3, 3)"),
        (LAYER, OTHER, "x.cfg.activation: 'relu' → 'gelu'"),
        ((ROWS,), [ROWS], "x: tuple → list"),
        ("relu", "gelu", "x: 'relu' → 'gelu'"),
        (ROWS, ROWS + 1, "nothing of its arguments: a setting of JAX has changed, or its caches were emptied"),
    ],
)
def test_what_is_new_is_named(before, after, words):
    why = Causes()
    assert why({"x": before, "y": 1}) is None
    assert why({"x": after, "y": 1}) == words


def test_the_nearest_of_earlier_calls_is_compared_with():
    why = Causes()
    for x, y, z in ((1, 1, 1), (2, 2, 1)):
        why({"x": np.ones(x), "y": np.ones(y), "z": np.ones(z)})
    assert why({"x": np.ones(1), "y": np.ones(1), "z": np.ones(2)}) == "z: float32[1] → float32[2]"


def test_a_donated_argument_can_still_be_asked_about():
    why, x = Causes(), jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted()
    why({"x": x})
    assert why({"x": jnp.ones(5)}) == "x: float32[3] → float32[5]"


def test_an_array_that_is_bound_to_a_device_is_another():
    why = Causes()
    why({"x": jnp.ones(3)})
    assert why({"x": jax.device_put(jnp.ones(3), jax.devices()[0])}) == "x: laid out by nobody → 1 device(s)"


def test_compilations_have_names_and_seconds():
    with Compilations() as compiled:
        jax.jit(lambda x: x * 3.75)(ROWS)
    assert compiled.count == len(compiled.names) >= 1
    assert compiled.seconds > 0


def test_a_watched_function_says_why_it_was_compiled_again():
    add = Watched(jax.jit(lambda rows, more: rows + more * 2.25))
    with add:
        causes = [add(np.ones(n, np.float32), np.float32(1)) is None or add.cause for n in (2, 2, 3, 2)]
    assert causes == [None, None, "rows: float32[2] → float32[3]", None]
    assert add.compilations.count == 2
