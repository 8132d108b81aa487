import re

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from flax_transformer.models.seq2seq import Seq2Seq
from flax_transformer.models.text.transformer import transformer_base, transformer_big, transformer_tiny
from flax_transformer.parallel import AXES, RULES, constrain, logical_axes, path_name, tree_shardings

MESH = AbstractMesh((2, 1, 4, 1, 2, 1), AXES, axis_types=(AxisType.Auto,) * 6)


def abstract(preset):
    return nnx.eval_shape(lambda: Seq2Seq(preset(vocab=1024), rngs=nnx.Rngs(0)))


@pytest.mark.parametrize("preset", [transformer_tiny, transformer_base, transformer_big])
def test_every_parameter_of_every_preset_has_a_rule(preset):
    model = abstract(preset)
    places = tree_shardings(model, MESH)
    for (path, leaf), place in zip(jax.tree_util.tree_leaves_with_path(model), jax.tree.leaves(places), strict=True):
        name = path_name(path)
        matching = [pattern for pattern, _ in RULES if re.search(pattern, name)]
        assert len(matching) == 1, name
        assert place.shard_shape(leaf.shape)


def test_matrices_are_split_over_fsdp_and_tensor():
    model = abstract(transformer_base)
    places = dict(
        zip(
            (path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model)),
            (place.spec for place in jax.tree.leaves(tree_shardings(model, MESH))),
            strict=True,
        )
    )
    assert places["encoder.blocks.attention.query.kernel"] == PartitionSpec(None, "fsdp", "tensor", None)
    assert places["encoder.blocks.attention.out.kernel"] == PartitionSpec(None, "tensor", None, "fsdp")
    assert places["decoder.blocks.feedforward.up.kernel"] == PartitionSpec(None, "fsdp", "tensor")
    assert places["decoder.blocks.feedforward.down.kernel"] == PartitionSpec(None, "tensor", "fsdp")
    assert places["embedding.token.embedding"] == PartitionSpec("tensor", "fsdp")
    assert places["decoder.blocks.cross_residual.norm.scale"] == PartitionSpec(None, None)


def test_a_parameter_without_a_rule_is_an_error():
    with pytest.raises(ValueError, match=r"no sharding rule matches the parameter encoder.mixer.kernel of rank 3"):
        tree_shardings({"encoder": {"mixer": {"kernel": jnp.zeros((2, 4, 4))}}}, MESH)


def test_a_rule_with_more_axes_than_the_parameter_is_an_error():
    with pytest.raises(ValueError, match=r"names 2 axes, but up.kernel has 1"):
        logical_axes("up.kernel", 1)


def test_an_axis_that_does_not_divide_names_both_numbers():
    with pytest.raises(ValueError, match=r"up.kernel has embed=6, fsdp=4"):
        tree_shardings({"up": {"kernel": jnp.zeros((6, 8))}}, MESH)


def test_scalars_and_keys_are_replicated():
    places = tree_shardings({"count": jnp.zeros(()), "key": jax.random.key(0)}, MESH)
    assert {place.spec for place in places.values()} == {PartitionSpec()}


def test_constrain_is_a_no_op_without_a_mesh():
    x = jnp.ones((2, 3))
    assert constrain(x, "batch", None) is x


@pytest.mark.parametrize("axes", [("data",), ("tensor",), ("tensor", "data")])
def test_constrain_speaks_only_of_axes_the_mesh_has(axes):
    x, mesh = jnp.ones((4, 3, 2)), AbstractMesh((2,) * len(axes), axes, axis_types=(AxisType.Auto,) * len(axes))
    with jax.sharding.use_abstract_mesh(mesh):
        jaxpr = jax.make_jaxpr(lambda x: constrain(x, "batch", None, "heads"))(x)
    (spec,) = (eqn.params["sharding"].spec for eqn in jaxpr.eqns)
    assert {place for place in spec if isinstance(place, str)} == set(axes)


@pytest.mark.parametrize("kind", [AxisType.Manual, AxisType.Explicit])
def test_constrain_leaves_alone_what_the_compiler_does_not_lay_out(kind):
    """Inside `jax.shard_map` axes are manual: an array there is a part already."""
    x, mesh = jnp.ones((4, 2)), AbstractMesh((2, 2), ("data", "tensor"), axis_types=(kind,) * 2)
    with jax.sharding.use_abstract_mesh(mesh):
        assert jax.make_jaxpr(lambda x: constrain(x, "batch", "heads"))(x).eqns == []
