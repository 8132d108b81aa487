"""Weight tables say the same in both directions, for any widths, and miss or repeat no parameter."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.hub.file import Tensor
from flax_transformer.hub.table import (
    SAME,
    VECTOR,
    Kernel,
    Matrix,
    Same,
    TensorRow,
    batch_norm,
    conv,
    embedding,
    linear,
    matrix,
    norm,
    parameter,
    under,
)
from flax_transformer.hub.weights import compare, fitted, load_model, renamer, resolve, tensors_of
from flax_transformer.nn.batch_norm import BatchNorm

sizes = st.integers(1, 4)


@st.composite
def layouts(draw):
    """Draw a layout, and shapes of parameters that it can join: inputs alike, outputs of any width."""
    inputs = draw(st.sampled_from([None, "conv", 0, 1, 2]))
    if inputs == "conv":
        lead = tuple(draw(st.lists(sizes, min_size=2, max_size=4)))
        return Kernel(), [(*lead, draw(sizes)) for _ in range(draw(sizes))]
    if inputs is None:
        return Same(draw(st.integers(0, 2))), [tuple(draw(st.lists(sizes, max_size=3)))]
    lead = tuple(draw(st.lists(sizes, min_size=inputs, max_size=inputs)))
    shapes = draw(st.lists(st.lists(sizes, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3))
    return Matrix(inputs, transposed=draw(st.booleans()) and inputs > 0), [lead + shape for shape in shapes]


@pytest.mark.rotates
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
    np.testing.assert_allclose(Matrix(1).join(kernels).T @ x, outputs)
    np.testing.assert_allclose(Matrix(1, transposed=True).join(kernels) @ x, outputs)


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [(SAME, [(4, 6)]), (Matrix(1), [(4, 2), (4, 2, 2)]), (Matrix(1, transposed=True), [(6, 2), (6, 1, 2)])],
)
def test_splitting_copies_nothing(layout, shapes):
    tensor = np.arange(24.0).reshape(4, 6)
    assert all(np.shares_memory(part, tensor) for part in layout.split(tensor, shapes))


@pytest.mark.parametrize("groups", [1, 2, 6], ids=["plain", "grouped", "depthwise"])
@pytest.mark.parametrize("space", [1, 2, 3])
def test_a_kernel_convolves_alike_in_either_order(space, groups):
    """By XLA's own dimension numbers, for which neither order is special."""
    draw = np.random.default_rng(0)
    x, kernel = draw.normal(size=(2, *[5] * space, 6)), draw.normal(size=(*[3, 2, 1][:space], 6 // groups, 12))
    axes = "DHW"[:space]
    options = {"window_strides": (1,) * space, "padding": "SAME", "feature_group_count": groups}

    def convolved(kernel, order):
        return jax.lax.conv_general_dilated(x, kernel, dimension_numbers=(f"N{axes}C", order, f"N{axes}C"), **options)

    np.testing.assert_array_equal(convolved(Kernel().join([kernel]), f"OI{axes}"), convolved(kernel, f"{axes}IO"))


class Stage(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 4, (3, 2), rngs=rngs)
        self.norm = BatchNorm(4)
        self.norm.mean[...] = rngs.params.normal((4,))


class Net(nnx.Module):
    """A layer that is apart, and two that are one stack."""

    def __init__(self, rngs):
        self.first = Stage(rngs)
        self.rest = nnx.vmap(lambda key: Stage(nnx.Rngs(key)))(jax.random.split(rngs.params(), 2))
        self.token = nnx.Param(jnp.arange(5.0))


def test_a_model_with_statistics_becomes_tensors_and_one_again():
    """Whose types stay: what is counted is not read, and statistics are no parameters."""
    model = Net(nnx.Rngs(0))
    rows = (
        *conv("first.conv", "x.0.c"),
        *batch_norm("first.norm", "x.0.n", counted=False),
        *under((*conv("conv", "c"), *batch_norm("norm", "n")), "rest.", "x.{1}."),
        *parameter("token", "cls", ones=2),
    )
    entries = resolve(rows, model)
    arrays = {name: make() for name, (_, make) in tensors_of(model, entries).items()}
    assert {name: array.shape for name, array in arrays.items() if name[:3] in ("x.2", "cls")} == {
        "x.2.c.weight": (4, 3, 3, 2), "x.2.c.bias": (4,), "x.2.n.weight": (4,), "x.2.n.bias": (4,),
        "x.2.n.running_mean": (4,), "x.2.n.running_var": (4,), "x.2.n.num_batches_tracked": (), "cls": (1, 1, 5),
    }  # fmt: skip
    counted = {name for name in arrays if name.endswith("num_batches_tracked")}
    assert counted == {"x.1.n.num_batches_tracked", "x.2.n.num_batches_tracked"}
    assert all(arrays[name] == 0 and arrays[name].dtype == np.int64 for name in counted)
    tensors = {
        name: Tensor(array.shape, str(array.dtype), lambda array=array: array)
        for name, array in arrays.items()
        if name not in counted
    }
    assert compare(entries, tensors, re.compile(r"(?!)")) == []
    again = load_model(nnx.eval_shape(lambda: Net(nnx.Rngs(0))), entries, tensors, None, lambda: model)
    jax.tree.map(np.testing.assert_array_equal, again, model)
    assert jax.tree.structure(again) == jax.tree.structure(model)
    assert isinstance(again.first.norm.mean, nnx.BatchStat)


def test_a_row_says_how_its_tensor_fits_other_fields():
    class Table(nnx.Module):
        def __init__(self):
            self.position, self.other = nnx.Param(jnp.zeros((3, 2))), nnx.Param(jnp.zeros(4))

    def longer(table, before, after):
        return np.repeat(table, after["size"] // before["size"], axis=1)

    stored = np.arange(2.0, dtype=np.float32).reshape(1, 1, 2)
    tensors = {
        "p": Tensor((1, 1, 2), "float32", lambda: stored), "q": Tensor((5,), "float32", lambda: np.zeros(5))
    }  # fmt: skip
    entries = resolve((*parameter("position", "p", ones=1, fit=longer), *parameter("other", "q")), Table())
    found = fitted(entries, tensors, {"size": 1}, {"size": 3})
    assert compare(entries, found, re.compile(r"(?!)")) == ["misshapen: q is [5], must be [4]"]
    np.testing.assert_array_equal(found["p"].read(), np.repeat(stored, 3, axis=1))
    assert fitted(entries, found, {}, {}) == found


def test_rows_spell_what_layers_have():
    assert linear("a.up", "x.fc") == (
        TensorRow(("a.up.kernel",), "x.fc.weight", Matrix(1, transposed=True)),
        TensorRow(("a.up.bias",), "x.fc.bias", VECTOR),
    )
    assert matrix(("a", "b"), "c", inputs=2)[0] == TensorRow(("a.kernel", "b.kernel"), "c.weight", Matrix(2))
    assert norm("n", "m") == (TensorRow(("n.scale",), "m.weight"), TensorRow(("n.bias",), "m.bias"))
    assert under(embedding("e", "w"), "at.", "pre.") == (TensorRow(("at.e.embedding",), "pre.w.weight"),)
    assert TensorRow(("a",), "h.{}.x").stacked
    assert not TensorRow(("a",), "x").stacked


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
