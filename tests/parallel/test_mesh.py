"""Meshes of eight devices agree with one device; they run in a process of their own, as the count is fixed at start."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from fake_devices import on_eight
from jax.sharding import AxisType

from flax_transformer.parallel import AXES, MeshConfig, make_mesh

pytestmark = pytest.mark.proves(
    "parallelism", "data, fsdp, tensor, sequence, pipeline and mixtures: losses of one device to 1e-5 with dropout"
)

HERE = Path(__file__).parent
MESHES = (
    "data", "fsdp", "tensor", "sequence", "pipeline", "data×fsdp×tensor", "fsdp×sequence", "data×pipeline",
)  # fmt: skip
# A mesh costs some ten seconds of compiling: one of three axes is tried, the others are left to `make slow`.
FAST = {"seq2seq": ("data×fsdp×tensor",), "causal": ()}
SLOW = {model: tuple(mesh for mesh in MESHES if mesh not in fast) for model, fast in FAST.items()}
EVERY = [(model, mesh) for model, meshes in FAST.items() for mesh in meshes] + [
    pytest.param((model, mesh), marks=pytest.mark.slow) for model, meshes in SLOW.items() for mesh in meshes
]


@cache
def run(*arguments: str) -> tuple[dict, str]:
    """Return what the script found, and what it said on standard error."""
    return on_eight(HERE / "eight_devices.py", *arguments)


@pytest.fixture
def trained(request):
    """Train a model on the meshes that are asked for with this one, and give what belongs to it."""
    model, mesh = request.param
    meshes = FAST[model] if mesh in FAST[model] else SLOW[model]
    result, said = run(model, *meshes)
    assert result["devices"] == 8
    return SimpleNamespace(
        one=result["losses"]["one device"], losses=result["losses"][mesh], apart=result["parameters"][mesh],
        layout=result["layout"][mesh], said=said,
    )  # fmt: skip


@pytest.mark.rotates
@pytest.mark.parametrize("trained", EVERY, indirect=True)
def test_losses_equal_one_device_with_dropout(trained):
    """The causal model's steps accumulate two parts, and compute its blocks again on the way back."""
    assert len(trained.one) == 20
    assert trained.one[-1] < trained.one[0]
    np.testing.assert_allclose(trained.losses, trained.one, rtol=1e-5)
    # Twenty steps of Adam at 1e-3 move a parameter by up to 2e-2.
    assert trained.apart < 4e-4
    # XLA says so when it knows no better way from one layout to another.
    assert "Involuntary full rematerialization" not in trained.said


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("trained", "share"),
    [
        pytest.param(("seq2seq", "data"), 1, marks=pytest.mark.slow),
        pytest.param(("seq2seq", "fsdp"), 1 / 8, marks=pytest.mark.slow),
        pytest.param(("seq2seq", "tensor"), 1 / 4, marks=pytest.mark.slow),
        (("seq2seq", "data×fsdp×tensor"), 1 / 4),
    ],
    indirect=["trained"],
)
def test_kernels_and_moments_lie_split(trained, share):
    kernels = {name: place[1] for name, place in trained.layout.items() if name.endswith(("kernel", "embedding"))}
    assert sum(name.startswith("model.") for name in kernels) == 17
    assert any(name.startswith("opt_state.") and ".nu." in name for name in kernels)
    assert kernels == dict.fromkeys(kernels, share)


@pytest.mark.parametrize(
    "trained",
    [("seq2seq", "data×pipeline"), ("causal", "pipeline")],
    indirect=True,
)
@pytest.mark.slow
def test_every_stage_holds_its_layers_alone(trained):
    stacked = {name: place[1] for name, place in trained.layout.items() if ".embedding" not in name}
    inside = {name: share for name, share in stacked.items() if any(f".{p}." in name for p in PARTS)}
    assert len(inside) > 20
    assert inside == dict.fromkeys(inside, 1 / 4)


PARTS = ("encoder", "decoder", "blocks")


@pytest.mark.parametrize("trained", [("seq2seq", "data×fsdp×tensor")], indirect=True)
def test_spec_of_a_stacked_kernel(trained):
    spec, _ = trained.layout["model.decoder.blocks.cross.query.kernel"]
    assert spec.endswith("(None, 'fsdp', 'tensor', None)")


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "rmsprop", "adafactor", "lion", "muon"])
def test_every_optimizer_state_is_laid_out_as_its_parameters(name):
    found, _ = run("optimizers")
    assert found[name]["wrong"] == []
    assert found[name]["matched"] >= 43


def test_one_axis_takes_what_is_left():
    devices = [jax.devices()[0]]
    mesh = make_mesh(MeshConfig(data=1, fsdp=-1), devices)
    assert mesh.axis_names == AXES
    assert mesh.axis_types == (AxisType.Auto,) * len(AXES)
    assert mesh.size == 1


@pytest.mark.parametrize(
    ("config", "count", "message"),
    [
        (MeshConfig(data=4, tensor=2), 1, "larger than the devices: .*data=4.*tensor=2.* needs 8, there are 1"),
        (MeshConfig(data=-1, fsdp=4), 2, "larger than the devices: .* needs 4, there are 2"),
        (MeshConfig(data=2), 6, "must use all devices: .* makes 2, there are 6"),
        (MeshConfig(data=-1, tensor=4), 6, "must use all devices: .* makes 4, there are 6"),
    ],
)
def test_a_mesh_that_cannot_be_names_both_numbers(config, count, message):
    with pytest.raises(ValueError, match=message):
        make_mesh(config, jax.devices()[:1] * count)


def test_a_mesh_of_one_is_allowed_on_many_devices():
    assert make_mesh(MeshConfig(data=1), jax.devices()[:1] * 8).size == 1


@pytest.mark.parametrize("sizes", [{"data": 0}, {"data": -2}, {"data": -1, "fsdp": -1}])
def test_axis_sizes_are_checked(sizes):
    with pytest.raises(ValueError, match=r"mesh axis .*got \{'data': "):
        MeshConfig(**sizes)
