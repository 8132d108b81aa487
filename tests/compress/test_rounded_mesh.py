"""Training with rounded kernels, and observing, on a mesh of eight devices: as on one."""

import pytest

from tests.fake_devices import on_eight

CODE = """
import contextlib
import json
import optax
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from flax_transformer.compress import Quantization, observe
from flax_transformer.compress.straight_through import round_in_training, rounded_in_passing
from flax_transformer.models.text.llama import llama2_7b
from flax_transformer.nn import with_fields
from flax_transformer.parallel import MeshConfig, make_mesh, batch_sharding, tree_shardings
from flax_transformer.train.carry import carry_of
from flax_transformer.train.state import new_state, state_shardings
from flax_transformer.train.step import jit_train_step, make_train_step

config = with_fields(llama2_7b(), embed=32, heads=4, kv_heads=2, inner=64, depth=2, vocab=64, max_length=32)
model = config.build(nnx.Rngs(0))
tokens = jnp.asarray(np.random.default_rng(0).integers(0, 64, (8, 12)))
mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
found = {}
for name, rule in {
    "int8": Quantization(), "int4": Quantization(weights="int4", group=8), "dynamic": Quantization(activations="int8"),
}.items():
    def loss(model, tokens):
        return -jax.nn.log_softmax(rounded_in_passing(model, rule)(tokens))[..., 0].mean()

    step = jax.jit(jax.value_and_grad(loss))
    value, gradient = step(model, tokens)
    placed = jax.device_put(model, tree_shardings(model, mesh))
    with jax.set_mesh(mesh):
        other, spread = step(placed, jax.device_put(tokens, batch_sharding(mesh)))
    far = max(
        float(jnp.abs(a - np.asarray(b)).max() / (jnp.abs(a).max() + 1e-12))
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(spread), strict=True)
    )
    found[name] = [float(abs(value - other)), far]
one = observe(model, lambda m, t: m(t), [tokens], products=True)
with jax.set_mesh(mesh):
    eight = observe(placed, lambda m, t: m(t), [jax.device_put(tokens, batch_sharding(mesh))], products=True)
found["observed"] = [0.0, max(
    float(np.abs(np.asarray(a) - np.asarray(b)).max() / (np.abs(np.asarray(a)).max() + 1e-12))
    for path in one for a, b in zip(jax.tree.leaves((one[path].products, one[path].magnitude)),
                                    jax.tree.leaves((eight[path].products, eight[path].magnitude)), strict=True)
)]

def squares(model, batch, *, key=None):
    return -jax.nn.log_softmax(model(batch))[..., 0].sum(), {"count": jnp.float32(batch.size)}

objective = round_in_training(squares, Quantization(activations="int8", ranges="absmax"))
optimizer, states = optax.sgd(0.1), []
for where in (None, mesh):
    def init(key):
        return new_state(jax.tree.map(jnp.copy, model), optimizer, False, key, carry_of(objective))

    with contextlib.nullcontext() if where is None else jax.set_mesh(where):
        state = init(jax.random.key(0))
        state = state if where is None else jax.device_put(state, state_shardings(state, where))
        step = jit_train_step(make_train_step(objective, optimizer), state, where)
        for shift in (0, 1):
            state, _ = step(state, np.asarray((tokens + shift) % 64))
    states.append((state.carried["range"], state.model))
found["ranges"] = [
    max(float(np.abs(np.asarray(a) - np.asarray(b)).max() / (np.abs(np.asarray(a)).max() + 1e-12))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True))
    for one, eight in zip(*states, strict=True)
]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_eight_devices_are_as_one():
    found, _ = on_eight("-c", CODE)
    assert found.keys() == {"int8", "int4", "dynamic", "observed", "ranges"}
    for name in ("int4", "observed"):
        assert max(found[name]) < 1e-5
    for name in ("int8", "dynamic"):  # of so many values some lie between two, and devices may round them either way
        loss, gradient = found[name]
        assert loss < 1e-4
        assert gradient < 1e-2
    ranges, model = found["ranges"]
    assert ranges < 1e-2
    assert model < 1e-2
