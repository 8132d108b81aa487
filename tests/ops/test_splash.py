import importlib.util
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from fake_devices import QUICK

from flax_transformer.ops import Mask
from flax_transformer.ops.attention import Call, splash
from flax_transformer.ops.attention.splash import SplashAttention

pytestmark = pytest.mark.proves("attention", "splash: compiles for TPUs and runs interpreted")

COMPILE = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from flax_transformer.ops import Mask, attention, explain_attention

devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[:int(sys.argv[1])]
shape = (2, 2) if len(devices) == 4 else (1, 1)
mesh = Mesh(np.array(devices).reshape(shape), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
place = NamedSharding(mesh, PartitionSpec())
with jax.set_mesh(mesh):
    for width in (64, 128):
        q = jax.ShapeDtypeStruct((2, 1000, 4, width), jnp.bfloat16, sharding=place)
        k = jax.ShapeDtypeStruct((2, 1000, 2, width), jnp.bfloat16, sharding=place)
        ids = jax.ShapeDtypeStruct((2, 1000), jnp.int32, sharding=place)

        def loss(q, k, v, ids):
            return attention(q, k, v, Mask(causal=True, segments=(ids, ids))).astype(jnp.float32).sum()

        assert "splash     chosen" in explain_attention(q, k, k, Mask(causal=True))
        step = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))
        compiled = step.trace(q, k, k, ids).lower(lowering_platforms=("tpu",)).compile()
        scores = 2 * 4 * 1000 * 1000 * 4 // len(devices)
        kernels = compiled.as_text().count("tpu_custom_call")
        print(width, kernels, compiled.memory_analysis().temp_size_in_bytes < scores)
"""


SPLIT = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType
from flax_transformer.ops import Mask
from flax_transformer.ops.attention.splash import SplashAttention
from flax_transformer.ops.attention.xla import XlaAttention

mesh = jax.make_mesh((2, 1, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
random = np.random.default_rng(0)
draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
q, k, v = draw(4, 130, 4, 8), draw(4, 130, 2, 8), draw(4, 130, 2, 8)
ids = jnp.asarray(random.integers(0, 3, (4, 130)).cumsum(1) // 40, jnp.int32)
masks = [Mask(causal=True), Mask(lengths=jnp.array([130, 7, 0, 64])), Mask(segments=(ids, ids), window=9)]
masks += [Mask(lengths=jnp.array([50])), Mask(segments=(ids[:1], ids[:1]), offset=0)]
for mask in masks:
    with jax.set_mesh(mesh):
        got = jax.jit(lambda q, k, v, mask: SplashAttention(interpret=True)(q, k, v, mask, scale=0.3))(q, k, v, mask)
    wanted = XlaAttention()(q, k, v, mask, scale=0.3)
    print(float(jnp.abs(got - wanted).max()) < 1e-5)
"""


@pytest.mark.slow
def test_every_device_attends_for_its_own_rows_and_heads():
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {QUICK}",
        "JAX_PLATFORMS": "cpu",
    }
    run = subprocess.run(
        [sys.executable, "-c", SPLIT], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert run.stdout.split() == ["True"] * 5, run.stdout + run.stderr[-3000:]


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
@pytest.mark.parametrize("devices", [1, 4])
def test_forward_and_backward_compile_for_a_tpu_that_is_not_here(devices):
    # Only one process may hold a TPU, but any number may compile.
    compiler = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    environment = os.environ | compiler
    run = subprocess.run(
        [sys.executable, "-c", COMPILE, str(devices)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    rows = [line.split() for line in run.stdout.splitlines()]
    assert [row[0] for row in rows] == ["64", "128"]
    assert all(int(row[1]) >= 3 and row[2] == "True" for row in rows), run.stdout


@pytest.mark.parametrize(
    ("T", "mask", "reason"),
    [
        (8, Mask(dense=jnp.ones((8, 8), bool)), "no dense mask"),
        (8, Mask(causal=True, offset=1), "known when it is compiled"),
        (9, Mask(causal=True), "T <= S, got T=9, S=8"),
    ],
)
def test_it_says_why_it_cannot_serve(monkeypatch, T, mask, reason):
    monkeypatch.setattr(splash, "platform", lambda: "tpu")
    q, k = (jax.ShapeDtypeStruct((1, n, 2, 8), jnp.float32) for n in (T, 8))
    assert reason in SplashAttention().refuses(Call(q, k, k, mask))
    assert SplashAttention().refuses(Call(k, k, k, Mask(causal=True, lengths=jnp.ones(1, int)))) is None
