"""Parameters that a user adds: who says what their axes are, and that they train on any mesh as on one device."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import own_parameters
import pytest
from fake_devices import on_eight
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from flax_transformer.parallel import (
    AXES,
    axis_rules,
    logical_axes,
    sharding_rules,
    tree_axes,
    tree_shardings,
    with_axes,
)

pytestmark = pytest.mark.rotates

MESH = AbstractMesh((2, 1, 2, 1, 2, 1), AXES, axis_types=(AxisType.Auto,) * 6)


@pytest.fixture(scope="module")
def trained():
    return on_eight(Path(own_parameters.__file__))[0]


@pytest.mark.parametrize("mesh", own_parameters.MESHES)
def test_a_module_of_ones_own_trains_on_a_mesh_as_on_one_device(trained, mesh):
    found = trained[mesh]
    np.testing.assert_allclose(found["told"], trained["alone"], rtol=1e-5)
    np.testing.assert_allclose(found["by rules"], found["told"], rtol=1e-6)
    assert found["apart"] < 1e-5
    assert found["same layout"]
    assert trained["alone"][-1] < trained["alone"][0]


def test_what_a_parameter_says_is_where_it_lies(trained):
    layout = trained["data×fsdp×tensor"]["layout"]
    assert layout["model.blocks.channels"] == [None, "fsdp", "tensor"]
    assert layout["opt_state.0.nu.blocks.channels"] == layout["ema.blocks.channels"] == layout["model.blocks.channels"]
    assert layout["model.blocks.gamma"] == [None, None]
    assert trained["fsdp×sequence"]["layout"]["model.blocks.tokens"] == [None, "sequence", None]
    assert trained["data×pipeline"]["layout"]["model.blocks.gamma"] == ["pipeline", None]


def test_a_matrix_nobody_speaks_of_is_an_error_that_says_how_to():
    model = jax.eval_shape(own_parameters.init, jax.random.key(0))
    with pytest.raises(
        ValueError, match=r"matches the parameter blocks.channels of rank 3; say .*nnx.Param\(x, .*with_axes\("
    ):
        tree_shardings(model, MESH)
    with sharding_rules(own_parameters.RULES):
        place = tree_shardings(model, MESH)["blocks"].channels.get_raw_value()
    assert place.spec == PartitionSpec(None, "fsdp", "tensor")


def test_a_vector_nobody_speaks_of_is_whole_behind_its_layers():
    tree = {
        "blocks": {"attention": {"query": {"kernel": jnp.zeros((3, 8, 2, 4))}}, "scale": {"gamma": jnp.zeros((3, 8))}},
        "gain": jnp.zeros(8),
        "temperature": jnp.zeros(()),
    }
    assert tree_axes(tree) == {
        "blocks.attention.query.kernel": ("layers", "embed", "heads", None),
        "blocks.scale.gamma": ("layers", None),
        "gain": (None,),
        "temperature": (),
    }


def test_a_matrix_beside_layers_is_no_vector():
    tree = {"blocks": {"up": {"kernel": jnp.zeros((3, 8, 16))}, "mixer": jnp.zeros((3, 8, 8))}}
    with pytest.raises(ValueError, match=r"no sharding rule matches the parameter blocks.mixer of rank 3"):
        tree_axes(tree)


def test_the_run_speaks_first_then_the_parameter_then_the_table():
    said = nnx.Param(jnp.zeros((8, 8)), out_sharding=("inner", None), eager_sharding=False)
    tree = {"up": {"kernel": said}}
    assert tree_axes({"up": {"kernel": jnp.zeros((8, 8))}}) == {"up.kernel": ("embed", "inner")}
    assert tree_axes(tree) == {"up.kernel": ("inner", None)}
    with sharding_rules({r"up\.kernel$": (None, "vocab")}):
        assert tree_axes(tree) == {"up.kernel": (None, "vocab")}
        with sharding_rules({"kernel": ("batch", None)}):
            assert logical_axes("up.kernel", 2) == ("batch", None)
        assert logical_axes("up.kernel", 3) == ("layers", None, "vocab")
    assert tree_axes(tree) == {"up.kernel": ("inner", None)}


def test_flax_initializers_may_say_the_axes():
    kernel = nnx.with_partitioning(nnx.initializers.ones_init(), ("embed", "heads"), eager_sharding=False)
    linear = nnx.Linear(8, 4, kernel_init=kernel, rngs=nnx.Rngs(0))
    assert tree_axes({"mine": linear}) == {"mine.kernel": ("embed", "heads"), "mine.bias": (None,)}


def test_axes_are_told_to_a_copy_with_the_same_numbers():
    model = own_parameters.init(jax.random.key(0))
    told = with_axes(model, own_parameters.RULES)
    assert "out_sharding" not in model["blocks"].channels.get_metadata()
    assert tree_axes(told)["blocks.channels"] == ("layers", "embed", "inner")
    for one, two in zip(jax.tree.leaves(model), jax.tree.leaves(told), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"chanels$": ("embed", None)}, r"must match a Flax variable of the model, got chanels\$"),
        ({"(": ("embed",)}, r"must be a regular expression, got '\('"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rules, told):
    with pytest.raises(ValueError, match=told):
        with_axes(own_parameters.init(jax.random.key(0)), rules)


def test_a_pattern_that_is_none_is_refused_where_it_is_said():
    with pytest.raises(ValueError, match="must be a regular expression"), sharding_rules({"(": ("embed",)}):
        pass


def test_axes_of_a_name_nobody_splits_are_refused():
    with sharding_rules({"mixer$": ("embedd", None)}):
        with pytest.raises(ValueError, match=r"batch, length, .* got 'embedd' for the parameter mixer"):
            tree_axes({"mixer": jnp.zeros((8, 8))})
        with axis_rules({"embedd": "fsdp"}):
            assert tree_shardings({"mixer": jnp.zeros((8, 8))}, MESH)["mixer"].spec == PartitionSpec("fsdp", None)
