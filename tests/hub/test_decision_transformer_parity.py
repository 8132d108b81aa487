"""The Decision Transformer against transformers: odd sizes, padding, and the round trip."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.hub.oracle import compare, padded  # noqa: E402
from tests.hub.pictures import make  # noqa: E402

pytestmark = [pytest.mark.parity, pytest.mark.proves("decision_transformer", "parity", "every output and layer")]

CONFIGS = {
    "plain": {"state_dim": 4, "act_dim": 2, "hidden_size": 16, "n_layer": 3, "n_head": 4, "action_tanh": False},
    "odd": {"state_dim": 1, "act_dim": 5, "hidden_size": 15, "n_layer": 1, "n_head": 3, "n_inner": 7,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-3, "max_ep_len": 30},
    "one head": {"state_dim": 17, "act_dim": 1, "hidden_size": 10, "n_layer": 2, "n_head": 1, "n_positions": 9,
                 "scale_attn_weights": False},
}  # fmt: skip


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_every_output_equals_transformers(tmp_path, options, mask):
    random, shape = np.random.default_rng(0), (3, 7)
    numbers = lambda width: random.standard_normal((*shape, width), np.float32)  # noqa: E731
    given = {
        "states": numbers(options["state_dim"]), "actions": numbers(options["act_dim"]), "rewards": numbers(1),
        "returns_to_go": numbers(1), "timesteps": random.integers(0, 30, shape),
    }  # fmt: skip
    if mask:
        given["attention_mask"] = padded([7, 2, 5], 7, "left")
    model = make("DecisionTransformerModel", "DecisionTransformerConfig", **options)
    compare(model, tmp_path, **given)
