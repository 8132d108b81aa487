"""MLP-Mixer against a forward pass in PyTorch written from the paper: odd sizes, every layer, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from flax_transformer import hub  # noqa: E402
from tests.hub import mixer_reference as reference  # noqa: E402
from tests.hub.oracle import close, same_tensors  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("mixer", "parity", "every layer, on timm's names of tensors")]

CONFIGS = {
    "plain": {
        "hidden_size": 24, "num_hidden_layers": 3, "tokens_intermediate_size": 10, "intermediate_size": 40,
        "image_size": [16, 16], "patch_size": [4, 4], "num_channels": 3,
    },
    "oblong, grey": {
        "hidden_size": 15, "num_hidden_layers": 1, "tokens_intermediate_size": 7, "intermediate_size": 22,
        "image_size": [17, 31], "patch_size": [5, 4], "num_channels": 1,
    },
    "eps": {
        "hidden_size": 6, "num_hidden_layers": 2, "tokens_intermediate_size": 30, "intermediate_size": 5,
        "image_size": [12, 8], "patch_size": [3, 4], "num_channels": 2, "layer_norm_eps": 0.1,
    },
    "one patch": {
        "hidden_size": 9, "num_hidden_layers": 2, "tokens_intermediate_size": 3, "intermediate_size": 11,
        "image_size": [6, 6], "patch_size": [6, 6], "num_channels": 4,
    },
}  # fmt: skip


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_layer_equals_the_paper(tmp_path, options):
    given = reference.tensors(options)
    reference.save(tmp_path / "theirs", given, options)
    shape = 3, options["num_channels"], *options["image_size"]
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    ours = hub.load(tmp_path / "theirs")
    got = ours(pixel_values=images, output_hidden_states=True)
    logits, layers = reference.forward(given, torch.as_tensor(images), options)
    close("logits", logits.numpy(), got.logits, {})
    close("hidden_states", tuple(layer.numpy() for layer in layers), got.hidden_states, {})
    hub.save(ours, tmp_path / "back")
    same_tensors(tmp_path / "theirs", tmp_path / "back")
