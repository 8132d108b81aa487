"""Weight tables say the same in both directions, for any widths, and miss or repeat no parameter."""

import math

import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.hub.table import SAME, VECTOR, Layout, Row, conv, embedding, linear, norm, under
from flax_transformer.hub.weights import renamer, resolve

sizes = st.integers(1, 4)


@st.composite
def layouts(draw):
    """Draw a layout, and shapes of parameters that it can join: inputs alike, outputs of any width."""
    inputs = draw(st.sampled_from([None, 0, 1, 2]))
    if inputs is None:
        return Layout(), [tuple(draw(st.lists(sizes, max_size=3)))]
    lead = tuple(draw(st.lists(sizes, min_size=inputs, max_size=inputs)))
    shapes = draw(st.lists(st.lists(sizes, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3))
    return Layout(inputs, transposed=draw(st.booleans()) and inputs > 0), [lead + shape for shape in shapes]


@settings(max_examples=200)
@given(layouts(), st.randoms())
def test_split_undoes_join_and_join_undoes_split(drawn, random):
    layout, shapes = drawn
    draw = np.random.default_rng(random.getrandbits(32))
    parts = [draw.normal(size=shape).astype(np.float32) for shape in shapes]
    tensor = layout.join(parts)
    assert tensor.shape == layout.shape(shapes)
    assert tensor.flags.c_contiguous
    assert tensor.size == sum(math.prod(shape) for shape in shapes)
    again = layout.split(tensor, shapes)
    for part, other in zip(parts, again, strict=True):
        np.testing.assert_array_equal(part, other)
    np.testing.assert_array_equal(layout.join(again), tensor)


@settings(max_examples=50)
@given(st.lists(sizes, min_size=1, max_size=3), sizes, sizes)
def test_a_joined_kernel_is_the_matrix_that_a_linear_layer_multiplies_with(heads, width, inputs):
    draw = np.random.default_rng(0)
    kernels = [draw.normal(size=(inputs, n, width)) for n in heads]
    x = draw.normal(size=inputs)
    outputs = np.concatenate([np.einsum("d,dnh->nh", x, kernel).ravel() for kernel in kernels])
    np.testing.assert_allclose(Layout(1).join(kernels).T @ x, outputs)
    np.testing.assert_allclose(Layout(1, transposed=True).join(kernels) @ x, outputs)


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [(SAME, [(4, 6)]), (Layout(1), [(4, 2), (4, 2, 2)]), (Layout(1, transposed=True), [(6, 2), (6, 1, 2)])],
)
def test_splitting_copies_nothing(layout, shapes):
    tensor = np.arange(24.0).reshape(4, 6)
    assert all(np.shares_memory(part, tensor) for part in layout.split(tensor, shapes))


def test_rows_spell_what_layers_have():
    assert linear("a.up", "x.fc") == (
        Row(("a.up.kernel",), "x.fc.weight", Layout(1, transposed=True)),
        Row(("a.up.bias",), "x.fc.bias", VECTOR),
    )
    assert conv(("a", "b"), "c", inputs=2)[0] == Row(("a.kernel", "b.kernel"), "c.weight", Layout(2))
    assert norm("n", "m") == (Row(("n.scale",), "m.weight"), Row(("n.bias",), "m.bias"))
    assert under(embedding("e", "w"), "at.", "pre.") == (Row(("at.e.embedding",), "pre.w.weight"),)
    assert Row(("a",), "h.{}.x").stacked
    assert not Row(("a",), "x").stacked


class Two(nnx.Module):
    def __init__(self, rngs):
        self.a = nnx.Linear(2, 3, rngs=rngs)
        self.b = nnx.Linear(2, 3, use_bias=False, rngs=rngs)


@pytest.fixture
def two():
    return nnx.eval_shape(lambda: Two(nnx.Rngs(0)))


def test_rows_of_what_a_model_has_not_are_left_out(two):
    entries = resolve((*linear("a", "x"), *linear("b", "y"), *linear("c", "z")), two)
    assert [(entry.names, entry.shape) for entry in entries] == [
        (["x.weight"], (3, 2)),
        (["x.bias"], (3,)),
        (["y.weight"], (3, 2)),
    ]


def test_a_parameter_has_one_row(two):
    with pytest.raises(ValueError, match=r"every parameter must have a row .* b\.kernel have none"):
        resolve(linear("a", "x"), two)
    with pytest.raises(ValueError, match=r"must have one row in the weight table, a\.kernel has several"):
        resolve((*linear("a", "x"), *linear("a", "y"), *linear("b", "z")), two)


def test_renaming_goes_in_order():
    rename = renamer({"^old": "new", r"\.gamma$": ".weight", "^new": "newer"})
    assert rename("old.gamma") == "newer.weight"
    assert rename("other") == "other"
