"""Against timm, where it is installed: detectors on its dilated ResNets by their real names, and MLP-Mixer."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

torch = pytest.importorskip("torch")
pytest.importorskip("timm")

from flax_transformer import hub  # noqa: E402
from tests.hub.oracle import compare, forward  # noqa: E402
from tests.hub.timm_model import GOLDEN, TINY, detector, pictures, register  # noqa: E402

pytestmark = pytest.mark.parity

MIXER = Path(__file__).parent / "golden/mixer"


@pytest.mark.proves("detr", "parity", "dilated (DC5), on timm's ResNets")
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("dilation", [True, False])
def test_a_detector_on_a_backbone_of_timm_equals_transformers(tmp_path, name, dilation):
    model = detector(name, dilation=dilation, init_std=0.1)
    if dilation:
        compare(model, tmp_path, **pictures())
        return
    model.save_pretrained(tmp_path)
    wanted, got = forward(model, pictures())["logits"], hub.load(tmp_path)(**pictures()).logits
    assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_golden_detectors_are_what_timm_says():
    register()
    for name in TINY:
        with np.load(GOLDEN / name / "expected.npz") as arrays:
            np.testing.assert_allclose(forward(detector(name), pictures())["logits"], arrays["out_logits"], atol=1e-6)


@pytest.mark.proves("mixer", "parity", "its golden checkpoint is what timm says")
def test_the_golden_mixer_is_what_timm_says():
    """Its tensors load by their names, and it gives the logits that the reference of the paper gave."""
    from timm.models.mlp_mixer import MlpMixer

    model = MlpMixer(
        num_classes=5, img_size=(8, 12), patch_size=(4, 3), num_blocks=2, embed_dim=16, mlp_ratio=(0.5, 1.5)
    ).eval()
    model.load_state_dict({name: torch.as_tensor(x) for name, x in load_file(MIXER / "model.safetensors").items()})
    with np.load(MIXER / "expected.npz") as arrays, torch.no_grad():
        got = model(torch.as_tensor(arrays["in_pixel_values"])).numpy()
        np.testing.assert_allclose(got, arrays["out_logits"], rtol=1e-5, atol=1e-5)
