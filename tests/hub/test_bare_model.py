"""Models without what is usually on top: no pooler, no heads, no decoder; told by their tensors, saved as they were."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.registry import find_family, find_uses
from flax_transformer.models.head import Classifier, with_head
from flax_transformer.models.vision.detr import Detr

GOLDEN = Path(__file__).parent / "golden"
IMAGES = np.random.default_rng(0).normal(size=(2, 1, 12, 12)).astype(np.float32)


def opened(kind, architecture, **lenient):
    return hub.load(GOLDEN / kind, lenient=hub.Lenient(architecture=architecture, **lenient))


@pytest.fixture
def pooled(tmp_path):
    """Save a ViT with a pooler; give its folder."""
    backbone = hub.load(GOLDEN / "vit").model.backbone.cfg
    model = Classifier(with_head(backbone, outputs=0, pool="first", dense="gelu"), rngs=nnx.Rngs(0))
    hub.save(hub.wrap(model, "ViTModel"), tmp_path / "pooled")
    return tmp_path / "pooled"


@pytest.mark.rotates
def test_a_classifier_read_as_a_model_has_no_pooler_and_is_saved_so(tmp_path):
    bare, whole = opened("vit", "ViTModel"), hub.load(GOLDEN / "vit")
    got = bare(pixel_values=IMAGES)
    assert got.keys() == ["last_hidden_state"]
    np.testing.assert_array_equal(got.last_hidden_state, whole(pixel_values=IMAGES).last_hidden_state)
    hub.save(bare, tmp_path)
    assert not [name for name in load_file(tmp_path / "model.safetensors") if "pooler" in name]
    again = hub.load(tmp_path)
    assert hub.wrap(again.model, "ViTModel").config["has_pooler"] is False
    np.testing.assert_array_equal(again(pixel_values=IMAGES).last_hidden_state, got.last_hidden_state)


@pytest.mark.rotates
def test_a_pooler_is_what_the_tensors_tell_whatever_config_json_says(pooled):
    fields = json.loads((pooled / "config.json").read_text())
    assert fields["pooler_act"] == "gelu"
    (pooled / "config.json").write_text(json.dumps({**fields, "has_pooler": False}))
    assert hub.load(pooled)(pixel_values=IMAGES).pooler_output.shape == (2, 8)


def test_half_a_pooler_is_refused(pooled):
    tensors = load_file(pooled / "model.safetensors")
    del tensors["pooler.dense.bias"]
    save_file(tensors, pooled / "model.safetensors")
    with pytest.raises(ValueError, match=r"not a whole ViTModel: 1 difference\n  missing: pooler\.dense\.bias \[8\]$"):
        hub.load(pooled)


@pytest.mark.rotates
def test_a_detector_without_heads_goes_both_ways_and_finds_nothing(tmp_path):
    whole, bare = hub.load(GOLDEN / "detr"), opened("detr", "DetrModel")
    inputs = {"pixel_values": np.random.default_rng(1).normal(size=(1, 1, 24, 32)).astype(np.float32)}
    wanted, got = whole(**inputs), bare(**inputs)
    assert got.keys() == ["last_hidden_state", "encoder_last_hidden_state"]
    for name in got:
        np.testing.assert_array_equal(got[name], wanted[name])
    hub.save(hub.wrap(bare.model, "DetrModel"), tmp_path)
    np.testing.assert_array_equal(hub.load(tmp_path)(**inputs).last_hidden_state, got.last_hidden_state)
    assert isinstance(bare.model, Detr)
    with pytest.raises(ValueError, match="objects are found by a model with heads, got one of classes=None"):
        bare.model(jnp.moveaxis(inputs["pixel_values"], 1, -1))
    with pytest.raises(ValueError, match="classes must be at least 1"):
        opened("detr", "DetrForObjectDetection", config={"num_labels": 0})


@pytest.mark.parametrize(("kind", "asked", "served"), [
    (
        "beit", "BeitForDepthEstimation",
        "BeitModel, BeitForImageClassification, BeitForMaskedImageModeling, BeitForSemanticSegmentation, BeitBackbone",
    ),
    ("detr", "TableTransformerModel", "DetrForObjectDetection, DetrForSegmentation, DetrModel"),
    ("vit", "ViTMAEForPreTraining", "ViTModel, ViTForImageClassification, ViTForMaskedImageModeling"),
])  # fmt: skip
def test_what_is_not_served_is_named_beside_what_is(tmp_path, kind, asked, served):
    folder = Path(shutil.copytree(GOLDEN / kind, tmp_path / kind))
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "architectures": [asked]}))
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        hub.load(folder)
    said = f"config.json has the architecture '{asked}'; supported of {kind} are {served}"
    assert str(refused.value) == f"{folder / 'config.json'}: {said}"


@pytest.mark.rotates
def test_an_autoencoder_is_read_as_a_vit_without_its_decoder():
    given = {"num_labels": 5}
    vit = opened("vit_mae", "ViTForImageClassification", config=given, initialise=("^classifier",))
    assert find_family(vit.config)[0].model_type == "vit"
    assert vit.config["architectures"] == find_uses("vit_mae", "classification") == ["ViTForImageClassification"]
    states = hub.load(GOLDEN / "vit_mae")(pixel_values=IMAGES)
    assert vit(pixel_values=IMAGES).logits.shape == (2, 5)
    np.testing.assert_allclose(vit(pixel_values=IMAGES).last_hidden_state, states.last_hidden_state, atol=1e-6)
    assert not np.any(states.mask)
    with pytest.raises(ValueError, match="supported of vit_mae are ViTMAEModel, ViTMAEForPreTraining"):
        opened("vit_mae", "DeiTForImageClassification")


@pytest.mark.rotates
def test_an_autoencoder_reads_all_patches_without_noise():
    """As it does with noise of which nothing is masked, but for their order."""
    mae = opened("vit_mae", "ViTMAEForPreTraining", config={"mask_ratio": 0.0})
    P = np.prod(mae.model.cfg.encoder.patches.grid)
    order = np.random.default_rng(0).permutation(P)
    none = mae(pixel_values=IMAGES)
    some = mae(pixel_values=IMAGES, noise=jnp.broadcast_to(np.argsort(order), (2, P)).astype(jnp.float32))
    np.testing.assert_allclose(none.last_hidden_state[:, 1:][:, order], some.last_hidden_state[:, 1:], atol=1e-6)
    np.testing.assert_allclose(none.logits, some.logits, atol=1e-5)
    assert none.ids_restore.tolist() == [list(range(P))] * 2
