"""ImageGPT against transformers: every class and layer, greedy pixels, and the round trip."""

import numpy as np
import pytest

from tests.hub.oracle import compare, random_ids
from tests.hub.pictures import make

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("imagegpt", "parity", "every class and layer, greedy pixels")]

CONFIGS = {
    "plain": {"n_embd": 24, "n_layer": 3, "n_head": 4, "vocab_size": 33, "n_positions": 16},
    "odd": {"n_embd": 15, "n_layer": 1, "n_head": 3, "vocab_size": 9, "n_positions": 25, "n_inner": 22,
            "activation_function": "relu"},
    "unscaled": {"n_embd": 12, "n_layer": 2, "n_head": 1, "vocab_size": 17, "n_positions": 9,
                 "scale_attn_weights": False, "layer_norm_epsilon": 1e-3},
    "falling": {"n_embd": 16, "n_layer": 3, "n_head": 2, "vocab_size": 12, "n_positions": 12,
                "scale_attn_by_inverse_layer_idx": True},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["ForCausalImageModeling", "Model", "ForImageClassification"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_class_equals_transformers(tmp_path, kind, name):
    options = CONFIGS[name]
    model = make(f"ImageGPT{kind}", "ImageGPTConfig", **options, num_labels=5)
    compare(model, tmp_path, input_ids=random_ids(options["vocab_size"], 2, options["n_positions"] - 1))


def test_pixels_are_written_as_transformers_does(tmp_path):
    model = make("ImageGPTForCausalImageModeling", "ImageGPTConfig", **CONFIGS["plain"])
    ids = np.array([[32, 5, 7], [32, 1, 30]])
    ours, _ = compare(model, tmp_path, input_ids=ids)
    mask = torch.ones(ids.shape, dtype=torch.int64)
    theirs = model.generate(torch.as_tensor(ids), attention_mask=mask, max_new_tokens=12, do_sample=False)
    got = ours.generate(ids, max_new_tokens=12)
    assert np.array_equal(np.asarray(got), theirs.numpy())
