"""A folder of few bits is measured with the few bits that it has: what its config.json says is what its tensors are."""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.bench.target import find_target
from flax_transformer.bench.workload import Size
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.models.preset import find_preset
from flax_transformer.nn import with_fields
from flax_transformer.nn.quantized import is_quantized

pytestmark = pytest.mark.proves("kernels of few bits", "a folder is measured as it is, in groups of any size")

RULES = {
    "groups": Quantization(weights="int4", group=16),
    "inputs": Quantization(weights="int8", activations="int8", embeddings=True),
    "tables": Quantization(weights="int8", embeddings=True, pattern="token"),
    "several": (
        Quantization(weights="float8_e4m3fn", pattern="attention"),
        Quantization(weights="int4", group=8, pattern=r"feedforward\.(up|gate)"),
    ),
}
FIELDS = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 64, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip


def small(family):
    changes = {"embed": 32, "heads": 4, "kv_heads": 2, "inner": 64, "depth": 2, "vocab": 64, "max_length": 32}
    if family == "GPT2LMHeadModel":
        return find_preset("gpt2_tiny")(vocab=64).build(nnx.Rngs(0))
    return with_fields(find_preset("llama2_7b")(), **changes).build(nnx.Rngs(0))


def shapes(model):
    """Return kind, activations and shapes of every kernel and table of few bits, and the shapes of all else."""
    found = {}
    for path, node in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_quantized):
        name = jax.tree_util.keystr(path)
        if is_quantized(node):
            found[name] = node.kind, node.activations, node.values.shape, np.shape(node.scale)
        else:
            found[name] = np.shape(node)
    return found


@pytest.mark.rotates
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("family", ["LlamaForCausalLM", "GPT2LMHeadModel"])
def test_what_is_measured_is_what_is_loaded(name, family, tmp_path):
    hub.save(hub.wrap(quantize_model(small(family), RULES[name]), family), tmp_path)
    work = find_target(str(tmp_path), Size(batch=2, length=8))
    assert shapes(jax.eval_shape(work.init, jax.random.key(0))) == shapes(hub.load(tmp_path).model)
    asked = find_target(str(tmp_path), Size(batch=2, length=8, weights="int4", group=32))
    scales = {value[3] for value in shapes(jax.eval_shape(asked.init, jax.random.key(0))).values() if len(value) == 4}
    assert scales != {value[3] for value in shapes(hub.load(tmp_path).model).values() if len(value) == 4}


def stored(method, **fields):
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "symmetric": True, "group_size": 16}
    if method == "compressed-tensors":
        weights |= fields.pop("weights", {})
        groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None, **fields}}
        return {"quant_method": method, "ignore": ["lm_head"], "config_groups": groups}
    return {"quant_method": method, **fields}


def opened(folder, quantization):
    (folder / "config.json").write_text(json.dumps({**FIELDS, "quantization_config": quantization}))
    work = find_target(str(folder), Size(batch=2, length=8))
    found = shapes(jax.eval_shape(work.init, jax.random.key(0)))
    return {name: value for name, value in found.items() if len(value) == 4 and isinstance(value[0], str)}


@pytest.mark.parametrize(
    ("quantization", "kind", "groups"),
    [
        (stored("gptq", bits=4, group_size=16), "int4", 4),
        (stored("awq", bits=4, group_size=8), "int4", 8),
        (stored("gptq", bits=8, group_size=-1), "int8", 1),
        (stored("fp8"), "float8_e4m3fn", 1),
        ({"load_in_8bit": True}, "int8", 1),
    ],
    ids=["gptq", "awq", "gptq8", "fp8", "bitsandbytes"],
)
def test_other_methods_say_it_in_their_own_words(quantization, kind, groups, tmp_path):
    down = next(value for name, value in opened(tmp_path, quantization).items() if "down" in name)
    assert (down[0], down[3][1]) == (kind, groups)


@pytest.mark.parametrize(
    "quantization",
    [
        stored("gptq", bits=4, group_size=16, desc_act=True), stored("fp8", weight_block_size=[128, 128]),
        stored("bitsandbytes", load_in_4bit=True), stored("gptq", bits=2, group_size=16),
    ],
    ids=["order", "blocks", "nf4", "two bits"],
)  # fmt: skip
def test_what_loading_makes_whole_is_measured_whole(quantization, tmp_path):
    assert opened(tmp_path, quantization) == {}


def test_layers_that_are_left_out_are_whole(tmp_path):
    some = {**stored("compressed-tensors"), "ignore": ["lm_head", "re:.*mlp.*"]}
    found = opened(tmp_path, some)
    assert found
    assert not any("feedforward" in name for name in found)
    assert not any("attention" in name for name in opened(tmp_path, {**some, "ignore": ["re:.*self_attn.*"]}))


@pytest.mark.parametrize(
    ("quantization", "rule"),
    [
        ("int4", "quantization_config must be an object, got 'int4'"),
        ({"quant_method": "magic"}, "quantization_config has quant_method='magic'; read are compressed-tensors"),
        ({"quant_method": "compressed-tensors"}, "must have config_groups of compressed-tensors, got none"),
        (stored("compressed-tensors", weights={"num_bits": 3}), "quantization_config has num_bits=3, of which 4, 8"),
        (stored("compressed-tensors", weights={"group_size": "x"}), "group_size='x', which must be a number of inputs"),
        (stored("compressed-tensors", input_activations="int8"), "weights and input_activations as objects"),
        (stored("gptq", bits=3), "quantization_config has bits=3, of which 2, 4, 8 are supported"),
        (stored("awq", bits=4, group_size="all"), "group_size='all', which must be a number of inputs"),
    ],
)
def test_a_broken_config_is_one_sentence_with_its_file(quantization, rule, tmp_path):
    with pytest.raises(ValueError, match=rule) as error:
        opened(tmp_path, quantization)
    assert str(tmp_path / "config.json") in str(error.value)
    assert "\n" not in str(error.value)
