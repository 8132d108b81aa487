"""Meshes with Explicit axes, JAX's default, give what those with Auto axes give, at the same price."""

from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from fake_devices import on_eight
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from flax_transformer.bench.workload import Size, from_config
from flax_transformer.models.preset import presets
from flax_transformer.nn import FeedForward, FeedForwardConfig, Residual, ResidualConfig
from flax_transformer.parallel import tree_shardings
from flax_transformer.train.state import state_shardings
from tests.shares import only

pytestmark = pytest.mark.proves("parallelism", "Explicit axes")

CASES = (
    "block", "lookup", "loss",
    "block, with a mask", "feed-forward", "attention layer", "stack", "gradient of a stack", "xla", "blockwise",
    "products", "decoder", "decoding", "encoder-decoder", "classifier",
)  # fmt: skip


@cache
def run(*names):
    return on_eight(Path(__file__).parent / "explicit_axes.py", *names)[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_results_layouts_and_costs_are_those_of_auto_axes(name):
    """Compiled and, as the script itself demands, called as it is. What has rows in front stays split by rows."""
    found = run(*CASES)[name]
    assert found["apart"] < 1e-4
    assert found["flops"] == pytest.approx(1, rel=1e-3)
    if name == "gradient of a stack":
        assert any("'fsdp', 'tensor'" in place for place in found["split"])
    elif name != "loss":
        assert all("('data', 'fsdp')" in place for place in found["split"])
    # Of logits, whose vocabulary is split, the parts are put together.
    assert found["sent"] or name in ("products", "decoder", "decoding", "encoder-decoder")


@pytest.mark.slow
def test_a_run_on_explicit_axes_learns_what_one_device_learns():
    losses = run("train")
    np.testing.assert_allclose(losses["Explicit"], losses["one device"], rtol=1e-5)
    np.testing.assert_allclose(losses["Explicit"], losses["Auto"], rtol=1e-5)


MESH = AbstractMesh((2, 2, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 3)
ROWS = NamedSharding(MESH, PartitionSpec(("data", "fsdp")))
FAMILIES = {make.__module__.rpartition(".")[2]: name for name, make in reversed(presets().items())}
"""A preset of each family."""


def placed(tree, places):
    """Lay shapes out on the mesh; there are no devices."""
    put = lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)  # noqa: E731
    return jax.tree.map(lambda leaf: put(leaf, places), tree) if places is ROWS else jax.tree.map(put, tree, places)


@pytest.mark.rotates
@pytest.mark.parametrize("family", only(FAMILIES, "deit"))
def test_every_family_is_called_and_trained_on_explicit_axes(family):
    """Tracing is where JAX refuses: nothing is compiled. Parameters stay where they are, outputs are split by rows."""
    workload = from_config(family, presets()[FAMILIES[family]](), Size(batch=8))
    batch, model = placed(workload.batch, ROWS), jax.eval_shape(workload.init, jax.random.key(0))
    outputs = traced(workload.forward, placed(model, tree_shardings(model, MESH)), batch)
    assert {leaf.sharding.spec[0] for leaf in jax.tree.leaves(outputs) if leaf.shape[:1] == (8,)} == {ROWS.spec[0]}
    if workload.objective is not None:
        state = placed(workload.state, state_shardings(workload.state, MESH))
        after, _ = traced(workload.step, state, batch)
        specs = [[leaf.sharding.spec for leaf in jax.tree.leaves(each.model)] for each in (state, after)]
        assert specs[0] == specs[1]


def traced(function, *arguments):
    with jax.sharding.use_abstract_mesh(MESH):
        return jax.eval_shape(function, *arguments)


class Own(nnx.Module):
    """A block of one's own, of a layer of this library and one of Flax's."""

    def __init__(self, *, rngs):
        around = ResidualConfig(embed=8, norm_position="pre", layer_scale=0.1)
        self.feedforward, self.scale = (
            FeedForward(FeedForwardConfig(embed=8, inner=16), rngs=rngs),
            nnx.Param(np.ones(8)),
        )
        self.residual = Residual(around, rngs=rngs)

    def __call__(self, x):
        return self.residual(x, lambda x, key: self.feedforward(x) * self.scale[...])


def test_a_block_of_ones_own_runs_on_explicit_axes():
    own = nnx.eval_shape(lambda: Own(rngs=nnx.Rngs(0)))
    x = placed(jax.ShapeDtypeStruct((8, 4, 8), "float32"), ROWS)
    specs = jax.tree.map(lambda leaf: PartitionSpec(*["fsdp"] * (leaf.ndim > 1)), own)
    split = placed(own, jax.tree.map(lambda spec: NamedSharding(MESH, spec), specs))
    for module in (own, split):
        assert traced(lambda own, x: own(x), module, x).sharding.spec[0] == ROWS.spec[0]
