"""Meshes of any names: what a program costs and computes does not depend on what the user calls the axes."""

from functools import cache
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fake_devices import on_eight
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from flax_transformer.parallel import AXES, AXIS_TO_MESH, axis_rules, batch_sharding, constrain, tree_shardings
from flax_transformer.parallel.axis import axis_to_mesh, mesh_axes, parts

pytestmark = pytest.mark.proves("parallelism", "meshes of other names (`axis_rules`)")

FREE = PartitionSpec.UNCONSTRAINED
NAMES = "data", "data × fsdp × tensor", "fsdp × sequence", "data × pipeline", "data × expert"


@cache
def run(what):
    return on_eight(Path(__file__).parent / "named_axes.py", what)[0]


def mesh(**sizes):
    return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def spec(*axes, shape=(8, 6, 4, 2), **sizes):
    """Return what `constrain` says of an array on a mesh, or None if it says nothing."""
    with jax.sharding.use_abstract_mesh(mesh(**sizes)):
        jaxpr = jax.make_jaxpr(lambda x: constrain(x, *axes))(jnp.zeros(shape))
    found = [eqn.params["sharding"].spec for eqn in jaxpr.eqns]
    return found[0] if found else None


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("what", "name", "program"),
    [("blocks", "data", "block"), ("blocks", "data", "stack")]
    + [
        pytest.param("steps", name, program, marks=pytest.mark.slow)
        for name, program in product(NAMES, ("block", "stack", "train step"))
    ],
)
def test_a_renamed_mesh_costs_the_same(what, name, program):
    found = run(what)
    assert found[f"{name}, renamed"][program] == found[name][program]
    assert found[name][program]["memory"]["temp"] > 0
    if name != "data" and program == "train step":
        assert found[name][program]["collectives"]


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("what", "program"),
    [("blocks", "block"), ("blocks", "stack"), pytest.param("steps", "train step", marks=pytest.mark.slow)],
)
def test_a_batch_split_over_a_mesh_of_which_nothing_is_said_costs_the_same(what, program):
    ours, other = (run(what)[name][program] for name in ("data", "data, nothing said"))
    assert other["collectives"] == ours["collectives"]
    if what == "blocks":
        assert other["memory"] == ours["memory"]
    # Devices may pad and cut the tokens of the loss in other ways.
    assert other["flops"] == pytest.approx(ours["flops"], rel=0 if what == "blocks" else 0.01)


@pytest.mark.slow
def test_losses_on_meshes_of_any_names_and_shapes_equal_one_device():
    """Also where one thing is split over two axes, over fewer devices than there are, and by a rule that holds when the
    step is made, not when it is called."""
    found = run("results")
    assert len(found) > 5
    for name, losses in found.items():
        np.testing.assert_allclose(losses, found["one device"], rtol=1e-5, err_msg=name)


def test_constrain_leaves_what_a_mesh_lacks_to_the_compiler():
    assert spec("batch", "length", "heads", None, data=2) == PartitionSpec("data", FREE, FREE, None)
    assert spec("batch", "length", None, None, data=2, tensor=2) == PartitionSpec("data", FREE, None, None)
    assert spec("batch", "length", "heads", data=2, sequence=3, tensor=4) == PartitionSpec(
        "data", "sequence", "tensor", FREE
    )
    # An axis that is there, with one device, splits nothing, and that is said.
    ours = dict.fromkeys(AXES, 1) | {"tensor": 2}
    assert spec("batch", "length", "heads", None, **ours) == PartitionSpec(None, None, "tensor", None)


def test_constrain_leaves_what_cannot_be_cut_evenly_to_the_compiler():
    assert spec("batch", "length", None, None, data=3, sequence=2) == PartitionSpec(FREE, "sequence", None, None)


@pytest.mark.parametrize("sizes", [{"dp": 2}, {"data": 2, "model": 2}, {"replica": 2, "model": 4}])
def test_constrain_says_nothing_on_a_mesh_with_an_axis_that_nobody_explained(sizes):
    assert spec("batch", "length", "heads", None, **sizes) is None
    assert spec("batch", "length", "heads", None, **sizes, data2=1) is None


def test_a_rule_names_axes():
    with axis_rules({"batch": ("replica", "pod"), "heads": "model", "mine": "extra"}):
        said = spec("batch", "length", "heads", "mine", replica=2, pod=2, model=2, extra=2)
        assert said == PartitionSpec(("replica", "pod"), FREE, "model", "extra")
        with axis_rules({"heads": None}):
            assert spec("batch", None, "heads", replica=2, model=1) == PartitionSpec("replica", None, FREE, FREE)
            assert axis_to_mesh()["heads"] == ()
        assert axis_to_mesh()["heads"] == ("model",)
    assert {axis: place for axis, place in axis_to_mesh().items() if set(place) - {*AXES}} == {}
    assert axis_to_mesh().keys() == AXIS_TO_MESH.keys()


def test_an_axis_is_used_once():
    with axis_rules({"batch": "x", "inner": "x"}):
        assert spec("batch", "length", "inner", x=2) == PartitionSpec("x", FREE, None, FREE)


def test_parts_are_those_of_the_mesh_in_context():
    with axis_rules({"batch": ("a", "b")}), jax.sharding.use_abstract_mesh(mesh(a=2, b=3, tensor=5, c=1)):
        assert (parts("batch"), parts("heads", "kv_heads"), parts("batch", "inner"), parts("length")) == (6, 5, 30, 1)
        assert mesh_axes("heads", "batch", "kv_heads") == ("tensor", "a", "b")
    assert parts("batch") == 1


def test_a_program_of_one_rule_is_not_taken_for_that_of_another():
    split = jax.jit(lambda x: (x * parts("batch")).sum())
    with jax.sharding.use_abstract_mesh(mesh(a=2, b=3)):
        found = []
        for rule in ({"batch": "a"}, {"batch": "b"}, {"batch": ("a", "b")}, {}):
            with axis_rules(rule):
                found.append(str(jax.make_jaxpr(split)(1.0)))
    assert len(set(found)) == 4


def test_parameters_are_laid_out_by_the_rule():
    model = {"query": {"kernel": jnp.zeros((4, 6, 2))}, "norm": {"scale": jnp.zeros(4)}}
    with axis_rules({"batch": ("dp", "shard"), "embed": "shard", "heads": "model"}):
        places = tree_shardings(model, mesh(dp=2, shard=2, model=3))
        assert batch_sharding(mesh(dp=2, shard=2, model=3)).spec == PartitionSpec(("dp", "shard"))
    assert places["query"]["kernel"].spec == PartitionSpec("shard", "model", None)
    assert places["norm"]["scale"].spec == PartitionSpec(None)


@pytest.mark.parametrize("lay", [batch_sharding, lambda mesh: tree_shardings({"norm": {"scale": jnp.zeros(4)}}, mesh)])
def test_arrays_are_not_copied_along_an_axis_by_oversight(lay):
    with pytest.raises(ValueError, match=r"nothing is split over model=4; .*axis_rules"):
        lay(mesh(data=2, model=4))
    lay(mesh(data=2, model=1))
