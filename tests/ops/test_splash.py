import importlib.util
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from flax_transformer.ops import Mask
from flax_transformer.ops.splash import splash_serves

COMPILE = """
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from flax_transformer.ops import Mask, attention, explain_attention

devices = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[:1]
mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
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
        scores = 2 * 4 * 1000 * 1000 * 4
        kernels = compiled.as_text().count("tpu_custom_call")
        print(width, kernels, compiled.memory_analysis().temp_size_in_bytes < scores)
"""


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu, the TPU compiler")
def test_forward_and_backward_compile_for_a_tpu_that_is_not_here():
    # Only one process may hold a TPU, but any number may compile.
    compiler = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    environment = os.environ | compiler
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    rows = [line.split() for line in run.stdout.splitlines()]
    assert [row[0] for row in rows] == ["64", "128"]
    assert all(int(row[1]) >= 3 and row[2] == "True" for row in rows), run.stdout


@pytest.mark.parametrize(
    ("T", "mask", "reason"),
    [
        (8, Mask(dense=jnp.ones((1, 8, 8), bool)), "no dense mask"),
        (8, Mask(causal=True, offset=0), "known when it is compiled"),
        (9, Mask(causal=True), "T <= S, got T=9, S=8"),
    ],
)
def test_it_says_why_it_cannot_serve(monkeypatch, T, mask, reason):
    monkeypatch.setattr("flax_transformer.ops.splash.platform", lambda: "tpu")
    q, k = (jax.ShapeDtypeStruct((1, n, 2, 8), jnp.float32) for n in (T, 8))
    assert reason in splash_serves(q, k, k, mask, None, None)
    assert splash_serves(k, k, k, Mask(causal=True, lengths=jnp.ones(1, int)), None, None) is None
