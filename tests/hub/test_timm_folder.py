"""Folders of timm without it: other classes, what is wrapped, and how images are prepared."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.hub.timm_folder import timm_processor

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.rotates
@pytest.mark.proves("timm_vit", "weights", "other classes, with their names, as timm keeps them")
@pytest.mark.proves("timm_eva", "weights", "other classes, with their names, as timm keeps them")
def test_other_classes_are_kept_as_timm_keeps_them(tmp_path):
    names = {str(number): name for number, name in enumerate(("cat", "dog", "owl"))}
    lenient = hub.Lenient(config={"id2label": names}, initialise=(r"^head\.(?!norm)",))
    for kind in ("timm_vit", "timm_eva", "timm_convnext"):
        model = hub.load(GOLDEN / kind, lenient=lenient)
        hub.save(model, tmp_path / kind)
        config = json.loads((tmp_path / kind / "config.json").read_text())
        assert (config["num_classes"], config["label_names"]) == (3, ["cat", "dog", "owl"])
        assert not {"model_type", "architectures", "id2label", "num_labels"} & config.keys()
        again = hub.load(tmp_path / kind)
        assert again.config["id2label"] == names
        assert all(map(np.array_equal, jax.tree.leaves(again.model), jax.tree.leaves(model.model)))


@pytest.mark.parametrize("kind", ["timm_vit", "timm_vit_registers", "timm_eva", "timm_convnext"])
def test_a_model_made_here_leaves_as_timm_s(tmp_path, kind):
    """With all arguments that make it, whatever the architecture's name stands for."""
    loaded = hub.load(GOLDEN / kind)
    wrapped = hub.wrap(loaded.model, loaded.config["architectures"][0])
    hub.save(wrapped, tmp_path)
    assert "model_type" not in json.loads((tmp_path / "config.json").read_text())
    again = hub.load(tmp_path)
    assert again.model.cfg == loaded.model.cfg
    assert all(map(np.array_equal, jax.tree.leaves(again.model), jax.tree.leaves(loaded.model)))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"crop_mode": "border"}, "cut in the middle or squashed"),
        ({"interpolation": "random"}, "images are resized by nearest"),
        ({"crop_pct": 2}, "crop_pct must be from 0.01 to 1, got 2"),
        ({"input_size": [3, 32, 48]}, "cut to squares, config.json has 32 × 48"),
    ],
)
def test_ways_to_prepare_images_that_are_not_known_are_named(tmp_path, said, message):
    shutil.copytree(GOLDEN / "timm_convnext", tmp_path / "other")
    file = tmp_path / "other" / "config.json"
    config = json.loads(file.read_text())
    config["pretrained_cfg"] |= said
    file.write_text(json.dumps(config))
    with pytest.raises(ValueError, match=message):
        timm_processor(tmp_path / "other")
    loaded = hub.load(tmp_path / "other")  # weights are worth having alone
    with pytest.raises(ValueError, match=message):
        loaded.processor(np.zeros((40, 40, 3), np.uint8))


def test_images_may_be_squashed(tmp_path):
    shutil.copytree(GOLDEN / "timm_convnext", tmp_path / "other")
    file = tmp_path / "other" / "config.json"
    config = json.loads(file.read_text())
    config["pretrained_cfg"] |= {"crop_mode": "squash", "input_size": [3, 32, 48], "crop_pct": 1.0}
    file.write_text(json.dumps(config))
    found = timm_processor(tmp_path / "other")(np.full((50, 20, 3), 255, np.uint8))["pixel_values"]
    assert found.shape == (1, 3, 32, 48)
    assert np.ptp(found[0, 0]) == 0
