"""Adapters in PEFT's form, of files made by hand: what is added, and what is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flax_transformer import hub
from flax_transformer.hub.adapter import ADAPTER, WEIGHTS

BASE = "tests/hub/golden/llama"
ROOT = "base_model.model.model.layers"


def adapter(folder, tensors, **config):
    folder.mkdir(parents=True, exist_ok=True)
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": BASE, **config}
    (folder / ADAPTER).write_text(json.dumps(said))
    save_file(tensors, folder / WEIGHTS)
    return folder


def factors(seed=0, rank=2, module="0.self_attn.q_proj"):
    stored = load_file(f"{BASE}/model.safetensors")
    outputs, inputs = stored[f"model.layers.{module}.weight"].shape
    random = np.random.default_rng(seed)
    down, up = random.normal(size=(rank, inputs)), random.normal(size=(outputs, rank))
    both = {"lora_A": down, "lora_B": up}
    return {f"{ROOT}.{module}.{part}.weight": value.astype(np.float32) for part, value in both.items()}


@pytest.mark.parametrize(("options", "scale"), [({}, 2.0), ({"use_rslora": True}, 4 / 2**0.5)])
def test_the_product_of_factors_is_added_and_saved(options, scale, tmp_path):
    given = factors()
    hub.save(hub.load(adapter(tmp_path / "one", given, **options)), tmp_path / "saved")
    before, after = load_file(f"{BASE}/model.safetensors"), load_file(tmp_path / "saved/model.safetensors")
    down, up = given.values()
    for name, value in before.items():
        wanted = value + scale * up @ down if name == "model.layers.0.self_attn.q_proj.weight" else value
        np.testing.assert_allclose(after[name], wanted, rtol=1e-6, atol=1e-6)


def test_adapters_are_merged_one_after_the_other(tmp_path):
    both = [adapter(tmp_path / str(n), factors(n)) for n in range(2)]
    tokens = np.arange(6)[None]
    one = hub.load(BASE, adapters=both)(input_ids=tokens).logits
    other = hub.load(BASE, adapters=both[::-1])(input_ids=tokens).logits
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert np.abs(one - hub.load(BASE, adapters=both[:1])(input_ids=tokens).logits).max() > 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "peft_type must be LORA or IA3, .* has 'PREFIX_TUNING'"),
        ({"base_model_name_or_path": None}, "must name a checkpoint as base_model_name_or_path, .* got None"),
        ({"alpha_pattern": {"(a+)+$": 2}}, r"alpha_pattern must name modules, .* has '\(a\+\)\+\$'"),
        ({"lora_alpha": "16"}, "lora_alpha must be a number, .* has '16'"),
        ({"layer_replication": [[0, 1]]}, "adapters with layer_replication are not read"),
    ],
)
def test_what_cannot_be_merged_says_so(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        hub.load(adapter(tmp_path, factors(), **change))


def test_an_adapter_is_no_checkpoint_of_its_own_and_has_both_factors(tmp_path):
    with pytest.raises(ValueError, match="must name a checkpoint as base_model_name_or_path"):
        hub.load(adapter(tmp_path / "own", factors(), base_model_name_or_path=str(tmp_path / "own")))
    down = {name: value for name, value in factors().items() if "lora_A" in name}
    with pytest.raises(ValueError, match=r"a module has both factors or a scale, .* has lora_A"):
        hub.load(adapter(tmp_path / "half", down))


def test_an_adapter_of_another_model_is_refused(tmp_path):
    strange = {name.replace("q_proj", "nothing"): value for name, value in factors().items()}
    with pytest.raises(ValueError, match=r"is an adapter of another model: the checkpoint has no model\.layers"):
        hub.load(adapter(tmp_path / "name", strange))
    larger = {name: np.concatenate([value, value], axis=int("lora_A" in name)) for name, value in factors().items()}
    with pytest.raises(ValueError, match="of another shape than the checkpoint's"):
        hub.load(adapter(tmp_path / "shape", larger))
    with pytest.raises(FileNotFoundError, match=f"an adapter has {ADAPTER}"):
        hub.load(BASE, adapters=["tests/hub/golden/bert"])
