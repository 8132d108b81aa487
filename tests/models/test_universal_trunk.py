"""One block for all steps: a stack of equal blocks, or as many steps at each position as Graves' equations say."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer.models.text.universal_trunk import HaltingConfig, UniversalConfig
from flax_transformer.nn import RelativeConfig, apply_stack, transformer_block, with_fields
from flax_transformer.ops import Mask, capture, sinusoidal

pytestmark = pytest.mark.proves(
    "a block that steps share", "a stack of equal blocks; halting by Graves' equations; cache = all at once"
)

B, T, D, L = 2, 5, 8, 4
BLOCK = transformer_block(embed=D, heads=2, inner=16)
FIXED = UniversalConfig(block=BLOCK, depth=L)
ADAPTIVE = replace(FIXED, halting=HaltingConfig(epsilon=0.1, bias=-1.0))
X = jax.random.normal(jax.random.key(1), (B, T, D))


def trunk(cfg, causal=False):
    made = cfg.make_trunk(causal=causal, rngs=nnx.Rngs(0))
    if cfg.halting is not None:
        made.halt.kernel[...] *= 4  # so that positions differ in when they halt
    return made


def told(x, step):
    return x + sinusoidal(jnp.arange(T), D) + sinusoidal(jnp.array([step]), D)


@pytest.mark.rotates
def test_one_step_is_one_block_that_is_told_where_it_is():
    one = trunk(replace(FIXED, depth=1))
    np.testing.assert_allclose(one(X), one.block(told(X, 1)), atol=1e-6)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_a_fixed_number_of_steps_is_a_stack_of_equal_blocks(norm):
    one = trunk(replace(FIXED, block=with_fields(BLOCK, norm_position=norm), position="none"))
    equal = jax.tree.map(lambda leaf: jnp.stack([leaf] * L), one.block)
    stacked = apply_stack(equal, X, mask=Mask(causal=True))
    np.testing.assert_array_equal(one(X, mask=Mask(causal=True)), one.norm(stacked) if norm == "pre" else stacked)


def graves(one, x, epsilon):
    """Halt as Graves 2016 says (eq. 5 to 8, 13), a position after another: s^n, h^n, N, R, p^n and the mean."""
    states, total = np.array(x), np.zeros((B, T))
    mean, steps, rest = np.zeros((B, T, D)), np.zeros((B, T), int), np.zeros((B, T))
    for n in range(1, L + 1):
        made = np.asarray(one.block(told(jnp.asarray(states), n), mask=Mask(causal=True)))
        for b in range(B):
            for t in range(T):
                if steps[b, t]:  # N(t) is known: its state is copied on
                    continue
                unit = made[b, t] @ np.asarray(one.halt.kernel[:, 0]) + float(one.halt.bias[0])
                h = 1 / (1 + np.exp(-unit))
                ends = total[b, t] + h >= 1 - epsilon or n == L
                p = 1 - total[b, t] if ends else h
                if ends:
                    steps[b, t], rest[b, t] = n, p
                states[b, t] = made[b, t]
                mean[b, t] += p * made[b, t]
                total[b, t] += p
    np.testing.assert_allclose(total, 1, atol=1e-6)
    return mean, steps, rest


def test_halting_is_what_graves_equations_say():
    one = trunk(ADAPTIVE, causal=True)
    mean, steps, rest = graves(one, X, 0.1)
    assert steps.min() < steps.max()
    found, cost = one.observe(X, mask=Mask(causal=True))
    np.testing.assert_allclose(found, mean, atol=1e-5)
    np.testing.assert_array_equal(cost["steps"], steps)
    np.testing.assert_allclose(cost["ponder"], steps + rest, atol=1e-5)
    np.testing.assert_array_equal(one(X, mask=Mask(causal=True)), found)


def test_probabilities_add_up_to_one_and_end_with_the_last_step_that_is_taken():
    one = trunk(ADAPTIVE, causal=True)
    _, (shares,) = capture(lambda one, x: one(x), "halting")(one, X)
    assert shares.shape == (L, B, T)
    np.testing.assert_allclose(shares.sum(0), 1, atol=1e-6)
    np.testing.assert_array_equal((shares > 0).sum(0), one.observe(X)[1]["steps"])


@pytest.mark.parametrize("bias", [50.0, -50.0])
def test_who_halts_at_once_takes_one_step_and_who_never_does_takes_all(bias):
    one = trunk(ADAPTIVE)
    one.halt.bias[...] = jnp.array([bias])
    fixed = trunk(replace(FIXED, depth=1 if bias > 0 else L))
    np.testing.assert_allclose(one(X), fixed(X), atol=1e-5)


@pytest.mark.rotates
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    "cfg", [FIXED, ADAPTIVE, replace(ADAPTIVE, relative=RelativeConfig(buckets=4, max_distance=8))]
)
def test_position_by_position_is_all_at_once(cfg, apart):
    """Also in parts of several, and where positions that have halted are looked at by those that have not."""
    one = trunk(cfg, causal=True)
    expected = one(X, mask=Mask(causal=True))
    one = one.for_decoding() if apart else one
    cache, found, extend = one.init_cache(B, T), [], jax.jit(type(one).extend)
    for first, last in ((0, 1), (1, 3), (3, 4), (4, 5)):
        y, cache = extend(one, X[:, first:last], cache, index=jnp.array(first))
        found.append(y)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), expected, atol=1e-5)


@pytest.mark.rotates
def test_halting_does_not_see_the_future_and_learns_with_finite_gradients():
    one = trunk(ADAPTIVE, causal=True)
    slopes = jax.jacobian(lambda x: one(x, mask=Mask(causal=True)))(X[0])
    seen = np.abs(slopes).max((1, 3))
    assert np.all(seen[np.triu_indices(T, 1)] == 0)
    assert np.all(seen[np.tril_indices(T)] > 0)

    def loss(one):
        y, cost = one.observe(X)
        return jnp.sum(jnp.sin(y)) + jnp.sum(cost["ponder"])

    for leaf in jax.tree.leaves(jax.grad(loss)(one)):
        assert np.all(np.isfinite(leaf))
    assert np.abs(jax.grad(loss)(one).halt.kernel[...]).max() > 1e-4


def test_rows_are_told_the_mean_of_the_positions_that_they_have():
    one, lengths = trunk(ADAPTIVE), jnp.array([5, 2])
    found = one.observe(X, mask=Mask(lengths=lengths))[1]
    _, (shares,) = capture(lambda one: one(X, mask=Mask(lengths=lengths)), "halting")(one)
    steps = (shares > 0).sum(0)
    np.testing.assert_allclose(found["steps"], [steps[0].mean(), steps[1, :2].mean()], rtol=1e-6)
    assert trunk(FIXED).observe(X)[1] == {}


@pytest.mark.rotates
@pytest.mark.parametrize("options", [{"unroll": True}, {"unroll": 3}, {"remat": "full"}, {"remat": "attention"}])
def test_how_the_loop_runs_changes_nothing(options):
    one = trunk(ADAPTIVE)
    other = trunk(replace(ADAPTIVE, **options))
    slopes = lambda one: jax.grad(lambda one: jnp.sum(jnp.sin(one(X))))(one)  # noqa: E731
    for mine, its in zip(jax.tree.leaves(slopes(other)), jax.tree.leaves(slopes(one)), strict=True):
        np.testing.assert_allclose(mine, its, atol=1e-4)


def test_dropout_differs_from_step_to_step_and_is_drawn_by_its_key():
    one = trunk(replace(FIXED, depth=2, block=with_fields(BLOCK, dropout=0.5)))
    np.testing.assert_array_equal(one(X, key=jax.random.key(0)), one(X, key=jax.random.key(0)))
    assert np.abs(one(X, key=jax.random.key(0)) - one(X, key=jax.random.key(1))).max() > 1e-2


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"epsilon must be in \(0, 1\), got 1.0"):
        HaltingConfig(epsilon=1.0)
    with pytest.raises(ValueError, match="even width, got D=9"):
        UniversalConfig(block=transformer_block(embed=9, heads=3, inner=16))
    with pytest.raises(ValueError, match="depth must be at least 1"):
        UniversalConfig(block=BLOCK, depth=0)
