"""Detectors whose last stage dilates (DC5), against what transformers said of them on timm's ResNets."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from flax_transformer import hub
from flax_transformer.hub.family import detr
from flax_transformer.models.preset import abstract
from flax_transformer.models.vision.detr import detr_resnet50
from flax_transformer.models.vision.resnet import resnet18
from flax_transformer.nn import with_fields
from tests.hub.timm_model import GOLDEN, TINY

KINDS = pytest.mark.parametrize("kind", TINY)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Know the tiny ResNets by name, as timm does where the golden checkpoints are made."""
    monkeypatch.setattr(detr, "TIMM", {**detr.TIMM, **TINY})


def changed(folder, tmp_path, **fields):
    """Copy a checkpoint, with other fields in its config.json; None takes one out."""
    folder = Path(shutil.copytree(folder, tmp_path / "changed"))
    said = json.loads((folder / "config.json").read_text()) | fields
    said = {name: value for name, value in said.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def expected(kind):
    with np.load(GOLDEN / kind / "expected.npz") as arrays:
        parts = {
            side: {name[len(side) :]: x for name, x in arrays.items() if name.startswith(side)}
            for side in ("in_", "out_")
        }
    return parts["in_"], parts["out_"]


@pytest.mark.rotates
@pytest.mark.proves("detr", "parity", "dilated (DC5) as on timm's ResNets, without PyTorch")
@KINDS
def test_a_dilated_detector_says_what_transformers_does(kind):
    given, wanted = expected(kind)
    ours = hub.load(GOLDEN / kind)
    assert ours.model.cfg.backbone.stride == 16
    got = ours(**given)
    for name, value in wanted.items():
        assert got[name].shape == value.shape
        assert np.abs(got[name] - value).max() <= 1e-5 * np.abs(value).max(), name


@pytest.mark.rotates
@KINDS
def test_it_is_saved_with_the_tensors_and_the_backbone_that_it_came_with(kind, tmp_path):
    hub.save(hub.load(GOLDEN / kind), tmp_path)
    before, after = (load_file(folder / "model.safetensors") for folder in (GOLDEN / kind, tmp_path))
    assert sorted(before) == sorted(after)
    for name, tensor in before.items():
        np.testing.assert_array_equal(tensor, after[name], err_msg=name)
    assert json.loads((tmp_path / "config.json").read_text())["backbone_config"]["output_stride"] == 16


@pytest.mark.rotates
def test_the_words_of_version_4_say_the_same(tmp_path):
    said = {"use_timm_backbone": True, "backbone": "basic", "backbone_config": None}
    given, wanted = expected("basic")
    got = hub.load(changed(GOLDEN / "basic", tmp_path, **said))(**given)
    np.testing.assert_allclose(got.logits, wanted["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("said", "says"), [
    ({"backbone_config": {"model_type": "timm_backbone", "backbone": "basic", "output_stride": 8}},
     r"config\.json has output_stride=8 for the backbone; supported are 16 and 32"),
    ({"backbone_config": {"model_type": "resnet"}},
     r"dilation is of a backbone that timm names, config\.json has dilation=true beside a ResNet"),
])  # fmt: skip
def test_what_dilates_otherwise_is_refused(tmp_path, said, says):
    with pytest.raises(ValueError, match=says):
        hub.load(changed(GOLDEN / "basic", tmp_path, **said))


@pytest.mark.rotates
def test_a_detector_made_here_is_named_as_timm_names_it():
    backbone = with_fields(resnet18().backbone, dilated=True, frozen=True)
    model = abstract(with_fields(detr_resnet50(classes=3), backbone=backbone))
    said = hub.wrap(model, "DetrForObjectDetection").config
    assert (said["backbone"], said["use_timm_backbone"], said["dilation"]) == ("resnet18", True, True)
    odd = abstract(with_fields(detr_resnet50(classes=3), backbone=with_fields(backbone, depths=(1, 2, 2, 2))))
    with pytest.raises(ValueError, match=r"a backbone that dilates must be one of resnet18, .*, got another"):
        hub.wrap(odd, "DetrForObjectDetection")
    with pytest.raises(ValueError, match=r"its config\.json would describe one with dilated False instead of True"):
        hub.wrap(abstract(with_fields(resnet18(), dilated=True)), "ResNetForImageClassification")
