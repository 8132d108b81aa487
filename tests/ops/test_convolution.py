"""Convolutions and pooling: by hand, over any lead axes, and each channel alone on a CPU as anywhere."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer.ops.convolution import _each_channel, _largest_of_shifted, convolution, max_pool


def drawn(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def by_hand(x, kernel, stride, padding, dilation):
    """Look at every window of an image without a batch."""
    high, wide, inputs, outputs = kernel.shape
    x, groups = np.pad(x, ((padding, padding), (padding, padding), (0, 0))), x.shape[-1] // inputs
    rows = (x.shape[0] - dilation * (high - 1) - 1) // stride + 1
    columns = (x.shape[1] - dilation * (wide - 1) - 1) // stride + 1
    found = np.zeros((rows, columns, outputs))
    for i, j, d in np.ndindex(*found.shape):
        group = d // (outputs // groups)
        window = x[i * stride :, j * stride :, group * inputs : (group + 1) * inputs][::dilation, ::dilation]
        found[i, j, d] = np.sum(window[:high, :wide] * kernel[..., d])
    return found


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("window", "inputs", "outputs", "options"),
    [
        ((3, 3), 4, 6, {"padding": 1}),
        ((7, 7), 4, 2, {"stride": 2, "padding": 3}),
        ((1, 1), 4, 8, {"stride": 2}),
        ((2, 3), 2, 6, {"stride": 3}),
        ((3, 3), 1, 4, {"padding": 1}),
        ((5, 3), 1, 4, {}),
        ((3, 3), 1, 8, {"padding": 2, "dilation": 2}),
    ],
)
def test_every_window_is_multiplied(window, inputs, outputs, options):
    x, kernel = drawn(9, 11, 4), drawn(*window, inputs, outputs, seed=1)
    expected = by_hand(x, kernel, **{"stride": 1, "padding": 0, "dilation": 1, **options})
    np.testing.assert_allclose(convolution(x, kernel, **options), expected, rtol=1e-4, atol=1e-5)


def test_lead_axes_are_rows():
    x, kernel = drawn(2, 3, 8, 7, 4), drawn(3, 3, 4, 5, seed=1)
    found = convolution(x, kernel, padding=1)
    np.testing.assert_allclose(found[1, 2], convolution(x[1, 2], kernel, padding=1), rtol=1e-5, atol=1e-5)
    assert max_pool(x, 3, stride=2, padding=1).shape == (2, 3, 4, 4, 4)


@pytest.mark.rotates
@pytest.mark.parametrize(("shape", "window"), [((8, 7), (5, 5)), ((8,), (5,)), ((9,), (2,))])
def test_each_channel_alone_is_a_grouped_convolution(shape, window):
    """And so are its gradients."""
    x, kernel = drawn(2, *shape, 6), drawn(*window, 1, 6, seed=1)
    space = "HW"[: len(shape)]

    def grouped(x, kernel):
        numbers = (f"N{space}C", f"{space}IO", f"N{space}C")
        return jax.lax.conv_general_dilated(
            x, kernel, (1,) * len(shape), [(2, 2)] * len(shape), dimension_numbers=numbers, feature_group_count=6
        )

    for find in (lambda f: f(x, kernel), lambda f: jax.grad(lambda *given: jnp.sum(f(*given) ** 2), (0, 1))(x, kernel)):
        ours, theirs = find(lambda x, kernel: _each_channel(x, kernel, 2)), find(grouped)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, theirs)


@pytest.mark.parametrize(
    ("window", "options"),
    [((3, 3), {"padding": 1, "stride": 2}), ((1, 1), {}), ((1, 1), {"stride": 2}), ((1, 1), {"padding": 1})],
)
def test_derivatives_are_those_of_xla(window, options):
    """Backward, forward and by rows."""
    x, kernel = drawn(2, 9, 11, 4), drawn(*window, 4, 6, seed=1)
    stride, padding = options.get("stride", 1), options.get("padding", 0)

    def plain(x, kernel):
        sides, numbers = [(padding, padding)] * 2, ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (stride, stride), sides, dimension_numbers=numbers)

    def found(f):
        loss = lambda x, kernel: jnp.sum(jnp.sin(f(x, kernel)))  # noqa: E731
        return {
            "value": f(x, kernel),
            "both": jax.grad(loss, (0, 1))(x, kernel),
            "forward": jax.jvp(loss, (x, kernel), (jnp.cos(x), jnp.sin(kernel))),
            "rows": jax.vmap(lambda row: jax.grad(loss, 1)(row[None], kernel))(x),
        }

    ours, theirs = jax.jit(lambda: found(partial(convolution, **options)))(), jax.jit(lambda: found(plain))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, theirs)


def test_what_is_padded_is_never_the_largest():
    x = drawn(5, 6, 3) - 10
    found = max_pool(x, 3, stride=2, padding=1)
    np.testing.assert_array_equal(found[0, 0], x[:2, :2].max((0, 1)))
    np.testing.assert_array_equal(found[1, 1], x[1:4, 1:4].max((0, 1)))
    assert max_pool(x.astype(jnp.bfloat16), 2, stride=2).dtype == jnp.bfloat16


WINDOWS = [(3, 2, 1), (2, 2, 0), (3, 1, 0), (5, 2, 2), (2, 3, 0), (4, 3, 1)]


@pytest.mark.rotates
@pytest.mark.parametrize(("window", "stride", "padding"), WINDOWS)
def test_the_largest_of_shifted_pictures_is_that_of_windows(window, stride, padding):
    """And so are its gradients."""
    x = drawn(2, 8, 7, 3)

    def by_windows(x):
        sides = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, window, window, 1), (1, stride, stride, 1), sides)

    shifted = lambda x: _largest_of_shifted(x, window, stride, padding)  # noqa: E731
    np.testing.assert_array_equal(shifted(x), by_windows(x))
    ours, theirs = (jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x))))(x) for f in (shifted, by_windows))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    slope = jnp.sum(jnp.cos(shifted(x)) * jax.jvp(shifted, (x,), (jnp.cos(x),))[1])
    np.testing.assert_allclose(slope, jnp.sum(ours * jnp.cos(x)), rtol=1e-5, atol=1e-5)


def test_pictures_smaller_than_a_window_are_refused():
    with pytest.raises(ValueError, match=r"as large as a window of 5×5 after padding 1, got 2×9"):
        convolution(drawn(2, 9, 1), drawn(3, 3, 1, 1), padding=1, dilation=2)
    with pytest.raises(ValueError, match="window of 3×3 after padding 0, got 2×2"):
        max_pool(drawn(2, 2, 1), 3, stride=1)


@pytest.mark.rotates
@pytest.mark.parametrize(("stride", "padding", "groups"), [(1, 0, 1), (2, 1, 3), (3, 2, 6)])
def test_a_sequence_is_a_picture_of_one_line(stride, padding, groups):
    draw = np.random.default_rng(0)
    x, kernel = draw.normal(size=(2, 11, 6)), draw.normal(size=(4, 6 // groups, 12))
    found = convolution(jnp.asarray(x), jnp.asarray(kernel), stride=stride, padding=padding)
    lines = np.pad(x, ((0, 0), (padding, padding), (0, 0)))
    for place in range(found.shape[1]):
        window = lines[:, place * stride : place * stride + 4].reshape(2, 4, groups, -1)
        parts = kernel.reshape(4, 6 // groups, groups, -1)
        expected = np.einsum("btgc,tcgd->bgd", window, parts).reshape(2, -1)
        np.testing.assert_allclose(found[:, place], expected, rtol=1e-4, atol=1e-5)
