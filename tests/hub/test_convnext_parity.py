"""ConvNeXt against transformers: every class, odd sizes, every option, and the round trip."""

import numpy as np
import pytest

from flax_transformer import hub
from tests.hub.oracle import close, compare, forward

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("convnext", "parity", "every class but `ConvNextBackbone`, every stage"),
]

CONFIGS = {
    "plain": {"hidden_sizes": [8, 12, 20], "depths": [2, 1, 3], "layer_scale_init_value": 0.5},
    "grey, without factors": {
        "hidden_sizes": [6, 10], "depths": [1, 2], "num_channels": 1, "patch_size": 3, "layer_scale_init_value": 0.0,
    },
    "relu, one stage": {"hidden_sizes": [7], "depths": [2], "hidden_act": "relu", "patch_size": 2},
    "eps": {
        "hidden_sizes": [4, 9, 6, 12], "depths": [1, 1, 2, 1], "layer_norm_eps": 0.1, "layer_scale_init_value": 2.0,
    },
}  # fmt: skip
SIZES = {"plain": (39, 51), "grey, without factors": (32, 17), "relu, one stage": (9, 14), "eps": (70, 64)}


def make(kind, options, **more):
    torch.manual_seed(1)
    more |= {"initializer_range": 0.3, "num_stages": len(options["depths"])}
    model = getattr(transformers, kind)(transformers.ConvNextConfig(**options, **more))
    with torch.no_grad():
        for each in model.parameters():
            if each.ndim == 1:
                each.add_(0.2 * torch.randn_like(each))
    return model


def pictures(options, size, rows=3):
    shape = rows, options.get("num_channels", 3), *size
    return {"pixel_values": np.random.default_rng(0).normal(size=shape).astype(np.float32)}


@pytest.mark.parametrize("kind", ["ConvNextModel", "ConvNextForImageClassification"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_class_equals_transformers(tmp_path, name, kind):
    compare(make(kind, CONFIGS[name], num_labels=5), tmp_path, **pictures(CONFIGS[name], SIZES[name]))


def test_other_sizes_than_one_checkpoints_own(tmp_path):
    model = make("ConvNextForImageClassification", CONFIGS["plain"])
    model.eval().save_pretrained(tmp_path)
    ours = hub.load(tmp_path)
    for size in ((16, 90), (64, 64)):
        images = pictures({}, size)
        close("logits", forward(model, images)["logits"], ours(**images).logits, images)
