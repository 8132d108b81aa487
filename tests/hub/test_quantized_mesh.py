"""A quantized folder on a mesh of eight devices: values and scales are split as their kernels are."""

import pytest

from tests.fake_devices import on_eight

CODE = """
import json, tempfile
from dataclasses import replace
import jax, numpy as np
from flax import nnx
from flax_transformer import hub
from flax_transformer.compress import Quantization, quantize_model
from flax_transformer.models.text.llama import llama2_7b
from flax_transformer.nn import with_fields
from flax_transformer.parallel import MeshConfig, make_mesh
from flax_transformer.hub.quantized.model import quantized_kernels

config = with_fields(llama2_7b(), embed=32, heads=4, kv_heads=2, inner=64, depth=2, vocab=64, max_length=32)
model = hub.wrap(config.build(nnx.Rngs(0)), "LlamaForCausalLM")
ids = np.arange(48).reshape(4, 12) % 60
mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
found = {}
for name, rule in {
    "int8": Quantization(activations="int8", embeddings=True), "int4": Quantization(weights="int4", group=8),
}.items():
    with tempfile.TemporaryDirectory() as folder:
        hub.save(replace(model, model=quantize_model(model.model, rule)), folder)
        alone, spread = hub.load(folder), hub.load(folder, mesh=mesh)
    with jax.set_mesh(mesh):
        logits = np.asarray(spread(input_ids=ids).logits)
    kernels = quantized_kernels(spread.model)
    up = next(each for path, each in kernels.items() if path.endswith("up.kernel"))
    found[name] = {
        "error": float(np.abs(logits - alone(input_ids=ids).logits).max()),
        "values": [*map(str, up.values.sharding.spec)], "scale": [*map(str, up.scale.sharding.spec)],
    }
print(json.dumps(found))
"""


@pytest.mark.rotates
def test_kernels_of_few_bits_are_split_as_whole_ones():
    found, _ = on_eight("-c", CODE)
    for each in found.values():
        assert each["error"] < 1e-5
        assert each["values"] == ["None", "fsdp", "tensor"]
    assert found["int8"]["scale"] == ["None", "None", "tensor"]
    assert found["int4"]["scale"] == ["None", "fsdp", "tensor"]
