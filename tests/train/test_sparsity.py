"""Zeros in kernels: which values are kept, how many as training goes, and that zeros stay zero, also over a restart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.train.parameter_axis import Axes
from flax_transformer.train.sparsity import SparsityConfig, largest
from tests.train.language_model import language_model, zero_shares

pytestmark = pytest.mark.proves("kernels with zeros", "by a schedule, resumed exactly; patterns N:M; zeros kept")

KERNEL = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 8, 10)), jnp.float32)
AXES = Axes(1, 2, 1)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.75, 0.99])
def test_the_smallest_of_each_layer_go(share):
    kept = np.asarray(largest(KERNEL, AXES, share)).reshape(3, -1)
    sizes = np.abs(np.asarray(KERNEL)).reshape(3, -1)
    for mask, size in zip(kept, sizes, strict=True):
        assert (~mask).sum() == int(share * size.size)
        assert not (~mask).any() or size[~mask].max() <= size[mask].min()


@pytest.mark.parametrize("block", [(2, 4), (1, 8), (3, 16)])
def test_of_every_few_inputs_the_largest_stay(block):
    few, many = block
    kept = np.asarray(largest(KERNEL, AXES, 0.0, block)).reshape(3, 32 // many, many, 10)
    sizes = np.abs(np.asarray(KERNEL)).reshape(kept.shape)
    assert (kept.sum(2) == few).all()
    assert (np.where(kept, sizes, np.inf).min(2) >= np.where(kept, 0, sizes).max(2)).all()


@pytest.mark.rotates
def test_zeros_grow_by_the_schedule_and_stay():
    config = SparsityConfig(share=0.8, begin=2, end=10, every=4)
    for steps, expected in ((2, 0.0), (7, 0.8 * (1 - 0.5**3)), (11, 0.8), (20, 0.8)):
        model, _ = language_model(config, steps)
        np.testing.assert_allclose(zero_shares(model), expected, atol=1 / 128)
    before, state = language_model(config, 12)
    after, _ = language_model(config, 8, before, state, begin=12)
    gone = np.asarray(before.trunk.blocks.feedforward.up.kernel[...]) == 0
    assert (np.asarray(after.trunk.blocks.feedforward.up.kernel[...])[gone] == 0).all()
    whole, _ = language_model(config, 20)
    for one, other in zip(jax.tree.leaves(after), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (np.asarray(whole.embedding.token.embedding[...]) != 0).all()


@pytest.mark.rotates
def test_a_pattern_holds_from_its_first_step_on():
    model, _ = language_model(SparsityConfig(block=(2, 4), every=1), 5)
    up = np.asarray(model.trunk.blocks.feedforward.up.kernel[...]).reshape(2, 2, 4, 16)
    assert ((up != 0).sum(2) == 2).all()


@pytest.mark.rotates
def test_zeros_of_before_are_kept():
    model, _ = language_model(SparsityConfig(share=0.6, end=4, every=1), 6)
    again, _ = language_model(SparsityConfig(keep=True), 5, model)
    np.testing.assert_allclose(zero_shares(again), 0.6, atol=1 / 128)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 1.0}, r"share of zeros must be in \[0, 1\), got 1.0"),
        ({"block": (4, 4)}, "keeps some of M, 0 < N < M"),
        ({"block": (2, 4), "share": 0.5}, "goes with no share"),
        ({"begin": 5, "end": 3, "share": 0.5}, "from begin to end, got begin=5, end=3"),
        ({"every": 0}, "every=0"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SparsityConfig(**options)


def test_a_block_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="must divide the inputs, got 2:5 for 32 inputs"):
        largest(KERNEL, AXES, 0.0, (2, 5))
