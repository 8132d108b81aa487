"""Boxes: two ways to say them, and how far they share."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flax_transformer.ops.boxes import area, generalised_overlap, overlap, to_centres, to_corners

share = st.floats(0.125, 1, width=32)
box = st.tuples(share, share, share, share).map(lambda values: to_corners(jnp.array(values, jnp.float32)))


@pytest.mark.rotates
@given(box)
def test_both_ways_say_the_same_box(corners):
    np.testing.assert_allclose(to_corners(to_centres(corners)), corners, atol=1e-6)
    np.testing.assert_allclose(overlap(corners, corners), 1, rtol=1e-5)
    np.testing.assert_allclose(generalised_overlap(corners, corners), 1, rtol=1e-5)


@pytest.mark.rotates
@given(box, box)
def test_what_boxes_share_does_not_depend_on_their_order_and_has_bounds(one, other):
    np.testing.assert_allclose(generalised_overlap(one, other), generalised_overlap(other, one), atol=1e-6)
    assert -1 <= generalised_overlap(one, other) <= overlap(one, other) + 1e-6 <= 1 + 2e-6


def test_pairs_by_hand():
    one = jnp.array([[0.0, 0, 4, 2], [0, 0, 1, 1]])
    other = jnp.array([[2.0, 0, 6, 2], [9, 9, 10, 10], [1, 1, 2, 2]])
    np.testing.assert_allclose(overlap(one[:, None], other), [[1 / 3, 0, 1 / 8], [0, 0, 0]], rtol=1e-6)
    expected = [[1 / 3, -91 / 100, 1 / 8], [-1 / 4, -98 / 100, -1 / 2]]
    np.testing.assert_allclose(generalised_overlap(one[:, None], other), expected, rtol=1e-6)
    np.testing.assert_array_equal(area(one), [8, 1])


def test_boxes_without_area_share_nothing_and_pull_nowhere():
    nothing = jnp.zeros(4)
    slope = jax.grad(lambda box: generalised_overlap(box, nothing))(nothing)
    assert overlap(nothing, nothing) == 0
    assert np.isfinite(slope).all()
