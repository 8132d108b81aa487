"""The compact convolutional Transformer against a forward pass in PyTorch written from the paper: odd sizes, every
layer, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from flax_transformer import hub  # noqa: E402
from tests.hub import cct_reference as reference  # noqa: E402
from tests.hub.oracle import close, same_tensors  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("cct", "parity", "every layer, on names of tensors of ours")]

CONFIGS = {
    "plain": {
        "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
        "image_size": [16, 16], "stem_sizes": [10], "num_channels": 3, "max_pool": True,
    },
    "oblong, grey": {
        "hidden_size": 15, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 7,
        "image_size": [17, 30], "stem_sizes": [4, 6], "num_channels": 1, "max_pool": True,
    },
    "strides, eps": {
        "hidden_size": 6, "num_hidden_layers": 2, "num_attention_heads": 1, "intermediate_size": 5,
        "image_size": [12, 7], "stem_sizes": [3], "num_channels": 2, "max_pool": False, "layer_norm_eps": 0.1,
    },
    "one convolution": {
        "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 11,
        "image_size": [5, 6], "stem_sizes": [], "num_channels": 4, "max_pool": False,
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
