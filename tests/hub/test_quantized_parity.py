"""Quantized folders: ours as transformers opens them, and GPTQ's, AWQ's, FP8's and bitsandbytes' as packed by hand."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.hub.quantized.model import dequantize_model, quantized_kernels

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.numpy")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.proves("kernels of few bits", "opened by transformers; GPTQ, AWQ, FP8, bitsandbytes by their layouts"),
]

IDS = {"input_ids": np.random.default_rng(0).integers(3, 96, (2, 9))}
PIXELS = {"pixel_values": np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
MODELS = {
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=96, num_key_value_heads=2, tie_word_embeddings=False, **SIZES)
    ),
    "bert": lambda: transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=96, num_labels=3, **SIZES)
    ),
    "vit": lambda: transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=32, patch_size=8, num_labels=3, **SIZES)
    ),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    ),
}
RULES = {
    "int8": Quantization(), "int4": Quantization(weights="int4", group=32), "dynamic": Quantization(activations="int8"),
    "float8": Quantization(weights="float8_e4m3fn"), "tables": Quantization(weights="int4", group=32, embeddings=True),
    "tables of int8": Quantization(embeddings=True),
    "mixed": (Quantization(pattern="attention"), Quantization(weights="int4", group=32, pattern="feedforward")),
}  # fmt: skip
OPENED = {"int8": 1e-6, "int4": 1e-6, "float8": 1e-6, "mixed": 1e-6, "tables of int8": 1e-6}
"""What transformers opens, and computes in floats; tables of four bits it does not, rounded inputs otherwise."""


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory):
    torch.manual_seed(0)
    model = MODELS[request.param]().eval()
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    return request.param, path, type(model)


@pytest.mark.parametrize("rule", RULES)
def test_what_is_written_is_read_again_exactly_and_opened_by_transformers(folder, rule, tmp_path):
    name, path, theirs = folder
    given = PIXELS if name == "vit" else IDS
    whole = hub.load(path)
    ours = replace(whole, model=quantize_model(whole.model, RULES[rule]))
    hub.save(ours, tmp_path)
    again = hub.load(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(again.model), jax.tree.leaves(ours.model))
    logits = np.asarray(again(**given).logits)
    np.testing.assert_array_equal(logits, ours(**given).logits)
    floats = hub.load(tmp_path, dtype="float32")
    assert not quantized_kernels(floats.model)
    assert "quantization_config" not in floats.config
    expected = dequantize_model(ours.model)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(floats.model), jax.tree.leaves(expected))
    renamed = name == "vit" and rule == "mixed"  # transformers has other names inside
    if rule in OPENED and name != "gpt2" and not renamed:
        pytest.importorskip("compressed_tensors")
        model = theirs.from_pretrained(tmp_path).eval()
        with torch.no_grad():
            reference = model(**{key: torch.tensor(value) for key, value in given.items()}).logits.numpy()
        np.testing.assert_allclose(logits, reference, rtol=0, atol=OPENED[rule] * max(1, np.abs(reference).max()))


# Folders of other tools: packed here by their published layouts, one value after the other.

GROUP = 32


def asymmetric(weight, bits=4, group=GROUP):
    """Round a matrix [O, I] to whole numbers from 0, with a zero for each group: numbers, scales and zeros [O, G]."""
    wide = weight.reshape(len(weight), -1, group)
    low, high = np.minimum(wide.min(-1, keepdims=True), 0), np.maximum(wide.max(-1, keepdims=True), 0)
    scale = ((high - low) / (2**bits - 1)).astype(np.float16).astype(np.float32)
    zero = np.clip(np.round(-low / scale), 1, 2**bits - 1)
    numbers = np.clip(np.round(wide / scale) + zero, 0, 2**bits - 1)
    return numbers.reshape(weight.shape).astype(np.int64), scale[..., 0], zero[..., 0].astype(np.int64)


def words(numbers, bits, order=None):
    """Pack along the first axis, value by value."""
    each = 32 // bits
    out = np.zeros((len(numbers) // each, *numbers.shape[1:]), np.uint64)
    for row in range(len(numbers)):
        place = row % each if order is None else order.index(row % each)
        out[row // each] |= numbers[row].astype(np.uint64) << np.uint64(bits * place)
    return out.astype(np.uint32).view(np.int32)


def gptq(weight, bits=4, act_order=False):
    numbers, scale, zero = asymmetric(weight, bits)
    index = np.arange(weight.shape[1]) // GROUP
    if act_order:
        turn = np.random.default_rng(3).permutation(weight.shape[1])
        index = index[turn]
        numbers = np.clip(np.round(weight / scale[:, index]) + zero[:, index], 0, 2**bits - 1).astype(np.int64)
    whole = (numbers - zero[:, index]) * scale[:, index]
    return whole, {
        "qweight": words(numbers.T, bits), "qzeros": words((zero - 1) % 2**bits, bits).T,
        "g_idx": index.astype(np.int32), "scales": scale.T.astype(np.float16),
    }  # fmt: skip


def awq(weight):
    numbers, scale, zero = asymmetric(weight)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    whole = (numbers - np.repeat(zero, GROUP, 1)) * np.repeat(scale, GROUP, 1)
    return whole, {
        "qweight": words(numbers, 4, order).T, "qzeros": words(zero, 4, order).T, "scales": scale.T.astype(np.float16),
    }  # fmt: skip


def float8(weight, block=16):
    blocks = weight.reshape(len(weight) // block, block, -1, block)
    scale = np.abs(blocks).max((1, 3)) / 448
    full = np.repeat(np.repeat(scale, block, 0), block, 1)
    values = (weight / full).astype(jnp.float8_e4m3fn)
    return values.astype(np.float32) * full, {"weight": values, "weight_scale_inv": scale.astype(np.float32)}


def rows8(weight):
    most = np.abs(weight).max(1)
    values = np.round(weight / most[:, None] * 127).astype(np.int8)
    return values * (most[:, None] / 127), {"weight": values, "SCB": most.astype(np.float32)}


def nf4(weight):
    from flax_transformer.nn.quantized import qwix

    table = np.asarray(qwix._src.core.numerics.get_nf4_buckets(), np.float32)
    flat = weight.reshape(-1, 64)
    most = np.abs(flat).max(1).astype(np.float32)
    index = np.abs(flat[..., None] / most[:, None, None] - table).argmin(-1)
    whole = (table[index] * most[:, None]).reshape(weight.shape)
    pairs = index.reshape(-1, 2).astype(np.uint8)
    about = json.dumps({"shape": list(weight.shape), "blocksize": 64, "quant_type": "nf4", "dtype": "float32"})
    return whole, {
        "weight": (pairs[:, 0] << 4 | pairs[:, 1])[:, None], "weight.absmax": most, "weight.quant_map": table,
        "weight.quant_state.bitsandbytes__nf4": np.frombuffer(about.encode(), np.uint8),
    }  # fmt: skip


METHODS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}, True),
    "gptq, 8 bits": (
        lambda weight: gptq(weight, 8), {"quant_method": "gptq", "bits": 8, "group_size": GROUP}, True
    ),
    "gptq, inputs in another order": (
        lambda weight: gptq(weight, act_order=True), {"quant_method": "gptq", "bits": 4, "group_size": GROUP}, False,
    ),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}, True),
    "fp8": (float8, {"quant_method": "fp8", "weight_block_size": [16, 16]}, False),
    "int8 of bitsandbytes": (rows8, {"quant_method": "bitsandbytes", "load_in_8bit": True}, True),
    "nf4 of bitsandbytes": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, False),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_folders_of_other_tools_read_as_their_layouts_say(method, tmp_path):
    pack, about, kept = METHODS[method]
    torch.manual_seed(0)
    MODELS["llama"]().save_pretrained(tmp_path)
    whole = safetensors.load_file(tmp_path / "model.safetensors")
    stored, expected = {}, {}
    for name, tensor in whole.items():
        if name.endswith("proj.weight"):
            expected[name], parts = pack(tensor)
            for part, value in parts.items():
                stored[f"{name.removesuffix('.weight')}.{part}"] = np.ascontiguousarray(value)
        else:
            stored[name] = expected[name] = tensor
    config = json.loads((tmp_path / "config.json").read_text())
    save_any(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": about}))
    reference = tmp_path / "reference"
    reference.mkdir()
    whole = {name: np.ascontiguousarray(value, np.float32) for name, value in expected.items()}
    safetensors.save_file(whole, reference / "model.safetensors")
    (reference / "config.json").write_text(json.dumps(config))
    floats, plain, few = hub.load(tmp_path, dtype="float32"), hub.load(reference), hub.load(tmp_path)
    for one, other in zip(jax.tree.leaves(floats.model), jax.tree.leaves(plain.model), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)
    assert bool(quantized_kernels(few.model)) == kept
    logits = np.asarray(plain(**IDS).logits)
    np.testing.assert_allclose(few(**IDS).logits, logits, rtol=1e-4, atol=1e-5)


def save_any(tensors, path):
    """Write tensors of any type, float8 among them."""
    named = {"float8_e4m3fn": torch.float8_e4m3fn}
    found = {
        name: torch.from_numpy(value.view(np.uint8)).view(named[str(value.dtype)])
        if str(value.dtype) in named
        else torch.from_numpy(value.copy())
        for name, value in tensors.items()
    }
    from safetensors.torch import save_file

    save_file(found, path, metadata={"format": "pt"})


REFUSED = {
    "method": ({"quant_method": "hqq"}, "quant_method='hqq'; read are compressed-tensors, gptq, awq, fp8"),
    "bits": ({"quant_method": "gptq", "bits": 3}, "has bits=3, of which 2, 4, 8 are supported"),
    "version": ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "has version='gemv', of which gemm, GEMM"),
    "groups": ({"quant_method": "compressed-tensors"}, "must have config_groups of compressed-tensors, got none"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_named(name, tmp_path):
    about, message = REFUSED[name]
    torch.manual_seed(0)
    MODELS["bert"]().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": about}))
    with pytest.raises(ValueError, match=message):
        hub.load(tmp_path)
